"""``SyncReport``: the report on one update, with each worker's acknowledgement, the size and the duration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlinf_async._core.error_copy import copy_of

_MOST_NAMED = 8


@dataclass(frozen=True)
class Ack:
    """One worker's answer.

    Attributes:
        status: ``"applied"``, or ``"failed"``.
        version: the sent version.
        error: the reason why the worker lacks the version; None if it was applied.
        t_recv, t_apply: seconds from publishing until the worker received it, and seconds to apply it.
        t_pause: seconds during which readers of the worker's weights were kept out.
        digest: with ``verify="sha256"``, SHA-256 over the digests of the worker's tensors, each in its own dtype.

    The seconds are None if the worker failed, or if the weights arrived in a call or through torch's store.
    """

    status: str
    version: int
    error: BaseException | None = None
    t_recv: float | None = None
    t_apply: float | None = None
    t_pause: float | None = None
    digest: str | None = None


@dataclass(frozen=True)
class SyncReport:
    """The outcome of one version at its workers, and its cost.

    Attributes:
        bytes: size of the weights as sent to one worker.
        t_stage: seconds until the source was free to change.
        t_total: seconds until the last worker had answered.
        is_known: False on ranks that do not send, and therefore do not know the outcome.
    """

    version: int
    per_worker: Mapping[int, Ack] = field(default_factory=dict)
    bytes: int = 0
    t_stage: float = 0.0
    t_total: float = 0.0
    is_known: bool = True

    @property
    def failed(self) -> dict[int, BaseException]:
        """Maps each worker that does not have this version to its error."""
        return {worker_id: ack.error for worker_id, ack in self.per_worker.items() if ack.error is not None}

    def __str__(self) -> str:
        """Return a readable summary: ``version 3, 1.2 MiB: rollout:0, rollout:1 have it, after 4.1 ms, of which staging
        ...``."""
        if not self.is_known:
            return f"version {self.version}: rank 0 sends it, and knows who has it"
        failed = self.failed
        having = [str(worker_id) for worker_id in self.per_worker if worker_id not in failed]
        named = ", ".join(having[:_MOST_NAMED]) + f" and {len(having) - _MOST_NAMED} more" * (len(having) > _MOST_NAMED)
        text = f"version {self.version}, {_size(self.bytes)}: {named or 'nobody'} {'have' if having[1:] else 'has'} it"
        text += f", after {self.t_total * 1e3:.1f} ms, of which staging took {self.t_stage * 1e3:.1f} ms"
        return text + "".join(f"; {each} lacks it: {type(error).__name__}: {error}" for each, error in failed.items())

    def raise_failures(self) -> None:
        """Raise if a worker does not have this version.

        Raises:
            BaseException: a copy of the first failed worker's error; its notes name all failed workers.
        """
        failed = self.failed
        if not failed:
            return
        error = copy_of(next(iter(failed.values())))
        for worker_id, each in failed.items():
            error.add_note(f"worker {worker_id} does not have version {self.version}: {type(each).__name__}: {each}")
        raise error


def _size(nbytes: int) -> str:
    """Return ``312 B``, ``1.2 KiB``, ``64.0 MiB``, ``1.5 GiB``."""
    size, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"

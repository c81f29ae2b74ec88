"""What has become of one update: at each worker, and of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Ack:
    """One worker's answer.

    Attributes:
        status: ``"applied"``, or ``"failed"``.
        version: that it was about.
        error: why the worker does not have it.
        t_recv, t_apply: seconds from the sender's publishing until the worker had it, and that it took to apply it.
        t_pause: seconds for which nobody could read the worker's weights.
    """

    status: str
    version: int
    error: BaseException | None = None
    t_recv: float = 0.0
    t_apply: float = 0.0
    t_pause: float = 0.0


@dataclass(frozen=True)
class SyncReport:
    """
    Attributes:
        bytes: of the weights, as they travel to one worker.
        t_stage: seconds until the source could change.
        t_total: seconds until the last worker had answered.
    """

    version: int
    per_worker: Mapping[int, Ack] = field(default_factory=dict)
    bytes: int = 0
    t_stage: float = 0.0
    t_total: float = 0.0

    @property
    def failed(self) -> dict[int, BaseException]:
        """The errors of those workers that do not have this version."""
        return {worker_id: ack.error for worker_id, ack in self.per_worker.items() if ack.error is not None}

    def raise_failures(self) -> None:
        """
        Raises:
            BaseException: that of the first worker that failed; its notes name all of them.
        """
        failed = self.failed
        if not failed:
            return
        error = next(iter(failed.values()))
        for worker_id, each in failed.items():
            text = f"worker {worker_id} does not have version {self.version}: {type(each).__name__}: {each}"
            if text not in getattr(error, "__notes__", ()):
                error.add_note(text)
        raise error

"""Report of one update: its acknowledgement by each worker, its bytes and seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlinf_async._core.error_copy import copy_of


@dataclass(frozen=True)
class Ack:
    """One worker's answer.

    Attributes:
        status: ``"applied"``, or ``"failed"``.
        version: that it was about.
        error: why the worker does not have it.
        t_recv, t_apply: seconds from the sender's publishing until the worker had it, and that it took to apply it.
        t_pause: seconds for which nobody could read the worker's weights.
        digest: with ``verify="sha256"``, SHA-256 over the digests of what the worker's tensors hold, each in its dtype.

    Of a worker that has failed, and where a call or torch's store brings weights, the seconds are None: nobody knows.
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
    """
    Attributes:
        bytes: of the weights, as they travel to one worker: in the dtype that they travel in, and with ``keys=`` only
            those.  To another machine all of them travel, or what has changed (``delta=``).  The most that went to one.
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
            BaseException: that of the first worker that failed, an object of its own each time; its notes name all of
                them.
        """
        failed = self.failed
        if not failed:
            return
        error = copy_of(next(iter(failed.values())))
        for worker_id, each in failed.items():
            error.add_note(f"worker {worker_id} does not have version {self.version}: {type(each).__name__}: {each}")
        raise error

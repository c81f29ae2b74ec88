"""``Worker.device_lock``: a run-wide reentrant lock on a worker's devices, granted by node 0's daemon."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from rlinf_async._client.client import NodeClient
from rlinf_async._client.requests import DaemonRequest
from rlinf_async._core import operations, process
from rlinf_async._recorder import recording
from rlinf_async._recorder.state.event_ring import EventKind
from rlinf_async._waits import slow_waits
from rlinf_async._waits.thread_gate import must_await
from rlinf_async.errors import ClosedError, DeadlineExceeded
from rlinf_async.work import Work, blocking


class DeviceLock:
    """A lock on all devices of one worker; at most one worker of the run holds a device at a time.

    Workers that share a device get the lock in the order of their requests. The holder may acquire the lock again
    without waiting, in any of its methods, and must release it the same number of times. The lock is released when the
    holder's process ends or its group is closed. A worker without devices never waits.

    Example:
        with self.device_lock:               # in a def method
            self.model.to("cuda")
        async with self.device_lock:         # in a coroutine
            await self.generate(batch)
    """

    def __init__(self, client: NodeClient, name: str, devices: Sequence[int]) -> None:
        """Internal; use ``Worker.device_lock``."""
        self._client = client
        self._name = name
        self._devices = list(devices)
        self._guard = threading.Lock()
        self._held: list[Acquisition] = []

    def __repr__(self) -> str:
        devices = ", ".join(map(str, self._devices)) or "none"
        return f"<DeviceLock {self._name} [devices {devices} | held {len(self._held)} times]>"

    @property
    def is_held(self) -> bool:
        """True if this worker holds the lock."""
        return bool(self._held)

    def acquire(self, timeout: float | None = None) -> Any:
        """Wait for all devices; in a coroutine, return a ``Work`` to await.

        A cancelled acquisition leaves nothing locked.

        Args:
            timeout: seconds after which the acquisition is abandoned.

        Raises:
            DeadlineExceeded: the timeout has expired; the message names the devices' holders and earlier waiters.
        """
        with _undone_on_error(Acquisition(self, timeout)) as acquisition:
            return blocking(acquisition)

    def release(self) -> None:
        """Undo one ``acquire``.

        Raises:
            RuntimeError: this worker does not hold the lock.
        """
        with self._guard:
            acquisition = self._held[-1] if self._held else None
        if acquisition is None or not acquisition.undo():
            raise RuntimeError(f"Lock is not acquired: {self._name} does not hold its device_lock")

    def __enter__(self) -> DeviceLock:
        if must_await():
            raise RuntimeError("`with device_lock` would block the event loop of this coroutine: use `async with`")
        with _undone_on_error(Acquisition(self, None)) as acquisition:
            acquisition.wait()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    async def __aenter__(self) -> DeviceLock:
        await Acquisition(self, None)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.release()

    def __reduce__(self) -> Any:
        raise TypeError("a device_lock is its worker's own and cannot travel: every worker has one")


class Acquisition(Work[None]):
    """A single acquisition, from start to end; ``undo`` may be called at any time, and takes effect once."""

    _kind = "lock"

    def __init__(self, lock: DeviceLock, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout= takes seconds, got {timeout!r}")
        super().__init__()
        self._of = lock
        self._limit(timeout)
        self._undone = False
        self._request: DaemonRequest[None] | None = None
        if not lock._devices:
            self._grant()
            return
        operation = operations.LockDevices(lock._name, lock._devices)
        self._request = lock._client.request(operation, node=0, what=self._describe())
        self._event = recording.begin(EventKind.WAIT, self._kind)
        self._request._follow(self._answered)

    def _describe(self) -> str:
        return f"the device_lock of {self._of._name} (devices {', '.join(map(str, self._of._devices))})"

    def _peer_activity(self) -> Work[str] | None:
        return None if self._request is None else self._request._peer_activity()

    def _needs(self) -> slow_waits.Needs:
        return ([], True) if self._request is None else self._request._needs()

    def undo(self) -> bool:
        """Release the devices, or leave the queue of waiters. Return False if this was undone before."""
        with self._of._guard:
            if self._undone:
                return False
            self._undone = True
            if self in self._of._held:
                self._of._held.remove(self)
        if self._request is not None:
            self._unlock(self._request)
        return True

    def _unlock(self, request: DaemonRequest[None]) -> DaemonRequest[list[str]]:
        return self._of._client.request(operations.UnlockDevices(request.number), node=0)

    def _grant(self) -> None:
        with self._of._guard:
            if self._undone:
                return
            self._of._held.append(self)
        self._settle()

    def _answered(self) -> None:
        assert self._request is not None
        try:
            self._request._result()
        except Exception as error:
            self._settle(error=error)
        else:
            self._grant()

    def _abandon(self) -> None:
        self.undo()
        self._settle(error=ClosedError(f"{self._describe()} was given up"))

    def _lose_interest(self) -> None:  # its task may be cancelled before the first step, after the grant
        if self._pid == process.pid:
            self._abandon()

    def _expire(self) -> None:
        with self._of._guard:
            if self._undone or self in self._of._held:
                return
            self._undone = True
        assert self._request is not None
        unlocking = self._unlock(self._request)

        def explain() -> None:
            try:
                names = ", ".join(unlocking._result()) or "nobody any more"
            except Exception as error:
                names = f"nobody knows whom ({error})"
            self._settle(
                error=DeadlineExceeded(f"{self._describe()} was not free within {self._timeout:g} s: taken by {names}")
            )

        unlocking._follow(explain)

    def __await__(self) -> Generator[Any, Any, None]:
        with _undone_on_error(self):
            yield from super().__await__()


@contextlib.contextmanager
def _undone_on_error(acquisition: Acquisition) -> Iterator[Acquisition]:
    try:
        yield acquisition
    # Undo, because the grant may be in transit: otherwise the devices would stay locked.
    except BaseException:
        acquisition.undo()
        raise

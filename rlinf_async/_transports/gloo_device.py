"""Gloo devices: one per local address, shared by all Gloo pairs of a process, with its sending thread.

Gloo sends and receives in the device's thread, but begins to send in the caller's: it copies into the socket for as
long as that takes any, so a thread has to be lent to it.  It never waits there for a peer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from torch.distributed import ProcessGroupGloo

Job = Callable[[], None]


class GlooDevice:
    """Listens on one address of this machine; ends when its last user has released it."""

    _lock = threading.Lock()
    _open: dict[str, GlooDevice] = {}  # noqa: RUF012  # the process's own table

    def __init__(self, address: str) -> None:
        self._address = address
        self._users = 0
        # Not lazy: with a shared device the first message of a lazy pair never arrives.
        self.gloo: Any = ProcessGroupGloo.create_device(hostname=address, lazy_init=False)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        threading.Thread(target=self._run, name="rlinf-gloo-send", daemon=True).start()

    @classmethod
    def acquire(cls, address: str) -> GlooDevice:
        """The device of this address, made if there is none; each ``acquire`` has its ``release``.

        Raises:
            RuntimeError: the address is not one of this machine's.
        """
        with cls._lock:
            device = cls._open.get(address)
            if device is None:
                device = cls._open[address] = cls(address)
            device._users += 1
            return device

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                del self._open[self._address]
                self._jobs.put(None)

    def submit(self, job: Job) -> None:
        """Runs ``job``, which does not raise, in the thread that sends, after those before it."""
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # with what it holds, before the next one comes

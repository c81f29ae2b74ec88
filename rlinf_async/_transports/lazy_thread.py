"""``LazyThread``: runs submitted jobs in order, in a thread that exists only while there are any."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Job = Callable[[], None]


class LazyThread:
    """Runs jobs one after the other, in the order in which they were given, in a thread of its own.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque()
        self._is_running = False

    def submit(self, job: Job) -> None:
        """``job`` does not raise.  May be called from any thread."""
        with self._lock:
            self._jobs.append(job)
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._is_running = False
                    return
                job = self._jobs.popleft()
            job()
            del job  # with what it holds, before the next one comes

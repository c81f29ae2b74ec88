"""What wakes a thread that waits for a file."""

from __future__ import annotations

import os
import threading


class Wake:
    """A pipe that one thread waits for and others write to; closed by whoever needs it last, and left by nobody."""

    def __init__(self) -> None:
        self.fd, self._end = os.pipe()
        self._lock = threading.Lock()
        self._has_ended = False
        self._is_left = False

    def write(self, byte: bytes) -> None:
        os.write(self._end, byte)

    def leave(self, thread: threading.Thread, patience: float) -> None:
        """No more will be written; waits up to ``patience`` seconds for the thread, which may be the calling one."""
        if thread is not threading.current_thread():
            thread.join(patience)
        with self._lock:
            self._is_left = True
            if not self._has_ended:
                return  # it closes the pipe
        self._close()

    def ended(self) -> None:
        """The last thing that the thread does."""
        with self._lock:
            self._has_ended = True
            if not self._is_left:
                return
        self._close()

    def _close(self) -> None:
        os.close(self.fd)
        os.close(self._end)

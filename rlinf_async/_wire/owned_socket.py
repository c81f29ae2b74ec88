"""Socket whose descriptor user code may close: detects, by inode, that its number now means another file.

Code that closes all descriptors from 3 on, or one of its own twice, closes sockets of the framework, and the kernel
gives their numbers to the files that are opened next. Any later use of such a number affects the wrong file: a frame
for one process would be read by another one. A socket is therefore identified by its inode, and a new one takes its
number over from its predecessor.

tests/_wire/reading/test_second_thread.py::test_a_successor_that_takes_the_number_of_a_closed_socket_is_read_by_both_threads
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import Final
from weakref import WeakMethod, WeakValueDictionary


class OwnedSocket:
    """Non-blocking socket in the table of descriptor numbers.

    Args:
        on_number_taken: method called from any thread when another socket gets this one's number, which this one has
        then lost. The method's object is not kept alive.
    """

    __slots__ = ("__weakref__", "_inode", "_on_number_taken", "sock")

    def __init__(self, sock: socket.socket, on_number_taken: Callable[[], None]) -> None:
        sock.setblocking(False)
        predecessor = _by_number.get(sock.fileno())
        _by_number[sock.fileno()] = self
        self.sock = sock
        self._inode = os.fstat(sock.fileno()).st_ino
        self._on_number_taken = WeakMethod(on_number_taken)
        # Detach the predecessor instead of closing it: its number belongs to the successor by now.
        if predecessor is not None and predecessor.sock.detach() >= 0 and (callback := predecessor._on_number_taken()):
            callback()

    def fileno(self) -> int:
        return self.sock.fileno()

    def is_intact(self) -> bool:
        try:
            return os.fstat(self.sock.fileno()).st_ino == self._inode
        except OSError:
            return False

    def is_another_file(self) -> bool:
        """True if the descriptor is open, but belongs to another file."""
        try:
            return os.fstat(self.sock.fileno()).st_ino != self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Close the descriptor if it is still this socket's. Idempotent."""
        if _by_number.get(self.sock.fileno()) is self:
            del _by_number[self.sock.fileno()]
        if self.is_intact():
            self.sock.close()
        else:
            self.sock.detach()

    def leave_to_parent(self) -> None:
        """Close the copy of the descriptor in a forked child."""
        _by_number.pop(self.sock.fileno(), None)
        with contextlib.suppress(OSError):
            os.close(self.sock.detach())


_by_number: Final[WeakValueDictionary[int, OwnedSocket]] = WeakValueDictionary()

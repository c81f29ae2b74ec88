"""Socket whose descriptor user code may close: notices, by inode, that another file has its number now.

Code that closes all descriptors from 3 on, or one of its own twice, closes sockets of the framework, and the kernel
gives their numbers to the files that are opened next.  What is then written, read, watched or closed under such a
number is done to the wrong file: a frame for one process would be read by another one.  So a socket is known by its
inode, and a new one takes its number from the one that had it before.

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
    """A non-blocking socket in the table of descriptor numbers.

    Args:
        on_number_taken: a method that is called, from any thread, when another one has this one's number; then it has
            none.  Its object is not kept alive.
    """

    __slots__ = ("__weakref__", "_inode", "_on_number_taken", "sock")

    def __init__(self, sock: socket.socket, on_number_taken: Callable[[], None]) -> None:
        sock.setblocking(False)
        predecessor = _by_number.get(sock.fileno())
        _by_number[sock.fileno()] = self
        self.sock = sock
        self._inode = os.fstat(sock.fileno()).st_ino
        self._on_number_taken = WeakMethod(on_number_taken)
        # Detached, not closed: the number is the successor's by now.
        if predecessor is not None and predecessor.sock.detach() >= 0 and (told := predecessor._on_number_taken()):
            told()

    def fileno(self) -> int:
        return self.sock.fileno()

    def is_intact(self) -> bool:
        """Whether the descriptor is still this socket's."""
        try:
            return os.fstat(self.sock.fileno()).st_ino == self._inode
        except OSError:
            return False

    def is_another_file(self) -> bool:
        """Whether the descriptor is open, and not this socket's any more."""
        try:
            return os.fstat(self.sock.fileno()).st_ino != self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Closes the descriptor where it is still this socket's; idempotent."""
        if _by_number.get(self.sock.fileno()) is self:
            del _by_number[self.sock.fileno()]
        if self.is_intact():
            self.sock.close()
        else:
            self.sock.detach()

    def leave_to_parent(self) -> None:
        """In a forked child: closes the child's copy of the descriptor."""
        _by_number.pop(self.sock.fileno(), None)
        with contextlib.suppress(OSError):
            os.close(self.sock.detach())


_by_number: Final[WeakValueDictionary[int, OwnedSocket]] = WeakValueDictionary()
"""Sockets that are not closed, by the number of their descriptor."""

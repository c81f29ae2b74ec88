"""A socket whose descriptor user code may close: detects by inode that its number now refers to another file.

User code that closes all descriptors from 3 on, or closes one of its own twice, may close the framework's sockets. The
kernel then reuses their numbers for the next opened files, and any use of such a number affects the wrong file: another
process could read a frame. So a socket is identified by its inode, and a new socket with a reused number detaches the
previous owner of the number.

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
    """A non-blocking socket, registered in a table of descriptor numbers.

    Args:
        on_number_taken: bound method called, on any thread, when another socket gets this socket's number; its object
            is not kept alive.
    """

    __slots__ = ("__weakref__", "_inode", "_on_number_taken", "sock")

    def __init__(self, sock: socket.socket, on_number_taken: Callable[[], None]) -> None:
        sock.setblocking(False)
        predecessor = _by_number.get(sock.fileno())
        _by_number[sock.fileno()] = self
        self.sock = sock
        self._inode = os.fstat(sock.fileno()).st_ino
        self._on_number_taken = WeakMethod(on_number_taken)
        # Detach the predecessor, unless it is closed, instead of closing it: its number now belongs to the successor.
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
        """True if the descriptor is open but belongs to another file."""
        try:
            return os.fstat(self.sock.fileno()).st_ino != self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Close the descriptor if it still belongs to this socket. Idempotent."""
        if self.is_intact():
            self.sock.close()
        else:
            self.sock.detach()

    def leave_to_parent(self) -> None:
        """Close a forked child's copy of the descriptor."""
        with contextlib.suppress(OSError):
            os.close(self.sock.detach())


_by_number: Final[WeakValueDictionary[int, OwnedSocket]] = WeakValueDictionary()

"""Messages over one end of a shared ``multiprocessing.Pipe``; messages for its other users stay in the pipe."""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import pickle
import select
import socket
import struct
import termios
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rlinf_async._transports.lazy_thread import LazyThread
from rlinf_async.errors import ConfigError, DeadlineExceeded, PeerLost
from rlinf_async.weights.links.socket_link import Notice
from rlinf_async.weights.waiting.execution import outlast
from rlinf_async.weights.waiting.ownership import reset_in_children

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

UPDATE: Final = "update_weights"
"""Text of a message that contains weights or a notice."""

_LENGTH: Final = struct.Struct("!i")

_NOTICE_MARK: Final = b"\x80\x05N0N0N0"
"""First bytes of a notice's pickle. They push and pop None, which has no effect; no other pickle begins so."""


class PipeMail:
    """An exchange of pickled messages ``(data, text)``, compatible with ``Connection``, that does not block a loop.

    All users of one end of a pipe in a process share the instance that ``of`` returns, which refers to the pipe weakly.

    Attributes:
        notices: maps a model to its notice, if the notice was read while looking for another model's.
    """

    _all: ClassVar[weakref.WeakKeyDictionary[Any, PipeMail]] = weakref.WeakKeyDictionary()
    _finding: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, pipe: Any) -> None:
        self._pipe = weakref.proxy(pipe)
        self._reset()
        reset_in_children(self)

    def _reset(self) -> None:
        self.notices: dict[str, Notice] = {}
        self._kept: list[tuple[Any, str]] = []
        """Messages read for callers that were cancelled during the read."""
        self._reader, self._writer = LazyThread("weights from a pipe"), LazyThread("weights into a pipe")
        self._taking = threading.Lock()
        """Lock held while a message is peeked at and taken."""

    @classmethod
    def of(cls, pipe: Connection[Any, Any]) -> PipeMail:
        """Return the instance for one end of a pipe.

        Raises:
            ConfigError: the pipe is not duplex.
        """
        if not (pipe.readable and pipe.writable):
            raise ConfigError("the pipe goes one way only, and acknowledgements go the other: multiprocessing.Pipe()")
        with cls._finding:
            found = cls._all.get(pipe)
            if found is None:
                found = cls._all[pipe] = cls(pipe)
            return found

    @classmethod
    def forget(cls) -> None:
        """Replace a lock that one of the parent's threads may hold."""
        cls._finding = threading.Lock()

    # -- writing ------------------------------------------------------------------------------------------------------

    async def send(self, message: tuple[Any, str], timeout: float | None) -> None:
        """Send a message; return once it is written. After a cancellation, the message is not sent, unless part of it
        already was; in that case, later messages wait until it has been read.

        Raises:
            DeadlineExceeded: the other side has not read the message within ``timeout`` seconds.
            PeerLost: the other side has exited.
        """
        writing = self._writer.call(self._pipe.send_bytes, pickle.dumps(message, protocol=5))
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wrap_future(writing)
        except TimeoutError:
            raise DeadlineExceeded(f"the other end of the pipe has not read within {timeout:g} s") from None
        except OSError as error:
            raise _gone(error) from error

    def post(self, notice: Notice, text: str) -> bool:
        """Send a notice if there is room for it now. A notice is short enough to be written in one piece, so its first
        bytes identify it.

        Raises:
            PeerLost: the other side has exited.
        """
        if not self._polls(select.POLLOUT):
            return False
        body = _NOTICE_MARK + pickle.dumps(((notice.model_id, notice), text), protocol=5)[2:]
        try:
            self._pipe._send(_framed(body))
        except OSError as error:
            raise _gone(error) from error
        return True

    def is_all_read(self) -> bool:
        """True if the other side has read everything."""
        unread = array.array("i", [0])
        fcntl.ioctl(self._pipe.fileno(), termios.TIOCOUTQ, unread)
        return not unread[0]

    # -- reading ------------------------------------------------------------------------------------------------------

    async def receive(self, timeout: float | None) -> tuple[Any, str] | None:
        """Return the next message; None after ``timeout`` seconds.

        Raises:
            PeerLost: the other side has exited.
        """
        if self._kept:
            return self._kept.pop(0)
        if not await self.wait(timeout):
            return None
        # Receive in a thread, which may block until the rest of the message arrives.
        taking = asyncio.wrap_future(self._reader.call(self._pipe.recv))
        try:
            message: tuple[Any, str] = await outlast(taking)
        except EOFError:
            raise PeerLost("the other end of the pipe is closed") from None
        except asyncio.CancelledError:
            if taking.exception() is None:
                self._kept.append(taking.result())
            raise
        return message

    def take_notice(self, model_id: str) -> Notice | None:
        """Take all notices at the head of the pipe; return a model's last notice, and keep other models' notices.

        Raises:
            PeerLost: the other side has exited without leaving a notice.
        """
        with self._taking:
            try:
                while self._peek(_LENGTH.size + len(_NOTICE_MARK))[_LENGTH.size :] == _NOTICE_MARK:
                    (name, notice), _ = self._pipe.recv()
                    self.notices[name] = notice
            except PeerLost:
                if model_id not in self.notices:
                    raise
            return self.notices.pop(model_id, None)

    def take(self, message: tuple[Any, str]) -> bool:
        """Take the next message if it is equal to this one, as ``Connection.send`` would write it.

        Raises:
            PeerLost: the other side has exited.
        """
        whole = _framed(pickle.dumps(message))
        with self._taking:
            is_next = self._peek(len(whole)) == whole
            if is_next:
                self._pipe.recv()
        return is_next

    def check(self) -> None:
        """Raise an error if the other end is closed.

        Raises:
            PeerLost: the other end is closed in all processes, even if unread messages remain.
        """
        if self._polls(0):
            raise PeerLost("its end of the pipe is closed")

    async def wait(self, timeout: float | None) -> bool:
        """Wait until a message arrives or the other end closes; return False after ``timeout`` seconds."""
        changed = asyncio.Event()

        def look() -> bool:
            changed.set()
            return True

        stop = self.watch(look)
        try:
            async with asyncio.timeout(timeout):
                while not self._polls(select.POLLIN):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return False
        finally:
            stop()
        return True

    def watch(self, look: Callable[[], bool]) -> Callable[[], None]:
        """Call ``look`` on the running loop whenever data arrives or room is freed, until it returns False; other
        users' unread messages do not count. Return a function that stops the calls."""
        loop, changes = asyncio.get_running_loop(), select.epoll()
        changes.register(self._pipe.fileno(), select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)

        def changed() -> None:
            changes.poll(0)
            if not look():
                stop()

        def stop() -> None:
            if not changes.closed:
                loop.remove_reader(changes.fileno())
                changes.close()

        loop.add_reader(changes.fileno(), changed)
        return stop

    def _polls(self, event: int) -> bool:
        now = select.poll()
        now.register(self._pipe.fileno(), event)
        return bool(now.poll(0))

    def _peek(self, size: int) -> bytes:
        sock = socket.socket(fileno=self._pipe.fileno())
        try:
            sock.setblocking(True)  # ``socket.setdefaulttimeout`` would leave the pipe non-blocking for all its users
            head = sock.recv(size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise _gone(error) from error
        finally:
            sock.detach()
        if not head:
            raise PeerLost("the other end of the pipe is closed")
        return head


def _framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def _gone(error: OSError) -> PeerLost:
    return PeerLost(f"the other end of the pipe is gone: {error.strerror or error}")


os.register_at_fork(after_in_child=PipeMail.forget)

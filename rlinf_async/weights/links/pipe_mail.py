"""Messages over one end of a ``multiprocessing.Pipe`` that others use too: what is not meant for us stays in it."""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import pickle
import select
import socket
import struct
import sys
import termios
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rlinf_async.errors import ConfigError, DeadlineExceeded, PeerLost
from rlinf_async.weights.links.socket_link import Notice
from rlinf_async.weights.waiting.aside import Aside
from rlinf_async.weights.waiting.beside import Beside

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_LENGTH: Final = struct.Struct("!i")

_MARK: Final = b"\x80\x05N0N0"
"""The beginning of our own pickles: None is pushed and popped twice, which changes nothing; other pickles lack it."""

_NOTICE_MARK: Final = _MARK + b"N0"
"""The beginning of a notice."""

_LOOKED_AT_BYTES: Final = 65536
"""Bytes; a longer message without the mark is not ours."""

_LONGEST_BYTES: Final = 0x7FFFFFFF
"""Bytes of a message whose length ``Connection`` writes as one number."""

_WHOLE_BYTES: Final = 16384
"""Bytes of a message that a pipe with room for anything takes whole, and ``Connection`` writes at once."""

_ENDING: Final = b"\x94\x86\x94."
"""End of a pickled pair, behind its second string."""


class _Shared:
    """What all that use one end of a pipe here have in common.

    Attributes:
        notices: by model, those that somebody has taken out who looked for another model's.
        writer: writes messages that the pipe may not take at once, in their order.
        unwritten: these messages.
        taking: held by one that looks for a notice until it has taken it.
        writing: held while a message is written, by whomever.
    """

    _all: ClassVar[weakref.WeakKeyDictionary[Any, _Shared]] = weakref.WeakKeyDictionary()
    _finding: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, pipe: Any) -> None:
        self._reset()
        # Connection writes a long message in several steps, between which a notice could come in another thread.
        # tests/weights/links/test_pipe_mail.py::test_what_others_send_meanwhile_is_not_cut_and_cuts_nothing
        plain, reference = type(pipe)._send_bytes, weakref.ref(pipe)

        def send_bytes(message: Any) -> None:
            with self.writing:
                plain(reference(), message)

        pipe._send_bytes = send_bytes

    def _reset(self) -> None:
        self.notices: dict[str, Notice] = {}
        self.writer = Beside("weights into a pipe")
        self.unwritten: set[Any] = set()
        self.taking = threading.Lock()
        self.writing = threading.RLock()

    @classmethod
    def of(cls, pipe: Connection[Any, Any]) -> _Shared:
        with cls._finding:
            found = cls._all.get(pipe)
            if found is None:
                found = cls._all[pipe] = cls(pipe)
            return found

    @classmethod
    def forget(cls) -> None:
        """In a forked process, without the threads that hold locks or write."""
        cls._finding = threading.Lock()
        for shared in cls._all.values():
            shared._reset()

    def write(self, pipe: Connection[Any, Any], body: bytes) -> Future[Any]:
        """Has it written after all others."""
        writing = self.writer.submit(self._write, pipe, body)
        self.unwritten.add(writing)
        writing.add_done_callback(self.unwritten.discard)
        return writing

    def _write(self, pipe: Any, body: bytes) -> None:
        """As ``Connection`` does, but the mark leaves with the length: where that has come, it is seen whose it is."""
        size = len(body)
        with self.writing:
            pipe._send((_LENGTH.pack(size) if size <= _LONGEST_BYTES else struct.pack("!iQ", -1, size)) + body)


class PipeMail:
    """Pickled messages ``(data, text)``, as ``Connection.send`` and ``recv`` know them, without blocking a loop.

    Raises:
        ConfigError: the pipe goes one way only.
    """

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        if not (pipe.readable and pipe.writable):
            raise ConfigError("the pipe goes one way only, and acknowledgements go the other: multiprocessing.Pipe()")
        self._pipe = pipe
        self._shared = _Shared.of(pipe)
        self._aside = Aside("weights from a pipe")

    def close(self) -> None:
        self._aside.close()

    # -- writing ------------------------------------------------------------------------------------------------------

    async def send(self, message: tuple[Any, str], timeout: float | None) -> None:
        """Sends one; ends when it is written.  Given up, it does not leave, unless its beginning has left: then the
        others wait until it is read.

        Raises:
            DeadlineExceeded: the other side has not read it within ``timeout`` seconds.
            PeerLost: it is gone.
        """
        body = _MARK + pickle.dumps(message, protocol=5)[2:]
        if self._write_at_once(body):
            return
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wrap_future(self._shared.write(self._pipe, body))
        except TimeoutError:
            raise DeadlineExceeded(f"the other end of the pipe has not read within {timeout:g} s") from None
        except OSError as error:
            raise PeerLost(f"the other end of the pipe is gone: {error.strerror or error}") from error

    def post(self, notice: Notice, text: str) -> bool:
        """Sends a notice, if there is room for it now.

        Raises:
            PeerLost: the other side is gone.
        """
        message = (notice.model_id, notice), text
        return self._write_at_once(_NOTICE_MARK + pickle.dumps(message, protocol=5)[2:])

    def _write_at_once(self, body: bytes) -> bool:
        """Whether it is written, or will be: it was short, and nothing waited before it."""
        shared, room = self._shared, select.poll()
        room.register(self._pipe.fileno(), select.POLLOUT)
        if len(body) > _WHOLE_BYTES or shared.unwritten or not room.poll(0):
            return False
        if not shared.writing.acquire(blocking=False):
            shared.write(self._pipe, body)  # behind what another thread is writing
            return True
        try:
            self._pipe.send_bytes(body)
        except OSError as error:
            raise PeerLost(f"the other end of the pipe is gone: {error.strerror or error}") from error
        finally:
            shared.writing.release()
        return True

    def is_all_read(self) -> bool:
        """Whether the other side has read all that was written here."""
        unread = array.array("i", [0])
        fcntl.ioctl(self._pipe.fileno(), termios.TIOCOUTQ, unread)
        return not unread[0]

    # -- reading ------------------------------------------------------------------------------------------------------

    async def receive(self, timeout: float | None, text: str, *, bare: bool = False) -> tuple[Any, str] | None:
        """The next message, if that is its text, or ``bare`` and it carries nothing but a text; any other stays in the
        pipe.

        Returns:
            The message; None where there is none within ``timeout`` seconds, or another one comes first.

        Raises:
            PeerLost: the other side is gone.
        """
        if not await self.wait(timeout) or not self._is_ours(text, bare):
            return None
        message: tuple[Any, str]
        if self._is_whole():
            message = self._pipe.recv()
        else:  # which waits in the middle of it for the rest
            message = await self._aside.do(self._pipe.recv, nbytes=sys.maxsize)
        return message

    def take_notice(self, model_id: str) -> tuple[Notice | None, list[Notice]]:
        """Takes all notices that come next out of the pipe.

        Returns:
            The last one of a model, and those of others, which are kept for them.

        Raises:
            PeerLost: the other side is gone, and has left none.
        """
        notices = self._shared.notices
        with self._shared.taking:
            try:
                while self._peek(_LENGTH.size + len(_NOTICE_MARK))[_LENGTH.size :] == _NOTICE_MARK:
                    (name, notice), _ = self._pipe.recv()
                    notices[name] = notice
            except PeerLost:
                if model_id not in notices:
                    raise
            return notices.pop(model_id, None), list(notices.values())

    def take(self, message: tuple[Any, str]) -> bool:
        """Takes exactly this one, as ``Connection.send`` writes it, if it comes next.

        Raises:
            PeerLost: the other side is gone.
        """
        body = pickle.dumps(message)
        is_next = self._peek(_LENGTH.size + len(body)) == _LENGTH.pack(len(body)) + body
        if is_next:
            self._pipe.recv()
        return is_next

    def check(self) -> None:
        """
        Raises:
            PeerLost: nobody has the other end any more, whatever is left to be read.
        """
        hung_up = select.poll()
        hung_up.register(self._pipe.fileno(), 0)
        if hung_up.poll(0):
            raise PeerLost("its end of the pipe is closed")

    async def wait(self, timeout: float | None) -> bool:
        """Whether something is there to be read within ``timeout`` seconds, or the other side is gone."""
        end = None if timeout is None else time.monotonic() + timeout
        return await _readable(self._pipe.fileno(), end)

    def watch(self, look: Callable[[], bool]) -> Callable[[], None]:
        """Has it called, on the loop that runs here, whenever something comes, or there is room again, until it says
        that it has seen enough; messages of others that lie there wake nobody.  Returns what ends that sooner."""
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

    def _is_ours(self, text: str, bare: bool) -> bool:
        whole = self._peek(_LENGTH.size + _LOOKED_AT_BYTES)
        if len(whole) < _LENGTH.size + len(_NOTICE_MARK):
            return False
        (length,) = _LENGTH.unpack_from(whole)
        body = whole[_LENGTH.size :][: max(0, length)]
        if body.startswith(_MARK):
            return not body.startswith(_NOTICE_MARK)
        is_bare = bare and body[11:12] == b"N"
        return len(body) == length and (is_bare or body.endswith(text.encode() + _ENDING))

    def _is_whole(self) -> bool:
        """Whether the next message has come to its end; of long ones that is not asked."""
        there = self._peek(_LENGTH.size + _LOOKED_AT_BYTES)
        (length,) = _LENGTH.unpack_from(there)
        is_whole: bool = 0 <= length <= len(there) - _LENGTH.size
        return is_whole

    def _peek(self, size: int) -> bytes:
        with socket.socket(fileno=os.dup(self._pipe.fileno())) as sock:
            try:
                head = sock.recv(size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return b""
            except OSError as error:
                raise PeerLost(f"the other end of the pipe is gone: {error.strerror}") from error
        if not head:
            raise PeerLost("the other end of the pipe is closed")
        return head


async def _readable(fd: int, end: float | None) -> bool:
    """Whether it has become so before ``end``."""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    if waiting.poll(0):
        return True
    remaining = None if end is None else end - time.monotonic()
    if remaining is not None and remaining <= 0:
        return False
    loop = asyncio.get_running_loop()
    changed = loop.create_future()
    own = os.dup(fd)  # the loop watches a file once
    loop.add_reader(own, lambda: None if changed.done() else changed.set_result(None))
    try:
        async with asyncio.timeout(remaining):
            await changed
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(own)
        os.close(own)
    return True


os.register_at_fork(after_in_child=_Shared.forget)

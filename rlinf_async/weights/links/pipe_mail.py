"""Messages over one end of a ``multiprocessing.Pipe`` that others use too: what is not meant for us stays in it."""

from __future__ import annotations

import asyncio
import os
import pickle
import select
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from rlinf_async.errors import ConfigError, PeerLost
from rlinf_async.weights.links.outbox import Outbox
from rlinf_async.weights.waiting.aside import Aside

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_LENGTH: Final = struct.Struct("!i")
_PICKLE: Final = 0x80
"""The first byte of what ``Connection.send`` sends; a word of a link begins with another one."""

_MARK: Final = b"\x80\x05N0N0"
"""How our own pickles begin: None is pushed and popped twice, which changes nothing, and nobody else does."""

_LOOKED_AT: Final = 65536
"""Bytes; a longer message without the mark is not ours."""

_HELD: Final = 1 << 20
"""Bytes; a pipe holds fewer."""

_ENDING: Final = b"\x94\x86\x94."
"""What follows the second string of a pickled pair."""


class PipeMail:
    """Reads and writes pickled messages ``(data, text)``, as ``Connection.send`` and ``recv`` do, without blocking a
    loop, and with deadlines; to be closed once nothing more is sent.

    Raises:
        ConfigError: the pipe goes one way only.
    """

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        if not (pipe.readable and pipe.writable):
            raise ConfigError("the pipe goes one way only, and acknowledgements go the other: multiprocessing.Pipe()")
        self._pipe = pipe
        self._aside = Aside("weights from a pipe")
        self._joined: int | None = None
        """The process in which the outbox counts on us; one that is forked has an outbox of its own."""

    async def send(self, message: tuple[Any, str], timeout: float | None) -> None:
        """
        Raises:
            DeadlineExceeded: the other side does not read.
            PeerLost: it is gone, or only half of what was sent before has reached it.
        """
        body = _MARK + pickle.dumps(message, protocol=5)[2:]
        outbox = Outbox.of(self._pipe)
        if self._joined != os.getpid():  # until it is closed: a message that is half read then must not be given up
            self._joined = os.getpid()
            outbox.join()
        await outbox.send(body, timeout)

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
        if self.is_here():
            message = self._pipe.recv()
        else:  # which waits in the middle of it for the rest
            message = await self._aside.do(self._pipe.recv, nbytes=sys.maxsize)
        return message

    def close(self) -> None:
        joined, self._joined = self._joined, None
        if joined == os.getpid():
            Outbox.of(self._pipe).leave()
        self._aside.close()

    async def wait(self, timeout: float | None) -> bool:
        """Whether something is there to be read within ``timeout`` seconds, or the other side is gone."""
        end = None if timeout is None else time.monotonic() + timeout
        return await _readable(self._pipe.fileno(), end)

    def speaks_words(self) -> bool:
        """Whether what comes next is a word of a link."""
        head = self._peek(_LENGTH.size + 1)
        return len(head) > _LENGTH.size and head[_LENGTH.size] != _PICKLE

    def words_there(self) -> list[bytes]:
        """The messages with words of links that are in the pipe by now; they stay in it."""
        found, rest = [], memoryview(self._peek(_HELD))
        while len(rest) > _LENGTH.size:
            (length,) = _LENGTH.unpack_from(rest)
            message, rest = rest[_LENGTH.size :][: max(0, length)], rest[_LENGTH.size + max(0, length) :]
            if not 0 < length == len(message):
                break
            if message[0] != _PICKLE:
                found.append(bytes(message))
        return found

    def is_here(self) -> bool:
        """Whether the next message has come to its end; of long ones that is not asked."""
        whole = self._peek(_LENGTH.size + _LOOKED_AT)
        (length,) = _LENGTH.unpack_from(whole)
        is_here: bool = 0 <= length <= len(whole) - _LENGTH.size
        return is_here

    def _is_ours(self, text: str, bare: bool) -> bool:
        body = self._peek(_LENGTH.size + len(_MARK))[_LENGTH.size :]
        if body == _MARK:
            return True
        whole = self._peek(_LENGTH.size + _LOOKED_AT)
        if len(whole) < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack_from(whole)
        body = whole[_LENGTH.size :][: max(0, length)]
        is_bare = bare and body[11:12] == b"N"
        is_ours: bool = len(body) == length and (is_bare or body.endswith(text.encode() + _ENDING))
        return is_ours

    def _peek(self, size: int) -> bytes:
        with self._socket() as sock:
            try:
                head = sock.recv(size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return b""
            except OSError as error:
                raise PeerLost(f"the other end of the pipe is gone: {error.strerror}") from error
        if not head:
            raise PeerLost("the other end of the pipe is closed")
        return head

    def _socket(self) -> socket.socket:
        return socket.socket(fileno=os.dup(self._pipe.fileno()))


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

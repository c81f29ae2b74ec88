"""What leaves by one end of a ``multiprocessing.Pipe``: in order, whole, and without anybody waiting for the reader.

What the pipe does not take at once waits here, and a thread writes it that ends when nothing waits any more.  Others
of this process may send over the same pipe: nothing comes into the middle of a message, theirs or ours.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rlinf_async.errors import DeadlineExceeded, PeerLost, TransferFailed
from rlinf_async.weights.links.pieces import pieces_of
from rlinf_async.work import Work

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ROOM: Final = 64 << 20
"""Bytes that wait for a reader at most; with that many there, no further word is taken."""

_PATIENCE: Final = 1.0
"""Seconds that the other side has, once nobody here uses the pipe any more, to read what it was told."""

_GIVEN_UP: Final = "it did not read a message to its end, which was given up when nobody here used the pipe any more"

_LONGEST: Final = 0x7FFFFFFF
"""Bytes of a message whose length ``Connection`` writes as one number."""


class _Frame:
    """A message with its length before it, as ``Connection`` sends it.

    Attributes:
        rest: what has not been written.
        sent: settled when nothing is left of it, or will not be written.
    """

    def __init__(self, message: bytes) -> None:
        size = len(message)
        header = struct.pack("!i", size) if size <= _LONGEST else struct.pack("!iQ", -1, size)
        self.rest = memoryview(header + message)
        self.is_begun = False
        self.sent: Work[None] = Work()


class Outbox:
    """Of one end of a pipe; ``of`` finds it.  For any thread; its own is there only while something waits."""

    _all: ClassVar[weakref.WeakKeyDictionary[Any, Outbox]] = weakref.WeakKeyDictionary()
    _finding = threading.Lock()

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = weakref.ref(pipe)
        self._cut: str | None = None
        """Why the rest of a message whose beginning the other side has will never come: nothing can follow it."""
        self._reset()
        self._guard(pipe)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        """Held while a message is half written, by whomever."""
        self._has_turn = False
        self._waiting: deque[_Frame] = deque()
        self._nbytes = 0
        self._users = 0
        self._end: float | None = None
        """When what waits is given up."""
        self._open: tuple[socket.socket, int] | None = None
        """What the thread works with: the pipe, and what wakes it."""

    @classmethod
    def of(cls, pipe: Connection[Any, Any]) -> Outbox:
        with cls._finding:
            outbox = cls._all.get(pipe)
            if outbox is None:
                outbox = cls._all[pipe] = cls(pipe)
            return outbox

    def _guard(self, pipe: Any) -> None:
        """Whoever else sends over the pipe waits until a message of ours is whole, and we until theirs is.

        ``Connection`` writes long messages in several steps, between which the thread could come.
        """
        plain = type(pipe)._send_bytes
        reference = self._pipe

        def send_bytes(message: Any) -> None:
            with self._turn:
                self._check_whole("the other end of the pipe")
                plain(reference(), message)
            self._look()

        pipe._send_bytes = send_bytes

    def say(self, value: Any, label: str) -> None:
        """Sends plain data, in pieces that ``Joining`` puts together.

        Raises:
            PeerLost: the other side is gone, or the pipe is cut.
            TransferFailed: ``ROOM`` is used up.
        """
        if self._nbytes > ROOM:
            raise TransferFailed(f"{label} does not read what it is sent: the pipe is full, and {ROOM >> 20} MiB wait")
        try:
            self._put(map(_Frame, pieces_of(value)), label)
        except OSError as error:
            raise PeerLost(f"{label} is gone: {error.strerror or error}") from error

    async def send(self, message: bytes, timeout: float | None) -> None:
        """Sends one message; ends when it is written.

        Given up, it does not leave, unless its beginning has left: then it stays to be finished.

        Raises:
            DeadlineExceeded: the other side has not read it within ``timeout`` seconds.
            PeerLost: it is gone, or the pipe is cut.
        """
        frame = _Frame(message)
        try:
            self._put([frame], "the other end of the pipe")
            await frame.sent.async_wait(timeout)
        except DeadlineExceeded:
            raise DeadlineExceeded(f"the other end of the pipe has not read within {timeout:g} s") from None
        except OSError as error:
            raise PeerLost(f"the other end of the pipe is gone: {error.strerror or error}") from error
        finally:
            self._withdraw(frame)

    def _withdraw(self, frame: _Frame) -> None:
        with self._lock:
            if not frame.is_begun and frame in self._waiting:
                self._waiting.remove(frame)
                self._nbytes -= len(frame.rest)
                self._ring()

    def join(self) -> None:
        """Somebody sends by it until they ``leave``."""
        with self._lock:
            self._users += 1
            self._end = None

    def leave(self) -> None:
        """With the last one gone, what waits has ``_PATIENCE`` to leave, which nobody waits for.

        A message that is half written by then cuts the pipe: nobody of this process can send over it any more.
        """
        with self._lock:
            self._users -= 1
            if not self._users:
                self._end = time.monotonic() + _PATIENCE
                self._ring()

    def _check_whole(self, label: str) -> None:
        if self._cut is not None:
            raise PeerLost(f"{label} cannot be reached: {self._cut}")

    def _put(self, frames: Iterable[_Frame], label: str) -> None:
        written: list[_Frame] = []
        with self._lock:
            self._check_whole(label)
            for frame in frames:
                self._waiting.append(frame)
                self._nbytes += len(frame.rest)
            if self._open is None:
                pipe = self._socket()
                try:
                    self._write(pipe, written)
                except OSError as error:
                    self._drop(f"the pipe is broken: {error.strerror}")
                    raise
                finally:
                    if self._waiting:
                        self._begin(pipe)
                    else:
                        pipe.close()
        for frame in written:
            frame.sent._settle()

    def _socket(self) -> socket.socket:
        pipe = self._pipe()
        assert pipe is not None
        return socket.socket(fileno=os.dup(pipe.fileno()))

    def _write(self, pipe: socket.socket, written: list[_Frame]) -> bool:
        """As much as goes at once; whether the pipe is full then, and nobody else's message half written."""
        while self._waiting:
            if not self._has_turn:
                if not self._turn.acquire(blocking=False):
                    return False
                self._has_turn = True
            frame = self._waiting[0]
            try:
                count = pipe.send(frame.rest, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if not frame.is_begun:
                    self._pass_turn()
                return True
            frame.is_begun = True
            frame.rest = frame.rest[count:]
            self._nbytes -= count
            if not frame.rest:
                written.append(self._waiting.popleft())
                self._pass_turn()
        return True

    def _pass_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._turn.release()

    def _drop(self, why: str) -> list[_Frame]:
        dropped = list(self._waiting)
        if any(frame.is_begun for frame in dropped):
            self._cut = why
        self._waiting.clear()
        self._nbytes = 0
        self._pass_turn()
        return dropped

    # -- the thread ---------------------------------------------------------------------------------------------

    def _begin(self, pipe: socket.socket) -> None:
        self._open = pipe, os.eventfd(0)
        threading.Thread(target=self._run, args=self._open, name="words into a pipe", daemon=True).start()

    def _look(self) -> None:
        """It is nobody else's turn any more."""
        with self._lock:
            self._ring()

    def _ring(self) -> None:
        if self._open is not None:
            os.eventfd_write(self._open[1], 1)

    def _run(self, pipe: socket.socket, bell: int) -> None:
        while True:
            written: list[_Frame] = []
            dropped: list[_Frame] = []
            error: Exception = PeerLost(f"the other end of the pipe cannot be reached: {_GIVEN_UP}")
            remaining, is_full = None, False
            with self._lock:
                if self._end is not None:
                    remaining = self._end - time.monotonic()
                try:
                    is_full = self._write(pipe, written)
                except OSError as lost:
                    error = PeerLost(f"the other end of the pipe is gone: {lost.strerror}")
                    dropped = self._drop(f"the pipe is broken: {lost.strerror}")
                if remaining is not None and remaining <= 0:
                    dropped += self._drop(_GIVEN_UP)
                has_ended = not self._waiting
                if has_ended:
                    self._open = None
                    pipe.close()
                    os.close(bell)
            for frame in written:
                frame.sent._settle()
            for frame in dropped:
                frame.sent._settle(error=error)
            if has_ended:
                return
            _wait(pipe, bell, remaining, is_full=is_full)

    # -- after a fork -------------------------------------------------------------------------------------------

    @classmethod
    def forget(cls) -> None:
        """In a process that was forked: what waits is its parent's to write."""
        cls._finding = threading.Lock()
        for outbox in list(cls._all.values()):
            if outbox._open is not None:
                pipe, bell = outbox._open
                pipe.close()
                os.close(bell)
            outbox._reset()


def _wait(pipe: socket.socket, bell: int, seconds: float | None, *, is_full: bool) -> None:
    """Until there is room again in a pipe that is full, or the bell rings."""
    waiting = select.poll()
    waiting.register(bell, select.POLLIN)
    if is_full:
        waiting.register(pipe, select.POLLOUT)
    for fd, _ in waiting.poll(None if seconds is None else seconds * 1000):
        if fd == bell:
            os.eventfd_read(bell)


os.register_at_fork(after_in_child=Outbox.forget)

"""Links over a pipe that others use too: one for each model, and whatever else its owner sends over it.

One thread reads the words of all links of a pipe.  It looks before it reads: what is no word stays in the pipe for
whoever calls ``recv``, and words behind that wait until it has been taken.  Nobody waits until the other side reads.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rlinf_async.errors import PeerLost, TransferFailed
from rlinf_async.weights.links.link import Link, Words
from rlinf_async.weights.links.outbox import Outbox
from rlinf_async.weights.links.pieces import Joining
from rlinf_async.weights.links.pipe_mail import PipeMail
from rlinf_async.weights.waiting.wake import Wake

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_CLOSE: Final = b"\0"
_LOOK: Final = b"\1"
_PATIENCE: Final = 1.0
"""Seconds that the other side, stopped in the middle of a word, can hold up the closing of the last link."""


class SharedPipeLink(Link):
    """One model's words over a pipe; closing it says good-bye and leaves the pipe open.

    Args:
        pipe: one end of a ``multiprocessing.Pipe`` that goes both ways.
        name: the model's, the same at both ends.
    """

    def __init__(self, pipe: Connection[Any, Any], name: str) -> None:
        super().__init__(f"the process at the other end of the pipe for '{name}'")
        self._name = name
        self._line: _Line | None = _Line.of(pipe)
        self._line.join(name, self)
        self.opened._settle()

    def look(self) -> None:
        """Somebody may have taken a message out of the pipe."""
        if self._line is not None:
            self._line.look()

    def _send(self, words: Words) -> None:
        if self._line is not None:
            self._line.say(self._name, words)

    def _close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.leave(self._name)


class _Line:
    """A pipe with its links, and the thread that reads for them."""

    _lines: ClassVar[weakref.WeakKeyDictionary[Any, _Line]] = weakref.WeakKeyDictionary()
    _lock = threading.RLock()

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe
        self._mail = PipeMail(pipe)
        self._links: dict[str, SharedPipeLink] = {}
        self._early: dict[str, deque[Words | None]] = {}
        """Words for models that nobody here has asked for yet."""
        self._error: Exception | None = None
        self._outbox = Outbox.of(pipe)
        self._outbox.join()
        self._joining = Joining()
        self._wake = Wake()
        self._thread = threading.Thread(target=self._run, name="weights from a pipe", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, pipe: Connection[Any, Any]) -> _Line:
        with cls._lock:
            line = cls._lines.get(pipe)
            if line is None:
                line = cls._lines[pipe] = cls(pipe)
            return line

    def join(self, name: str, link: SharedPipeLink) -> None:
        with self._lock:
            self._links[name] = link
            for words in self._early.pop(name, ()):
                self._hand(link, words)
            if self._error is not None:
                link._end(self._error)

    def leave(self, name: str) -> None:
        """The last one to leave ends the thread."""
        try:
            self.say(name, None)
        except (PeerLost, TransferFailed):
            pass  # it knows, or never will
        with self._lock:
            self._links.pop(name, None)
            if self._links:
                return
            self._lines.pop(self._pipe, None)
        self._outbox.leave()
        self._wake.write(_CLOSE)
        self._wake.leave(self._thread, _PATIENCE)

    def look(self) -> None:
        self._wake.write(_LOOK)

    def say(self, name: str, words: Words | None) -> None:
        self._outbox.say([name, words], "the other end of the pipe")

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._read()
        finally:
            self._wake.ended()

    def _read(self) -> None:
        with select.epoll() as waiting:
            waiting.register(self._wake.fd, select.EPOLLIN)
            waiting.register(self._pipe.fileno(), select.EPOLLIN | select.EPOLLET)
            error = self._take_all()
            while error is None:
                for fd, _ in waiting.poll():
                    if fd == self._wake.fd and _CLOSE in os.read(fd, 4096):
                        return
                error = self._take_all()
            with self._lock:
                self._error = error
                links = list(self._links.values())
            for link in links:
                link._end(error)

    def _take_all(self) -> Exception | None:
        """All words up to the first message of somebody else; why there will be no more."""
        try:
            while self._mail.speaks_words():
                for name, words in self._joining.take(self._pipe.recv_bytes()):
                    self._deliver(name, words)
        except (EOFError, OSError, PeerLost):
            return PeerLost("the other end of the pipe is closed")
        except (ValueError, TypeError) as error:
            return TransferFailed(f"what has come over the pipe is no word of a link: {error}")
        return None

    def _deliver(self, name: str, words: Words | None) -> None:
        with self._lock:
            link = self._links.get(name)
            if link is None:
                self._early.setdefault(name, deque()).append(words)
                return
        self._hand(link, words)

    def _hand(self, link: SharedPipeLink, words: Words | None) -> None:
        if words is None:
            link._end(PeerLost(f"{link.label} has closed its end of the link"))
        else:
            link._arrive(words)

    @classmethod
    def forget(cls) -> None:
        """In a process that was forked: the threads are its parent's."""
        cls._lines = weakref.WeakKeyDictionary()
        cls._lock = threading.RLock()


os.register_at_fork(after_in_child=_Line.forget)

"""Who reads a pipe for all the links over it.

One thread reads the words of all links of a pipe.  It looks before it reads: what is no word stays in the pipe for
whoever calls ``recv``, and words behind that wait until it has been taken.

Every word says which link it comes from, and which one of this side it is for, once that is known.  What was meant for
one that is closed is heard by nobody, nor is what was said by one that was closed before anybody here listened; what is
said after a good-bye is kept for the next link of that name.  So both sides may close their links and make new ones, in
any order.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from rlinf_async.errors import ClosedError, PeerLost, TransferFailed
from rlinf_async.weights.links.link import Words
from rlinf_async.weights.links.outbox import Outbox
from rlinf_async.weights.links.pieces import Joining, whole
from rlinf_async.weights.links.pipe_mail import PipeMail

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from rlinf_async.weights.links.shared_pipe_link import SharedPipeLink

_PATIENCE: Final = 1.0
"""Seconds that the other side, stopped in the middle of a word, can hold up the closing of the last link."""


class _Said(NamedTuple):
    source: bytes
    target: bytes | None
    """The link that it is for, if the other side has heard that one."""
    words: Words | None
    """None: good-bye."""


class _Lost(NamedTuple):
    """Why nothing more will come."""

    kind: type[PeerLost] | type[TransferFailed]
    text: str

    def to(self, label: str) -> Exception:
        return self.kind(self.text.format(label=label))


class PipeLine:
    """A pipe with its links; ``of`` finds it.  The thread is there as long as one of them is."""

    _lines: ClassVar[weakref.WeakKeyDictionary[Any, PipeLine]] = weakref.WeakKeyDictionary()
    _lock = threading.RLock()

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._links: dict[str, SharedPipeLink] = {}
        self._kept: dict[str, deque[_Said]] = {}
        """Words that no link has taken yet: nobody here has asked for that model, or not again."""
        self._lost: _Lost | None = None
        self._outbox = Outbox.of(pipe)
        self._joining = Joining()
        self._reading: _Reading | None = None
        self._thread: threading.Thread | None = None
        """The last one that was started."""
        self._is_ours = True

    @classmethod
    def of(cls, pipe: Connection[Any, Any]) -> PipeLine:
        with cls._lock:
            line = cls._lines.get(pipe)
            if line is None:
                line = cls._lines[pipe] = cls(pipe)
            return line

    @classmethod
    def has_news(cls, pipe: Connection[Any, Any]) -> bool:
        """Whether words for a model have been read from the pipe for which there is no link here."""
        with cls._lock:
            line = cls._lines.get(pipe)
            return line is not None and any(said and not line._is_open(name) for name, said in line._kept.items())

    def _is_open(self, name: str) -> bool:
        link = self._links.get(name)
        return link is not None and link.error is None

    def join(self, pipe: Connection[Any, Any], link: SharedPipeLink) -> None:
        """
        Raises:
            ConfigError: the pipe goes one way only.
        """
        with self._lock:
            reading = self._reading or _Reading(pipe)
            link.gone = self._gone(reading.mail, link.name)
            self._links[link.name] = link
            self._hand_out(link)
            if self._reading is None:
                self._begin(reading)
            elif self._lost is not None:
                link._end(self._lost.to(link.label))

    def _begin(self, reading: _Reading) -> None:
        self._reading = reading
        self._lost = None
        self._outbox.join()
        self._thread = threading.Thread(
            target=self._run, args=(reading, self._thread), name="weights from a pipe", daemon=True
        )
        self._thread.start()

    def _gone(self, mail: PipeMail, name: str) -> frozenset[bytes]:
        """The links over there whose good-bye has come already, while nobody here listened."""
        there = list(self._kept.get(name, ()))
        try:
            for message in mail.words_there():
                whose, *said = whole(message) or [None]
                if whose == name:
                    there.append(_Said(*said))
        except (OSError, PeerLost, ValueError, TypeError):
            pass  # the thread will find that too
        return frozenset(said.source for said in there if said.words is None)

    def leave(self, link: SharedPipeLink) -> None:
        """The last one to leave ends the thread."""
        with self._lock:
            if not self._is_ours:
                return
            if self._links.get(link.name) is link:
                del self._links[link.name]
            reading, thread = None, self._thread
            if not self._links:
                reading, self._reading = self._reading, None
        if link.has_spoken or link.other is not None:  # else nobody knows of it
            try:
                self.say(link, None)
            except (PeerLost, TransferFailed):
                pass  # it knows, or never will
        if reading is None or thread is None:
            return
        self._outbox.leave()
        with self._lock:
            reading.stop()
        if thread is not threading.current_thread():
            thread.join(_PATIENCE)

    def look(self) -> None:
        """Somebody may have taken a message out of the pipe."""
        with self._lock:
            if self._reading is not None:
                self._reading.ring()

    def say(self, link: SharedPipeLink, words: Words | None) -> None:
        if not self._is_ours:
            raise ClosedError(f"the link to {link.label} belongs to the process that forked this one")
        self._outbox.say([link.name, link.token, link.other, words], link.label)

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self, reading: _Reading, previous: threading.Thread | None) -> None:
        if previous is not None:
            previous.join()  # it may wait for the rest of a word
        try:
            lost = self._read(reading)
        finally:
            with self._lock:
                reading.close()
        if lost is not None:
            with self._lock:
                self._lost = lost
                links = list(self._links.values())
            for link in links:
                link._end(lost.to(link.label))

    def _read(self, reading: _Reading) -> _Lost | None:
        """Until nobody needs it any more, or there is nothing more to come."""
        try:
            reading.watch()
            while reading.is_wanted:
                self._take_all(reading)
                if reading.is_wanted:
                    reading.wait()
        except (EOFError, OSError, PeerLost):
            return _Lost(PeerLost, "{label} is gone: its end of the pipe is closed")
        except (ValueError, TypeError) as error:
            why = str(error).replace("{", "{{").replace("}", "}}")
            return _Lost(TransferFailed, f"what {{label}} sends is no word of a link: {why}")
        return None

    def _take_all(self, reading: _Reading) -> None:
        """All words up to the first message of somebody else."""
        while reading.is_wanted and reading.mail.speaks_words():
            # Whoever joins looks for good-byes: each has to be in the pipe still, or here.
            with self._lock if reading.mail.is_here() else contextlib.nullcontext():
                links = [self._keep(*words) for words in self._joining.take(reading.pipe.recv_bytes())]
            for link in links:
                if link is not None:
                    self._hand_out(link)

    def _keep(self, name: str, *words: Any) -> SharedPipeLink | None:
        """For the link, which is returned, or until there is one."""
        said = _Said(*words)
        with self._lock:
            link = self._links.get(name)
            if said.target is None or (link is not None and said.target == link.token):
                self._kept.setdefault(name, deque()).append(said)
            return link

    def _hand_out(self, link: SharedPipeLink) -> None:
        while (said := self._next(link)) is not None:
            if said.words is None:
                link._end(PeerLost(f"{link.label} has closed its end of the link"))
            else:
                link._arrive(said.words)

    def _next(self, link: SharedPipeLink) -> _Said | None:
        """What it has to hear now."""
        with self._lock:
            kept = self._kept.get(link.name)
            while kept and link.error is None and self._links.get(link.name) is link:
                said = kept[0]
                if said.target not in (None, link.token) or said.source in link.gone:
                    kept.popleft()
                elif said.words is None:
                    kept.popleft()
                    if said.target is not None or said.source == link.other:
                        return said
                elif link.other in (None, said.source):
                    link.other = said.source
                    return kept.popleft()
                else:  # for the next link here: the one over there has gone without a word
                    return _Said(said.source, None, None)
            if not kept:
                self._kept.pop(link.name, None)
            return None

    # -- after a fork -------------------------------------------------------------------------------------------

    @classmethod
    def forget(cls) -> None:
        """In a process that was forked: the threads are its parent's, and so are the links."""
        lines, cls._lines = list(cls._lines.values()), weakref.WeakKeyDictionary()
        cls._lock = threading.RLock()
        for line in lines:
            line._is_ours = False
            if line._reading is not None:
                line._reading.is_wanted = False
                line._reading.close()
            for link in line._links.values():
                link.leave_to_parent()


class _Reading:
    """What the thread works with, from the first link of the pipe to the last.

    Attributes:
        is_wanted: somebody still listens.
    """

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self.pipe = pipe
        self.mail = PipeMail(pipe)
        self.is_wanted = True
        self._bell: int | None = os.eventfd(0)
        self._waiting = select.epoll()

    def watch(self) -> None:
        assert self._bell is not None
        self._waiting.register(self._bell, select.EPOLLIN)
        self._waiting.register(self.pipe.fileno(), select.EPOLLIN | select.EPOLLET)

    def wait(self) -> None:
        """Until something more is in the pipe, or the bell has rung."""
        for fd, _ in self._waiting.poll():
            if fd == self._bell:
                os.eventfd_read(fd)

    def ring(self) -> None:
        if self._bell is not None:
            os.eventfd_write(self._bell, 1)

    def stop(self) -> None:
        self.is_wanted = False
        self.ring()

    def close(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            os.close(bell)
            self._waiting.close()


os.register_at_fork(after_in_child=PipeLine.forget)

"""``WorkerLink``: a link between two workers of a run, on a private stream separate from their other messages."""

from __future__ import annotations

import contextlib
import functools
import secrets
import weakref
from collections.abc import Callable
from typing import Any, Final

from rlinf_async._core.frames import node_of
from rlinf_async._messaging.landing import abandon_works
from rlinf_async._worker.context import require_client, require_exchange
from rlinf_async.errors import ClosedError
from rlinf_async.weights.links.weight_link import LinkMessage, WeightLink, no_match
from rlinf_async.weights.waiting.ownership import OwnerProcess
from rlinf_async.work import Work

_NAMES_LINE: Final = "names of weights"
"""Stream on which two workers exchange the names of their links."""

_names: dict[tuple[str, int], set[str]] = {}
"""Maps each other worker to the names of its current and past links to this worker, for errors."""


class LinkEnd:
    """The state of one end that outlives the link object: its works, and the connection to the other worker.

    Attributes:
        ids: this end's id, and the other end's id once known.
        works: unfinished works, in order.
    """

    def __init__(self, group: str, rank: int, name: str) -> None:
        self.member = (group, rank)
        self.line = f"weights {name}"
        self.exchange = require_exchange()
        self.ids: list[bytes | None] = [secrets.token_bytes(8), None]
        self.works: dict[Work[Any], None] = {}
        self.process = OwnerProcess()
        self._loop = require_client().loop

    def send(self, message: LinkMessage | None) -> None:
        self.exchange.send((*self.ids, message), *self.member, None, None, None, self.line)

    def leave(self) -> None:
        """Send a goodbye, and abandon unfinished works."""
        with contextlib.suppress(Exception):
            self.send(None)
        abandon_works(list(self.works))

    def drop(self) -> None:
        """Leave on the client's loop, because the garbage collector may call this under any lock."""
        if self.process.is_here:
            with contextlib.suppress(RuntimeError):  # the run has ended
                self._loop.call_soon_threadsafe(self.leave)


class WorkerLink(WeightLink):
    """A link that ends when the other worker ends, with the framework's error, such as ``WorkerDied``.

    Every message names its source link and, once known, its target link, so that a message for a closed link does not
    reach the next link of the same name. Waits for the other worker refer to the link weakly, so that a dropped link is
    closed.

    Args:
        group, rank: group and rank of the other worker.
        name: name of the stream, such as the model's name, the same at both ends.

    Raises:
        RuntimeError: this process is not a worker.
    """

    def __init__(self, group: str, rank: int, name: str) -> None:
        self._name = name
        self._here = here = LinkEnd(group, rank, name)
        super().__init__(f"rank {rank} of group '{group}'")
        self.address = [group, rank]
        self._finalizer = weakref.finalize(self, here.drop)
        self._finalizer.atexit = False
        self._begin(here.exchange.send(name, group, rank, None, None, None, _NAMES_LINE))
        self._begin(here.exchange.locate(group, rank, None), WorkerLink._located)
        self._listen(_NAMES_LINE, WorkerLink._note_name)
        self._listen(here.line, WorkerLink._take)

    @property
    def mismatch(self) -> str:
        """Text that lists the names of the other side's links to this worker, if none has this link's name."""
        names = _names.get(self._here.member, set()).copy()
        if not names or self._name in names:
            return ""
        return no_match("has weights of", sorted(names), self._name)

    @property
    def label(self) -> str:
        return self._label + self.mismatch

    @label.setter
    def label(self, label: str) -> None:
        self._label = label

    def _located(self, locating: Work[tuple[str, int]]) -> None:
        try:
            self.label, node = locating._result()
        except Exception as error:
            self.opened._settle(error=error)
            self._end(error)
            return
        self.node = None if node == node_of(require_client().endpoint) else node
        self.opened._settle()

    def _send(self, message: LinkMessage) -> None:
        self._here.send(message)

    def send_tensor(self, tensor: Any, line: int, receiver: Any = None) -> Work[None]:
        return self._begin(self._here.exchange.send_tensor(tensor, *self._bulk_line(line, receiver)))

    def receive_tensor(self, tensor: Any, line: int, sender: Any = None) -> Work[None]:
        return self._begin(self._here.exchange.recv_tensor(tensor, *self._bulk_line(line, sender), at_once=True))

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call the callback after ``seconds``."""
        require_client().later(seconds, callback)

    def _bulk_line(self, line: int, third: Any) -> tuple[Any, ...]:
        """Return the arguments of an exchange with the other side, or with a third end, which has no link name."""
        group, rank = third or self._here.member
        return group, rank, None, None, f"weights on line {line}" if third else f"{self._here.line} memory {line}"

    def _begin(self, work: Work[Any], then: Callable[[WorkerLink, Work[Any]], object] | None = None) -> Work[Any]:
        self._here.works[work] = None
        work._follow(functools.partial(_ended, weakref.ref(self), self._here.works, work, then))
        return work

    def _listen(self, line: str, take: Callable[[WorkerLink, Work[Any]], bool]) -> None:
        """Wait for the next message on a stream, after taking the messages that have already arrived."""
        while self.error is None:
            work = self._here.exchange.recv(*self._here.member, None, None, line)
            if not work.done():
                self._begin(work, functools.partial(_go_on, line, take))
                if self.error is not None:  # another thread, unaware of this wait, has closed the link
                    work._lose_interest()
                return
            if not take(self, work):
                return

    def _note_name(self, work: Work[Any]) -> bool:
        try:
            _names.setdefault(self._here.member, set()).add(work._result())
        except Exception:
            return False  # the other stream reports the error, too
        return True

    def _take(self, work: Work[Any]) -> bool:
        try:
            source, target, message = work._result()
        except Exception as error:
            _names.pop(self._here.member, None)
            self._end(error)
            return False
        mine, other = self._here.ids
        if target not in (None, mine):
            return True
        if message is None:
            if target is None and source != other:  # goodbye from an unknown end that knows of no link here
                return True
            self._end(ClosedError(f"{self.label} has closed its end of the link"))
            return False
        self._here.ids[1] = source
        self._arrive(message)
        return True

    def _end(self, error: Exception) -> None:
        if self._here.process.is_here:  # in a forked child, a thread of the parent may have held the lock
            super()._end(error)

    def _close(self) -> None:
        if self._finalizer.detach() is not None:
            self._here.leave()


def _go_on(line: str, take: Callable[[WorkerLink, Work[Any]], bool], link: WorkerLink, work: Work[Any]) -> None:
    if take(link, work):
        link._listen(line, take)


def _ended(
    link: weakref.ref[WorkerLink],
    works: dict[Work[Any], None],
    work: Work[Any],
    then: Callable[[WorkerLink, Work[Any]], object] | None,
) -> None:
    works.pop(work, None)
    there = link()
    if there is not None and then is not None:
        then(there, work)

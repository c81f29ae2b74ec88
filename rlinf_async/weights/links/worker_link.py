"""A link between two workers of a run, on a line of its own: what they send each other besides is not disturbed."""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable
from typing import Any

from rlinf_async._core.frames import node_of
from rlinf_async._worker.context import require_client, require_exchange
from rlinf_async.errors import ClosedError
from rlinf_async.weights.links.link import Link, Words
from rlinf_async.work import Work


class WorkerLink(Link):
    """Ends with the framework's word, ``WorkerDied`` for one, when the other worker ends.

    Every word says which link it comes from, and which one of the other side it is for, once that is known: what was
    meant for one that is closed is not heard by the next of that name.

    Args:
        group, rank: the other worker's.
        name: of the line, the same at both ends: the model's, for example.

    Raises:
        RuntimeError: this process is no worker.
    """

    def __init__(self, group: str, rank: int, name: str) -> None:
        super().__init__(f"rank {rank} of group '{group}'")
        self._member = (group, rank)
        self.address = [group, rank]
        self._name = f"weights {name}"
        self._exchange = require_exchange()
        self._receiving: Work[Any] | None = None
        self._is_closed = False
        self._mine = secrets.token_bytes(8)
        self._other: bytes | None = None
        """The link at the other end, once it has been heard."""
        self._bulk: set[Work[Any]] = set()
        locating = self._exchange.locate(*self._member, None)
        locating._follow(lambda: self._located(locating))
        self._listen()

    def _located(self, locating: Work[tuple[str, int]]) -> None:
        try:
            self.label, node = locating._result()
        except Exception as error:
            self.opened._settle(error=error)
            self._end(error)
            return
        self.node = None if node == node_of(require_client().endpoint) else node
        self.opened._settle()

    def _send(self, words: Words) -> None:
        self._post(words)

    def _post(self, words: Words | None) -> None:
        self._exchange.send((self._mine, self._other, words), *self._member, None, None, None, self._name)

    def send_tensor(self, tensor: Any, line: int, receiver: Any = None) -> Work[None]:
        return self._keep(self._exchange.send_tensor(tensor, *self._bulk_line(line, receiver)))

    def receive_tensor(self, tensor: Any, line: int, sender: Any = None) -> Work[None]:
        return self._keep(self._exchange.recv_tensor(tensor, *self._bulk_line(line, sender), at_once=True))

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Calls back after so many seconds."""
        require_client().later(seconds, callback)

    def _bulk_line(self, line: int, third: Any) -> tuple[Any, ...]:
        """With whom, and by which name; to a third one the name of this link means nothing."""
        group, rank = third or self._member
        return group, rank, None, None, f"weights on line {line}" if third else f"{self._name} memory {line}"

    def _keep(self, work: Work[None]) -> Work[None]:
        self._bulk.add(work)
        work._follow(lambda: self._bulk.discard(work))
        return work

    def _listen(self) -> None:
        """Waits for the next word; those that are here already are heard at once."""
        while self.error is None:
            work = self._exchange.recv(*self._member, None, None, self._name)
            if not work.done():
                self._receiving = work
                work._follow(functools.partial(self._heard, work))
                return
            if not self._take(work):
                return

    def _heard(self, work: Work[Any]) -> None:
        if self._take(work):
            self._listen()

    def _take(self, work: Work[Any]) -> bool:
        try:
            source, target, words = work._result()
        except Exception as error:
            self._end(error)
            return False
        if target not in (None, self._mine):
            return True
        if words is None:
            if target is None and source != self._other:  # it had heard of nobody, and nobody here has heard of it
                return True
            self._end(ClosedError(f"{self.label} has closed its end of the link"))
            return False
        self._other = source
        self._arrive(words)
        return True

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(Exception):
            self._post(None)
        receiving, self._receiving = self._receiving, None
        for work in (receiving, *list(self._bulk)):
            if work is not None and not work.done():
                work._lose_interest()

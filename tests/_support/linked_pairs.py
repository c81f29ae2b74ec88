"""Links that talk to each other inside one process, or across a pipe, as the mailboxes would let them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import msgpack

from rlinf_async._transports.link import Link, Post

MakeLink = Callable[[Post, bool, str], Link]


class Carrier:
    """Delivers what one link posts to its opposite number: in order, once each, later, in a thread of its own."""

    def __init__(self) -> None:
        self.target: Link | None = None
        self.heard: list[Any] = []
        self._posted: SimpleQueue[bytes | None] = SimpleQueue()
        self._may_deliver = threading.Event()
        self._may_deliver.set()
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def post(self, facts: Any) -> None:
        self._posted.put(msgpack.packb(facts))

    def hold(self) -> None:
        """Delivers nothing until ``go_on``."""
        self._may_deliver.clear()

    def go_on(self) -> None:
        self._may_deliver.set()

    def _run(self) -> None:
        while (facts := self._posted.get()) is not None:
            self._may_deliver.wait()
            self.heard.append(msgpack.unpackb(facts))
            assert self.target is not None
            try:
                self.target.on_control(self.heard[-1])
            except Exception as error:
                self._errors.append(error)

    def close(self) -> None:
        self._posted.put(None)
        self.go_on()
        self._thread.join(5)
        assert not self._thread.is_alive()
        assert self._errors == []


class Couple:
    """Two links, opposite numbers of each other: ``near`` (first) and ``far``, and what carries their facts."""

    def __init__(self, make: MakeLink, addresses: Sequence[str] = ("127.0.0.2", "127.0.0.3")) -> None:
        self.to_far, self.to_near = Carrier(), Carrier()
        self.near = make(self.to_far.post, True, addresses[0])
        self.far = make(self.to_near.post, False, addresses[1])
        self.to_far.target, self.to_near.target = self.far, self.near

    def close(self) -> None:
        for carrier in (self.to_far, self.to_near):
            carrier.go_on()
        for link in (self.near, self.far):
            link.discard(RuntimeError("the test is over"))
        for carrier in (self.to_far, self.to_near):
            carrier.close()
        for thread in threading.enumerate():
            if thread.name.startswith("rlinf-"):
                thread.join(10)  # it may be connecting to the side that is closed, which Gloo gives up after seconds


@contextlib.contextmanager
def couple(make: MakeLink, addresses: Sequence[str] = ("127.0.0.2", "127.0.0.3")) -> Iterator[Couple]:
    links = Couple(make, addresses)
    try:
        yield links
    finally:
        links.close()

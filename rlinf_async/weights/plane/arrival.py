"""One version on its way into this machine's memory, and from there to other machines'.

Its pieces come in order, and each goes on as soon as it is here: the next one comes meanwhile.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rlinf_async.errors import ClosedError, TransferFailed
from rlinf_async.weights.links.link import Link
from rlinf_async.work import Work

Stuck = Callable[[int, Exception], None]


class Arrival:
    """Its methods may be called from any thread; who receives it calls ``expect`` and ``wait``.

    Args:
        link: to the sender; other machines are reached by it too.
        line: on which the pieces come.
        sizes: of the pieces, in bytes.
        source: the address of another machine's host, which they come from; None: from the sender.
        patience: seconds after which another machine's piece is missed.
        stuck: called with a line along which it does not go on, and why.

    Attributes:
        whole: done with its extra and its checksum once it is published; it may fail.
    """

    def __init__(
        self,
        link: Link,
        line: int,
        version: int,
        sizes: Sequence[int],
        source: Any,
        patience: float | None,
        stuck: Stuck,
    ) -> None:
        self.version = version
        self.whole: Work[tuple[bytes, int]] = Work()
        self._link = link
        self._line = line
        self._sizes = sizes
        self._source = source
        self._patience = patience
        self._stuck = stuck
        self._changed = threading.Condition()
        self._given_up: Exception | None = None
        self._pieces: list[torch.Tensor] = []
        self._coming: list[Work[None]] = []
        self._hold: Callable[[], Callable[[], None]] = lambda: lambda: None
        self._relays: dict[int, _Relay] = {}

    def expect(self, memory: torch.Tensor, hold: Callable[[], Callable[[], None]]) -> None:
        """From now on the pieces come, into that memory.

        Args:
            hold: keeps the memory as it is, until what it has returned is called.

        Raises:
            ClosedError: it is not wanted any more.
        """
        with self._changed:
            if self._given_up is not None:
                raise self._given_up
            self._hold = hold
            ends = list(itertools.accumulate(self._sizes))
            self._pieces = [memory[end - size : end] for size, end in zip(self._sizes, ends, strict=True)]
            self._coming = [self._link.receive_tensor(piece, self._line, self._source) for piece in self._pieces]
        for work in self._coming:
            work._follow(self._pass_on)
        self.whole._follow(self._pass_on)

    def wait(self) -> tuple[bytes, int]:
        """Until all of it is here and it is published; returns its extra and its checksum.

        Raises:
            TransferFailed: another machine has not passed it on, though it is published.
        """
        for work in self._coming:
            # Not ``work.wait``: as long as somebody waits for it, nobody else can give it up.
            with self._changed:
                while not work.done():
                    if self._given_up is not None:
                        raise self._given_up
                    is_published = self.whole.done()
                    if not self._changed.wait(self._patience) and is_published:
                        raise TransferFailed(f"nothing has come from there for {self._patience:g} s")
            work._result()
        return self.whole.wait()

    def pass_on(self, receiver: Any, line: int) -> None:
        """It goes on to another machine's host, from its first piece, along that line."""
        with self._changed:
            if self._given_up is None:
                self._relays[line] = _Relay(receiver)
        self._pass_on()

    def _pass_on(self) -> None:
        """What has arrived goes on; whoever waits begins to count anew."""
        with self._changed:
            self._changed.notify_all()
            for line, relay in list(self._relays.items()):
                while self._relays.get(line) is relay and self._has_next(relay):
                    let_go = self._hold()
                    work = self._link.send_tensor(self._pieces[len(relay.sent)], line, relay.receiver)
                    relay.sent.append(work)
                    work._follow(functools.partial(self._passed, line, relay, work, let_go))

    def _has_next(self, relay: _Relay) -> bool:
        number = len(relay.sent)
        return number < len(self._coming) and _is_here(self._coming[number])

    def _passed(self, line: int, relay: _Relay, work: Work[None], let_go: Callable[[], None]) -> None:
        let_go()
        try:
            work._result()
        except Exception as error:
            with self._changed:
                is_wanted = self._relays.pop(line, None) is relay
            if is_wanted:
                self._stuck(line, error)

    def keep(self, line: int) -> None:
        """Nobody waits for it on that line any more."""
        with self._changed:
            relay = self._relays.pop(line, None)
        if relay is not None:
            _give_up(relay.sent)

    def keep_all(self) -> None:
        """Another version comes: nobody waits for this one."""
        for line in list(self._relays):
            self.keep(line)
        with self._changed:
            self._pieces = []  # which keep the memory

    def give_up(self, error: Exception) -> None:
        """It is not wanted here any more, nor can it be had here."""
        with self._changed:
            self._given_up = self._given_up or error
            self._changed.notify_all()
        self.keep_all()
        self.whole._settle(error=error)
        _give_up(self._coming)


class _Relay:
    """One machine that gets it from here; ``sent`` are the pieces that have left."""

    def __init__(self, receiver: Any) -> None:
        self.receiver = receiver
        self.sent: list[Work[None]] = []


def _is_here(work: Work[None]) -> bool:
    if not work.done():
        return False
    try:
        work._result()
    except Exception:  # whoever receives it says so
        return False
    return True


def _give_up(works: Sequence[Work[None]]) -> None:
    for work in works:
        if not work.done():
            work._lose_interest()


def closed() -> ClosedError:
    return ClosedError("the weights of this machine are not wanted here any more")

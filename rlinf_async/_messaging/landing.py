"""``RelayHost``: receives payloads for its whole machine, and passes them on to hosts of other machines
(``RelayPlan``)."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rlinf_async._core.error_copy import copy_of
from rlinf_async._core.failures import pack_error
from rlinf_async._core.own_logger import own_logger
from rlinf_async._messaging.state.relay_plan import BRING, LANDED, PASS, ROOM, STUCK, WHOLE
from rlinf_async.errors import ClosedError, PeerLost, TransferFailed
from rlinf_async.work import Work

logger = own_logger(__name__)


class Room(Protocol):
    """Memory for one payload, whose bytes, ``memory``, are sliced for the pieces."""

    memory: Any

    def hold(self) -> Callable[[], None]:
        """Keep the memory unchanged until the returned function is called."""

    def finish(self, number: int, *facts: Any) -> Any:
        """Name the memory, now that the payload is complete.

        Raises:
            Exception: the memory cannot be used.
        """

    def abandon(self) -> None:
        """Give the memory up; late pieces may still be written to it."""


class Host:
    """Host of a machine: receives one payload after the other on its stream.

    Args:
        carrier: link to the source and, by address, to other hosts: ``send``, ``send_tensor``, ``receive_tensor``, and
            ``later``, which calls back after some seconds.
        make_room: makes room for a payload, given its number and size in bytes.
        submit: calls functions one after the other, in a thread where they may block.
    """

    def __init__(
        self,
        carrier: Any,
        line: int,
        make_room: Callable[[int, int], Room],
        submit: Callable[[Callable[[], None]], None],
    ) -> None:
        self.carrier = carrier
        self.line = line
        self._make_room = make_room
        self._submit = submit
        self._landing: _Landing | None = None
        self._end: Exception | None = None

    def hear(self, what: str, *facts: Any) -> None:
        """Handle BRING, WHOLE, PASS or KEEP, where the link to the source is read."""
        landing = self._landing
        if what == BRING:
            self._bring(*facts)
        elif landing is None:
            logger.warning("%r is said of a payload, and none comes", what)
        elif what == WHOLE:
            landing.publish(facts[1:])
        elif what == PASS:
            number, receiver, line = facts
            if number == landing.number:
                landing.pass_on(receiver, line)
            else:
                self.stuck(line, TransferFailed(f"version {number} is followed by {landing.number} already"))
        else:
            landing.keep(*facts)

    def _bring(self, number: int, sizes: list[int], source: Any = None, patience: float | None = None) -> None:
        if self._landing is not None:
            self._landing.keep_all()
        self._landing = landing = _Landing(self, number, sizes, source, patience)
        if self._end is not None:  # closed by another thread meanwhile, which may not have seen this one
            landing.fail(self._end)
        self._submit(functools.partial(self._expect, landing, sum(sizes)))

    def _expect(self, landing: _Landing, *facts: Any) -> None:
        try:
            room = self._make_room(landing.number, *facts)
        except Exception as error:
            self._say_landed(landing.number, error)
            return
        landing.expect(room)
        self._say(ROOM, landing.number, self.line)

    def arrived(self, landing: _Landing, room: Room, facts: Sequence[Any], error: Exception | None) -> None:
        """Finish a payload that has landed or failed; called once for each."""
        self._submit(functools.partial(self._finish, landing.number, room, facts, error))

    def _finish(self, number: int, room: Room, facts: Sequence[Any], error: Exception | None) -> None:
        if error is None:
            try:
                self._say_landed(number, None, room.finish(number, *facts))
                return
            except Exception as failure:
                self._say_landed(number, failure)
        else:  # not raised: others have it, and its traceback would keep the room
            self._say_landed(number, error)
        room.abandon()

    def _say_landed(self, number: int, error: Exception | None, memory: Any = None) -> None:
        self._say(LANDED, number, None if error is None else pack_error(error), memory, self.line)

    def stuck(self, line: int, error: Exception) -> None:
        """Report that a stream to another host is stuck."""
        self._say(STUCK, line, pack_error(error))

    def _say(self, *words: Any) -> None:
        if self._end is None:
            try:
                self.carrier.send(list(words))
            except (PeerLost, ClosedError) as gone:
                logger.info("the source does not hear %r: %s", words[0], gone)

    def close(self, error: Exception) -> None:
        """Abandon the current payload; nothing is sent to the source any more."""
        self._end = self._end or error
        if self._landing is not None:
            self._landing.fail(self._end)


class _Landing:
    """Payload that is arriving; each piece is passed on as soon as it is here. For any thread.

    Args:
        source: address of another machine's host that sends the pieces; None: the source sends them.
        patience: seconds to wait for each piece once the payload is published.
    """

    def __init__(self, host: Host, number: int, sizes: Sequence[int], source: Any, patience: float | None) -> None:
        self.number = number
        self._host = host
        self._sizes = sizes
        self._source = source
        self._patience = patience
        self._lock = threading.RLock()
        self._room: Room | None = None
        self._pieces: list[Any] = []
        self._coming: list[Work[None]] = []
        self._here = 0
        """Number of pieces that have arrived."""
        self._facts: Sequence[Any] | None = None
        self._error: Exception | None = None
        self._has_ended = False
        self._passing: dict[int, tuple[Any, list[Work[None]]]] = {}
        """Receiving machine and sent pieces, by stream."""

    def expect(self, room: Room) -> None:
        """Start receiving the pieces into that memory."""
        with self._lock:
            self._room = room
            if self._error is None:
                ends = itertools.accumulate(self._sizes)
                self._pieces = [room.memory[end - size : end] for size, end in zip(self._sizes, ends, strict=True)]
                carrier, line = self._host.carrier, self._host.line
                self._coming = [carrier.receive_tensor(piece, line, self._source) for piece in self._pieces]
        for work in self._coming:
            work._follow(self._go_on)
        self._go_on()

    def publish(self, facts: Sequence[Any]) -> None:
        """Note that the payload is published."""
        with self._lock:
            self._facts = facts
            self._watch()
        self._go_on()

    def pass_on(self, receiver: Any, line: int) -> None:
        """Pass the payload on to another machine's host, from its first piece."""
        with self._lock:
            if self._error is None:
                self._passing[line] = receiver, []
        self._go_on()

    def _go_on(self) -> None:
        """Pass on the pieces that are here; finish once all are here and published, or the payload has failed."""
        with self._lock:
            here = self._here
            try:
                while self._here < len(self._coming) and self._coming[self._here].done():
                    self._coming[self._here]._result()
                    self._here += 1
            except Exception as error:  # whose traceback would keep the memory
                self._error = self._error or copy_of(error)
            if self._here > here:
                self._watch()
            for line, (receiver, sent) in list(self._passing.items()):
                while self._error is None and line in self._passing and len(sent) < min(self._here, len(self._pieces)):
                    self._pass(receiver, line, sent)
            is_whole = self._here == len(self._sizes) and self._facts is not None
            room = self._room
            if room is None or self._has_ended or not (is_whole or self._error):
                return
            self._has_ended = True
        self._host.arrived(self, room, self._facts or (), self._error)

    def _pass(self, receiver: Any, line: int, sent: list[Work[None]]) -> None:
        assert self._room is not None
        let_go = self._room.hold()
        work = self._host.carrier.send_tensor(self._pieces[len(sent)], line, receiver)
        sent.append(work)
        work._follow(functools.partial(self._passed, line, work, let_go))

    def _passed(self, line: int, work: Work[None], let_go: Callable[[], None]) -> None:
        let_go()
        try:
            work._result()
        except Exception as error:
            with self._lock:
                is_wanted = self._passing.pop(line, None) is not None
            if is_wanted:
                self._host.stuck(line, error)

    def _watch(self) -> None:
        """Set a deadline for the next piece, if the payload is published."""
        if self._patience is not None and self._facts is not None and self._here < len(self._sizes):
            self._host.carrier.later(self._patience, functools.partial(self._miss, self._here))

    def _miss(self, here: int) -> None:
        if self._here == here:
            self.fail(TransferFailed(f"nothing has come from there for {self._patience:g} s"))

    def keep(self, line: int) -> None:
        """Stop passing the payload on along a stream that is not awaited any more."""
        with self._lock:
            _, sent = self._passing.pop(line, (None, []))
        give_up(sent)

    def keep_all(self) -> None:
        """Stop passing the payload on, and drop its memory once it is finished."""
        for line in list(self._passing):
            self.keep(line)
        with self._lock:
            self._pieces = []
            if self._has_ended:
                self._room, self._coming = None, []

    def fail(self, error: Exception) -> None:
        """End the payload with an error."""
        with self._lock:
            self._error = self._error or error
            coming = self._coming
        self._go_on()
        self.keep_all()
        give_up(coming)


def give_up(works: Sequence[Work[Any]]) -> None:
    """Abandon the transfers of a stream, last first: otherwise messages that follow would match earlier receives."""
    for work in reversed(works):
        if not work.done():
            work._lose_interest()

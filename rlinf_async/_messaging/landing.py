"""``RelayHost``: receives payloads for its machine, and forwards them to other hosts (``RelayPlan``)."""

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
    """Memory for one payload, whose ``memory`` is sliced into pieces."""

    memory: Any

    def pin(self) -> Callable[[], None]:
        """Keep the memory unchanged until the returned function is called."""

    def finish(self, number: int, *facts: Any) -> Any:
        """Return the name of the complete payload's memory; raise if the memory cannot be used."""

    def abandon(self) -> None:
        """Release the memory, to which late pieces may still be written."""


class RelayHost:
    """The host of a machine, which receives one payload at a time on its stream.

    Args:
        carrier: link to the source and, by address, to other hosts: ``send``, ``send_tensor``, ``receive_tensor``, and
            ``later`` for delayed callbacks.
        make_room: allocates a ``Room`` for a payload, given its number and size in bytes.
        submit: calls functions one at a time, in a thread where they may block.
    """

    def __init__(
        self,
        carrier: Any,
        stream_id: int,
        make_room: Callable[[int, int], Room],
        submit: Callable[[Callable[[], None]], None],
    ) -> None:
        self.carrier = carrier
        self.stream_id = stream_id
        self._make_room = make_room
        self._start_job = submit
        self._landing: _Landing | None = None
        self._end: Exception | None = None

    def on_message(self, kind: str, *facts: Any) -> None:
        landing = self._landing
        if kind == BRING:
            self._bring(*facts)
        elif landing is None:
            logger.warning("%r is said of a payload, and none comes", kind)
        elif kind == WHOLE:
            landing.publish(facts[1:])
        elif kind == PASS:
            number, receiver, stream_id = facts
            if number == landing.number:
                landing.pass_on(receiver, stream_id)
            else:
                self.stuck(stream_id, TransferFailed(f"version {number} is followed by {landing.number} already"))
        else:
            landing.keep(*facts)

    def _bring(self, number: int, sizes: list[int], source: Any = None, patience: float | None = None) -> None:
        if self._landing is not None:
            self._landing.keep_all()
        self._landing = landing = _Landing(self, number, sizes, source, patience)
        # Another thread may have closed the host without seeing this landing.
        if self._end is not None:
            landing.fail(self._end)
        self._submit(functools.partial(self._expect, landing, sum(sizes)))

    def _submit(self, job: Callable[[], None]) -> None:
        try:
            self._start_job(job)
        except RuntimeError:  # no thread can start for now
            job()

    def _expect(self, landing: _Landing, *facts: Any) -> None:
        try:
            room = self._make_room(landing.number, *facts)
        except Exception as error:
            self._send_landed(landing.number, error)
            return
        landing.expect(room)
        self._send(ROOM, landing.number, self.stream_id)

    def arrived(self, landing: _Landing, room: Room, facts: Sequence[Any], error: Exception | None) -> None:
        self._submit(functools.partial(self._finish, landing.number, room, facts, error))

    def _finish(self, number: int, room: Room, facts: Sequence[Any], error: Exception | None) -> None:
        if error is None:
            try:
                self._send_landed(number, None, room.finish(number, *facts))
                return
            except Exception as failure:
                self._send_landed(number, failure)
        else:
            # Do not raise the error, because it is shared, and its traceback would keep the room alive.
            self._send_landed(number, error)
        room.abandon()

    def _send_landed(self, number: int, error: Exception | None, memory: Any = None) -> None:
        self._send(LANDED, number, None if error is None else pack_error(error), memory, self.stream_id)

    def stuck(self, stream_id: int, error: Exception) -> None:
        self._send(STUCK, stream_id, pack_error(error))

    def _send(self, *message: Any) -> None:
        if self._end is None:
            try:
                self.carrier.send(list(message))
            except (PeerLost, ClosedError) as gone:
                logger.info("the source does not hear %r: %s", message[0], gone)

    def close(self, error: Exception) -> None:
        """Abandon the current payload; the source gets no further messages."""
        self._end = self._end or error
        if self._landing is not None:
            self._landing.fail(self._end)


class _Landing:
    """An arriving payload, whose pieces are forwarded immediately; thread-safe.

    Args:
        source: address of another machine's host that sends the pieces; None if the source sends them.
        patience: seconds to wait for each piece once the payload is published.
    """

    def __init__(self, host: RelayHost, number: int, sizes: Sequence[int], source: Any, patience: float | None) -> None:
        self.number = number
        self._host = host
        self._sizes = sizes
        self._source = source
        self._patience = patience
        self._lock = threading.RLock()
        self._room: Room | None = None
        self._pieces: list[Any] = []
        self._coming: list[Work[None]] = []
        self._arrived = 0
        self._facts: Sequence[Any] | None = None
        self._error: Exception | None = None
        self._has_ended = False
        self._passing: dict[int, tuple[Any, list[Work[None]]]] = {}

    def expect(self, room: Room) -> None:
        with self._lock:
            self._room = room
            if self._error is None:
                ends = itertools.accumulate(self._sizes)
                self._pieces = [room.memory[end - size : end] for size, end in zip(self._sizes, ends, strict=True)]
                carrier, stream_id = self._host.carrier, self._host.stream_id
                self._coming = [carrier.receive_tensor(piece, stream_id, self._source) for piece in self._pieces]
        for work in self._coming:
            work._follow(self._go_on)
        self._go_on()

    def publish(self, facts: Sequence[Any]) -> None:
        with self._lock:
            self._facts = facts
            self._watch()
        self._go_on()

    def pass_on(self, receiver: Any, stream_id: int) -> None:
        """Forward the payload to another machine's host, starting with its first piece."""
        with self._lock:
            if self._error is None:
                self._passing[stream_id] = receiver, []
        self._go_on()

    def _go_on(self) -> None:
        """Forward the arrived pieces; finish once all have arrived and the payload is published, or has failed."""
        with self._lock:
            arrived = self._arrived
            try:
                while self._arrived < len(self._coming) and self._coming[self._arrived].done():
                    self._coming[self._arrived]._result()
                    self._arrived += 1
            except Exception as error:  # keep a copy: the error's traceback would keep the memory alive
                self._error = self._error or copy_of(error)
            if self._arrived > arrived:
                self._watch()
            for stream_id, (receiver, sent) in list(self._passing.items()):
                while (
                    self._error is None
                    and stream_id in self._passing
                    and len(sent) < min(self._arrived, len(self._pieces))
                ):
                    self._pass(receiver, stream_id, sent)
            is_whole = self._arrived == len(self._sizes) and self._facts is not None
            room = self._room
            if room is None or self._has_ended or not (is_whole or self._error):
                return
            self._has_ended = True
        self._host.arrived(self, room, self._facts or (), self._error)

    def _pass(self, receiver: Any, stream_id: int, sent: list[Work[None]]) -> None:
        assert self._room is not None
        unpin = self._room.pin()
        work = self._host.carrier.send_tensor(self._pieces[len(sent)], stream_id, receiver)
        sent.append(work)
        work._follow(functools.partial(self._passed, stream_id, work, unpin))

    def _passed(self, stream_id: int, work: Work[None], unpin: Callable[[], None]) -> None:
        unpin()
        try:
            work._result()
        except Exception as error:
            with self._lock:
                is_wanted = self._passing.pop(stream_id, None) is not None
            if is_wanted:
                self._host.stuck(stream_id, error)

    def _watch(self) -> None:
        if self._patience is not None and self._facts is not None and self._arrived < len(self._sizes):
            self._host.carrier.later(self._patience, functools.partial(self._miss, self._arrived))

    def _miss(self, arrived: int) -> None:
        if self._arrived == arrived:
            self.fail(TransferFailed(f"nothing has come from there for {self._patience:g} s"))

    def keep(self, stream_id: int) -> None:
        """Stop forwarding the payload on a stream from which no host receives any longer."""
        with self._lock:
            _, sent = self._passing.pop(stream_id, (None, []))
        abandon_works(sent)

    def keep_all(self) -> None:
        """Stop forwarding the payload, and drop its memory once the payload is finished."""
        for stream_id in list(self._passing):
            self.keep(stream_id)
        with self._lock:
            self._pieces = []
            if self._has_ended:
                self._room, self._coming = None, []

    def fail(self, error: Exception) -> None:
        with self._lock:
            self._error = self._error or error
            coming = self._coming
        self._go_on()
        self.keep_all()
        abandon_works(coming)


def abandon_works(works: Sequence[Work[Any]]) -> None:
    """Abandon a stream's transfers, last first; otherwise later messages would be matched with earlier receives."""
    for work in reversed(works):
        if not work.done():
            work._lose_interest()

"""``PeerLink``: a link between two daemons with two streams (control, bulk) that survive reconnections.

A link has two message streams in each direction: *control*, a byte stream that sends everything queued as one message
whenever the stream is free, and *bulk*, which sends pieces, so that a large value never delays a call. Both treat
payloads as opaque bytes. Order is preserved within a stream, but not between the two.

A connection may break or fall silent at any time. When it does, the dialling side reconnects, both sides report how
many messages of each stream they have received, and the remaining messages are sent again, so that none is lost or
duplicated (`rlinf_async._core.link_messages`). The link itself ends with a goodbye, with the peer daemon's exit, or
once its lease has expired without a message from the other side.

A control message begins with the number of received messages of each stream; a message without further content is a
heartbeat, and is not numbered. An empty message is a stream's goodbye.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from rlinf_async import settings
from rlinf_async._core import clock
from rlinf_async._core.link_messages import IncomingMessages, OutgoingMessages
from rlinf_async._wire.reachable import TIMEOUT_S, accepts_connections
from rlinf_async.errors import ClosedError, NodeLost, RLinfAsyncError

MAX_MESSAGE_BYTES = 1 << 20
"""Maximum size of a bulk piece; gRPC slows down beyond it."""
CLOSED = "its daemon ended in order: it was stopped, or has lost its launcher"
"""Reason reported for a link that the other side has closed."""
CLOSE_TIMEOUT_S = 2.0

_BATCH_BYTES = 256 << 10  # larger messages are no faster and delay calls
_MAX_QUEUED_PIECES = 4  # enough to keep the stream busy
_MAX_KEPT_BYTES: Final = 32 << 20
"""Maximum number of unacknowledged bytes; beyond it, the bulk stream waits."""
_ACK_DELAY_S: Final = 0.05
_BEATS: Final = 10
_SILENT_BEATS: Final = 3.5
"""Number of heartbeats without a message after which a connection to a reachable peer is replaced; TCP waits longer."""
_PROBE_S: Final = 1.0
"""Timeout for probing a silent peer. TCP would retry only after one second; by then, the next probe starts."""
_BREAK_OFF_S: Final = 0.5
_MAX_REASON_BYTES: Final = 1000
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0
_GOODBYE = b""
_HEADER: Final = struct.Struct("<QQ")
_DEAF: Final = 1 << 63
"""Flag in the header's second number: this side has received nothing for `_SILENT_BEATS` heartbeats."""
_BREAK_OFF: Final = _HEADER.pack((1 << 64) - 1, (1 << 64) - 1)
"""Header of a message that ends the link; the rest of the message is the reason."""


class Broken(Exception):
    """Raised when a stream ends without a goodbye; the text gives the cause."""


class LinkEnded(Broken):
    """Raised when the link itself has ended and must not be reconnected."""


class MessageStream(Protocol):
    """One end of a message stream. Raises `Broken` if the stream ends without a goodbye."""

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...


async def _leave(_in_order: bool) -> None:
    """Do nothing, because a server's handlers return once the wire is closed, which ends their streams."""


class Over:
    """An awaitable event that marks the end of a wire, clean or not."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.in_order = False

    def set(self, *, in_order: bool = False) -> None:
        self.in_order = self.in_order or in_order
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


@dataclass(eq=False)
class Wire:
    """One connection of a link: its streams, a function that hangs up, and an event set when it closes."""

    control: MessageStream
    bulk: MessageStream
    hang_up: Callable[[bool], Awaitable[None]] = _leave
    over: Over = field(default_factory=Over)


Received = Sequence[int]
"""Numbers of messages received on the control stream and on the bulk stream, over all connections of a link."""

Redial = Callable[[Received, float], Awaitable[tuple[Wire, Received]]]
"""Function that opens another connection within the given seconds, and exchanges the counts of received messages.
Raises NodeLost if the caller may retry, or another RLinfAsyncError if the peer refuses to continue the link."""

_Argument = TypeVar("_Argument")


class _Callback(Generic[_Argument]):
    """An attribute of a link that its owner sets; the link delivers messages once all three callbacks are set."""

    def __set_name__(self, owner: type[PeerLink], name: str) -> None:
        self._name = name

    def __get__(self, link: PeerLink, owner: type[PeerLink]) -> Callable[[_Argument], None] | None:
        return link._callbacks.get(self._name)

    def __set__(self, link: PeerLink, callback: Callable[[_Argument], None] | None) -> None:
        if callback is None:
            raise TypeError(f"{self._name} of a link cannot be taken away: close the link")
        link._callbacks[self._name] = callback
        if len(link._callbacks) == 3 and not link._listening.is_set():
            link._listening.set()
            asyncio.get_running_loop().call_soon(link._notify_end)


# The class stays whole with more than 30 methods, because streams, heartbeats, reconnection and shutdown share the
# link's state flags.
class PeerLink:
    """A link to another node's daemon, created by `dial` on one side and by `PeerServer` on the other.

    The owner sets three callbacks. They are called on the loop, one at a time, and must not block. Messages are held
    back until all three are set. An exception in a callback ends the link.

    Args:
        lease: seconds without a message from the other side after which the link ends; ending it may take up to a tenth
            longer.
        address: listening address of the peer's daemon, empty if unknown. If it refuses connections, the daemon has
            exited.
        accepts: checks whether ``address`` accepts connections; returns None if there is no answer within the given
            number of seconds.
        redial: opens another connection; None on the accepting side, which uses `suspend` and `resume` instead.
        on_end: called once when the link has ended for any reason.

    Attributes:
        peer: the other node's rank.
        lease: value of the argument; the owner may change it at any time, on both sides.
        peer_has_ended: True if the other side's daemon has closed the link or exited.
        on_control: called with the bytes passed to `send` on the other side, in order. The bytes of several calls may
            arrive joined, and values larger than 256 KiB may arrive in parts.
        on_bulk: called with each bulk piece.
        on_lost: called once with the reason, after the last message, when the link ends by anything but this side's own
            `close`. The reason is `CLOSED` if the peer closed cleanly.
    """

    on_control = _Callback[bytes]()
    on_bulk = _Callback[bytes]()
    on_lost = _Callback[str]()

    def __init__(
        self,
        peer: int,
        wire: Wire,
        *,
        lease: float = settings.LEASE_S.default,
        address: str = "",
        accepts: Callable[[str, float], Awaitable[bool | None]] = accepts_connections,
        redial: Redial | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self.peer = peer
        self.peer_has_ended = False
        self.lease = lease
        self._address = address
        self._accepts = accepts
        self._redial = redial
        self._on_end = on_end
        self._callbacks: dict[str, Callable[[Any], None]] = {}
        self._listening = asyncio.Event()
        self._control = OutgoingMessages()
        self._control_received = IncomingMessages()
        self._control_wake = asyncio.Event()
        self._bulk = OutgoingMessages()
        self._bulk_received = IncomingMessages()
        self._bulk_wake = asyncio.Event()
        self._bulk_room = asyncio.Semaphore(_MAX_QUEUED_PIECES)
        self._owes_acknowledgement = False  # True if an acknowledgement or a heartbeat must be sent
        self._ack_timer: asyncio.TimerHandle | None = None
        self._open_readers = 2
        self._closing = False  # True once this side has called `close`
        self._ending = False  # True once a side closes: queued messages are still sent, new ones refused
        self._has_ended = False  # True once the link no longer sends or receives
        self._has_told_end = False
        self._reason = ""
        self._verdict = ""  # this side's reason for ending the link, until it is sent
        self._loop = asyncio.get_running_loop()
        self._present: Wire | None = wire
        self._interruption: asyncio.Future[Broken] = self._loop.create_future()
        self._resumption: asyncio.Future[Wire] = self._loop.create_future()
        self._last_arrival = self._last_beat = clock.monotonic()
        self._is_silent = asyncio.Event()
        self._is_deaf = False  # True if this side has received nothing for some heartbeats
        self._is_unheard = False  # True if the other side reports receiving nothing
        self._beat = self._loop.call_later(self._beat_s, self._on_beat)
        self._task = asyncio.create_task(self._run(wire), name=f"link to node {peer}")

    @property
    def seconds_down(self) -> float:
        """Return the seconds since the last message if messages are overdue; 0 if the link is up."""
        silent = clock.monotonic() - self._last_arrival
        return silent if self._present is None or silent > _SILENT_BEATS * self._beat_s else 0.0

    def send(self, data: bytes) -> None:
        """Queue bytes for the other side's `on_control`; bytes for a closed or lost link are dropped.

        The queue is unbounded, so use `send_bulk` for large or endless data.
        """
        if self._ending or not data:
            return
        for start in range(0, len(data), _BATCH_BYTES):
            self._control.add(data[start : start + _BATCH_BYTES])
        self._control_wake.set()

    async def send_bulk(self, piece: bytes) -> None:
        """Queue a bulk piece of 1 to `MAX_MESSAGE_BYTES` bytes, ideally 256 KiB; wait while the queue is full.

        Pieces are sent in the order of the calls. A cancelled call queues nothing.

        Raises:
            ValueError: the piece is empty or too large.
            ClosedError: this side has closed the link.
            NodeLost: the link has ended.
        """
        if not 0 < len(piece) <= MAX_MESSAGE_BYTES:
            raise ValueError(f"a bulk piece holds 1 to {MAX_MESSAGE_BYTES} bytes, got {len(piece)}")
        await self._bulk_room.acquire()
        if self._ending:
            # Wake the next waiting call, which fails in turn.
            self._bulk_room.release()
            if self._closing:
                raise ClosedError(f"the link to node {self.peer} is closed")
            reason = self._reason or CLOSED
            error = NodeLost(f"the link to node {self.peer} is lost: {reason}")
            error.node_rank, error.reason = self.peer, reason
            raise error
        self._bulk.add(piece)
        self._bulk_wake.set()

    async def close(self) -> None:
        """Send all queued messages and a goodbye, and wait up to two seconds for the peer's goodbye. Idempotent.

        Messages that arrive during the close are dropped, and `on_lost` is no longer called. If there is no
        connection, nothing is sent.
        """
        self._closing = True
        self._end()
        self._listening.set()
        try:
            await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT_S if self._present is not None else 0)
        finally:
            if not self._task.done():
                self._reason = "the other side closed without waiting for a goodbye any longer"
                self._task.cancel()
                await asyncio.wait([self._task])

    # -- connections --------------------------------------------------------------------------------------------

    async def _run(self, wire: Wire) -> None:
        try:
            while True:
                try:
                    await self._carry(wire)
                    self.peer_has_ended = True
                    break
                except LinkEnded:
                    raise
                except Broken as broken:
                    if self._closing:
                        raise
                    wire = await self._replace(wire, str(broken))
        except Broken as broken:
            self._reason = str(broken)
        except Exception as error:  # otherwise the link would seem connected although this task has ended
            report_failure(f"the link to node {self.peer} failed", error)
            self._reason = repr(error)
        finally:
            self._beat.cancel()
            if self._ack_timer is not None:
                self._ack_timer.cancel()
            self._end()
            self._control.clear()
            self._bulk.clear()
            if self._on_end is not None:
                self._on_end()
            wire.over.set(in_order=self.peer_has_ended and not self._reason)
        self._has_ended = True
        self._notify_end()

    async def _carry(self, wire: Wire) -> None:
        """Move messages over one connection until both sides have said goodbye.

        Raises:
            LinkEnded: the link has ended.
            Broken: the connection has ended.
        """
        in_order = False
        self._open_readers = 2
        self._interruption = self._loop.create_future()
        self._is_silent.clear()
        self._is_deaf = self._is_unheard = False
        self._present = wire
        try:
            async with asyncio.TaskGroup() as tasks:
                moving = [
                    tasks.create_task(self._write_control(wire.control)),
                    tasks.create_task(self._write_bulk(wire.bulk)),
                    tasks.create_task(self._read_control(wire.control)),
                    tasks.create_task(self._read_bulk(wire.bulk)),
                ]
                watching = [
                    tasks.create_task(self._await_interruption()),
                    tasks.create_task(self._break_silence()),
                ]
                await asyncio.wait(moving)
                for each in watching:
                    each.cancel()
            in_order = True
        except* Broken as broken:
            cause = next((each for each in broken.exceptions if isinstance(each, LinkEnded)), broken.exceptions[0])
            raise (LinkEnded(self._verdict) if self._verdict else cause) from None
        finally:
            self._present = None
            await wire.hang_up(in_order)

    async def _await_interruption(self) -> None:
        raise await self._interruption

    async def _break_silence(self) -> None:
        """Break a connection on which one side receives nothing although the peer is reachable.

        If the peer is unreachable, or its messages are queued in the network, keep the connection, because a new one
        would take even longer.
        """
        while True:
            await self._is_silent.wait()
            arrival = self._last_arrival
            reached = await self._accepts(self._address, _PROBE_S)
            if self._is_unheard and reached is not None:
                # Messages delayed in the network may have just arrived, so wait for one more report.
                await asyncio.wait([self._interruption], timeout=self._beat_s)
            if self._last_arrival != arrival and not self._is_unheard:
                self._is_silent.clear()
            elif reached is None:
                await asyncio.wait([self._interruption], timeout=_FIRST_PAUSE_S)
            elif self._last_arrival != arrival:
                raise Broken("what is sent does not arrive")
            else:
                raise Broken(f"nothing came for {clock.monotonic() - arrival:.1f} s")

    def _interrupt(self, error: Broken) -> None:
        if not self._interruption.done():
            self._interruption.set_result(error)

    async def _replace(self, wire: Wire, why: str) -> Wire:
        """Return a replacement for a broken connection, within the lease. Raise LinkEnded if there is none."""
        self._resumption = self._loop.create_future()
        wire.over.set()
        left = self._last_arrival + self.lease + self._beat_s - clock.monotonic()
        try:
            async with asyncio.timeout(max(0.0, left)):
                return await (self._await_resumption(why) if self._redial is None else self._dial_again(why))
        except BaseException as error:
            # A replacement may have arrived at this very moment. If it were just dropped here, no other code would end
            # it, and the server would wait for its handler forever. tests/_wire/test_daemon_link.py::
            # test_a_connection_that_comes_in_the_moment_of_a_close_is_over
            resumed, is_late = self._resumption, isinstance(error, TimeoutError)
            if resumed.done() and resumed.exception() is None:
                if is_late:
                    return resumed.result()
                resumed.result().over.set()
            if is_late:
                raise LinkEnded(f"{self._silence()}: {why}") from None
            raise

    async def _dial_again(self, why: str) -> Wire:
        assert self._redial is not None
        pause = _FIRST_PAUSE_S
        while True:
            await self._check_peer(why)
            try:
                wire, received = await self._redial(self._received, max(1.0, self.lease / 5))
            except NodeLost:
                await asyncio.wait([self._resumption], timeout=pause * random.uniform(0.8, 1))
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            except RLinfAsyncError as error:
                raise LinkEnded(f"{why}, and it does not go on with this link: {error}") from None
            else:
                self._resume(received)
                return wire

    async def _await_resumption(self, why: str) -> Wire:
        pause = _FIRST_PAUSE_S
        while not self._resumption.done():
            await self._check_peer(why)
            await asyncio.wait([self._resumption], timeout=pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return self._resumption.result()

    async def _check_peer(self, why: str) -> None:
        """Raise LinkEnded if the peer's machine refuses connections, which means that its daemon has exited."""
        if self._address and await self._accepts(self._address, TIMEOUT_S) is False:
            self.peer_has_ended = True
            raise LinkEnded(f"{why}; its daemon is gone: {self._address} refuses connections")

    async def suspend(self) -> Received:
        """Stop the connection that the peer has replaced. Return the counts of received messages, to be sent to the
        peer; raise LinkEnded if the link has ended."""
        if (wire := self._present) is not None:
            self._interrupt(Broken("the other side has made another connection"))
            # The counts must not change once the peer has them: a message counted afterwards would be sent again and
            # arrive twice.
            await wire.over.wait()
        if self._ending or self._verdict:
            raise LinkEnded(self._reason or self._verdict or "it is being closed")
        self._last_arrival = clock.monotonic()
        return self._received

    def resume(self, wire: Wire, received: Received) -> None:
        """Continue on another connection; ``received`` counts the messages that the peer has received."""
        if self._present is not None or self._resumption.done() or self._ending:
            wire.over.set()  # another connection came first, or the link has ended
            return
        try:
            self._resume(received)
        except LinkEnded as error:
            wire.over.set()
            self._resumption.set_exception(error)
        else:
            self._resumption.set_result(wire)

    def end_as(self, reason: str) -> None:
        self.peer_has_ended = True
        if self._present is not None:
            self._interrupt(LinkEnded(reason))
        elif not self._resumption.done():
            self._resumption.set_exception(LinkEnded(reason))

    @property
    def _received(self) -> Received:
        return self._control_received.received, self._bulk_received.received

    def _resume(self, received: Received) -> None:
        self._last_arrival = clock.monotonic()
        try:
            self._control.resume(received[0])
            self._bulk.resume(received[1])
        except ValueError as error:
            raise LinkEnded(str(error)) from None

    # -- heartbeats ---------------------------------------------------------------------------------------------

    @property
    def _beat_s(self) -> float:
        return self.lease / _BEATS

    def _on_beat(self) -> None:
        now, beat = clock.monotonic(), self._beat_s
        # If this process itself was stopped, read the messages that arrived in the meantime before judging the peer.
        stood_still, self._last_beat = now - self._last_beat > 2 * beat, now
        if not self._listening.is_set():
            self._last_arrival = now
        silent = now - self._last_arrival
        if self._present is not None and not stood_still:
            if silent >= self.lease + beat:
                self._abandon(self._silence())
            elif silent > _SILENT_BEATS * beat:
                # After an outage TCP recovers each direction separately: this side may still hear a peer that cannot
                # hear it. Only the dialling side opens another connection.
                # tests/simulation/test_sim_cluster.py::test_a_cut_costs_no_node_whichever_direction_tcp_takes_up_first
                self._is_deaf = True
                if self._redial is not None:
                    self._is_silent.set()
        self._beat = self._loop.call_later(min(beat, max(0.01, self.lease + beat - silent)), self._on_beat)
        self._send_acknowledgement()

    def _note_arrival(self) -> None:
        self._last_arrival, self._is_deaf = clock.monotonic(), False

    def _silence(self) -> str:
        silent = clock.monotonic() - self._last_arrival
        return f"no sign of life for {silent:.1f} s, and its lease is {self.lease:g} s ({settings.LEASE_S.variable})"

    def _send_acknowledgement(self) -> None:
        self._owes_acknowledgement = True
        self._control_wake.set()

    def _count(self, incoming: IncomingMessages, nbytes: int) -> None:
        if incoming.add(nbytes):
            self._send_acknowledgement()
        elif self._ack_timer is None:
            self._ack_timer = self._loop.call_later(_ACK_DELAY_S, self._acknowledge_late)

    def _acknowledge_late(self) -> None:
        self._ack_timer = None
        if self._control_received.is_owing or self._bulk_received.is_owing:
            self._send_acknowledgement()

    # -- streams ------------------------------------------------------------------------------------------------

    async def _write_control(self, stream: MessageStream) -> None:
        while not self._verdict:
            message = self._control.take(_BATCH_BYTES)
            if message or self._owes_acknowledgement:
                self._owes_acknowledgement = False
                numbers = (
                    self._control_received.acknowledge(),
                    self._bulk_received.acknowledge() | self._is_deaf * _DEAF,
                )
                await stream.write(b"".join((_HEADER.pack(*numbers), *message)))
            elif self._ending:
                await stream.write(_GOODBYE)
                return
            else:
                self._control_wake.clear()
                await self._control_wake.wait()
        await stream.write(_BREAK_OFF + self._verdict.encode()[:_MAX_REASON_BYTES])

    async def _write_bulk(self, stream: MessageStream) -> None:
        while True:
            is_fresh = not self._bulk.is_repeating
            has_room = not is_fresh or self._bulk.kept_bytes < _MAX_KEPT_BYTES
            if has_room and (message := self._bulk.take()):
                if is_fresh:
                    self._bulk_room.release()
                await stream.write(message[0])
            elif self._ending and not len(self._bulk):
                await stream.write(_GOODBYE)
                return
            else:
                self._bulk_wake.clear()
                await self._bulk_wake.wait()

    async def _read_control(self, stream: MessageStream) -> None:
        while (data := await stream.read()) != _GOODBYE:
            self._note_arrival()
            self._take_numbers(data)
            if len(data) > _HEADER.size:
                await self._deliver("on_control", data[_HEADER.size :])
                self._count(self._control_received, len(data))
        self._close_reader()

    async def _read_bulk(self, stream: MessageStream) -> None:
        while (data := await stream.read()) != _GOODBYE:
            self._note_arrival()
            await self._deliver("on_bulk", data)
            self._count(self._bulk_received, len(data))
        self._close_reader()

    def _take_numbers(self, data: bytes) -> None:
        """Read the peer's counts of received messages. Raise LinkEnded if they are wrong or end the link."""
        if data.startswith(_BREAK_OFF):
            raise LinkEnded(data[_HEADER.size :].decode(errors="replace"))
        try:
            control, bulk = _HEADER.unpack_from(data)
            self._control.acknowledge(control)
            self._bulk.acknowledge(bulk & ~_DEAF)
        except (ValueError, struct.error) as error:
            raise LinkEnded(f"a message of the other side makes no sense: {error}") from None
        self._is_unheard = bool(bulk & _DEAF) and self._redial is not None
        if self._is_unheard:
            self._is_silent.set()
        self._bulk_wake.set()

    async def _deliver(self, callback: str, data: bytes) -> None:
        # The other side sends as soon as its own callbacks are set, perhaps before this side's are. Until this side's
        # callbacks are set, do not read, so that gRPC's flow control holds the messages back at the sender.
        # tests/_wire/test_daemon_link.py::test_nothing_that_arrives_before_the_owner_listens_is_lost
        if not self._listening.is_set():
            await self._listening.wait()
        if self._closing:
            return
        try:
            self._callbacks[callback](data)
        except Exception as error:
            report_failure(f"{callback} of the link to node {self.peer} failed", error)
            self._abandon(f"{callback} failed: {error!r}")
            # Wait forever: this task is cancelled once the other side has been notified.
            await self._loop.create_future()

    def _close_reader(self) -> None:
        self._open_readers -= 1
        if not self._open_readers:
            self._end()

    # -- shutdown -----------------------------------------------------------------------------------------------

    def _abandon(self, reason: str) -> None:
        if not self._verdict:
            self._verdict = reason
            self._control_wake.set()
            self._loop.call_later(_BREAK_OFF_S, self._interrupt, LinkEnded(reason))

    def _end(self) -> None:
        self._ending = True
        self._control_wake.set()
        self._bulk_wake.set()
        self._bulk_room.release()

    def _notify_end(self) -> None:
        if not self._has_ended or not self._listening.is_set() or self._closing or self._has_told_end:
            return
        self._has_told_end = True
        try:
            self._callbacks["on_lost"](self._reason or CLOSED)
        except Exception as error:
            report_failure(f"on_lost of the link to node {self.peer} failed", error)


def report_failure(message: str, error: Exception) -> None:
    """Pass a callback's exception to the loop's exception handler, because no caller waits for the callback."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

"""The sending side of messaging: numbers messages, waits for room, picks a transport, retries, withdraws."""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._core.error_copy import copy_of
from rlinf_async._core.frames import node_of
from rlinf_async._core.own_logger import own_logger
from rlinf_async._messaging.device_content import DevicePayload
from rlinf_async._messaging.message_content import Payload
from rlinf_async._messaging.operation import SendWork
from rlinf_async._messaging.peer import Peer
from rlinf_async._messaging.peers import Peers
from rlinf_async._messaging.relayed_broadcast import RELAY, Carrier, RelayedBroadcast, memory_of
from rlinf_async._messaging.state import message_facts
from rlinf_async._messaging.state.chain import CHAIN_FROM_BYTES
from rlinf_async._messaging.state.flow_control import SendWindow, WindowEntry
from rlinf_async._messaging.state.message_facts import TENSOR
from rlinf_async._transports import transport_choice
from rlinf_async._transports.devices.gpu_link_choice import GPU_LINKS
from rlinf_async._transports.shared_memory import fits
from rlinf_async.errors import ClosedError, TransferFailed

logger = own_logger(__name__)

_MAX_ATTEMPTS: Final = 3
"""Maximum number of times that one message is transmitted to each receiver before the send fails."""


class InFlight(WindowEntry):
    """The message of an unfinished send.

    Attributes:
        awaited: endpoints that have not yet confirmed the content.
        links: links used for the content, each with the number of the transfer on it.
        attempts: number of transfers started so far.
        by_gpu: True if the latest transfer was from GPU to GPU.
        relay: relayed broadcast that carries the content, or None.
        certain: endpoints reached by a transport that loses nothing while both sides are alive.
    """

    __slots__ = ("attempts", "awaited", "by_gpu", "certain", "links", "relay", "sending")

    def __init__(self, sending: SendWork, receivers: Sequence[Peer]) -> None:
        super().__init__(sending.payload.nbytes)
        self.sending = sending
        self.awaited = dict.fromkeys(peer.endpoint for peer in receivers)
        self.links: list[tuple[Any, int]] = []
        self.attempts = 0
        self.by_gpu = False
        self.relay: RelayedBroadcast | None = None
        self.certain: Collection[int] = ()

    def end_transfers(self, error: Exception) -> None:
        for link, transfer in self.links:
            link.discard(copy_of(error), transfer)

    def end_relay(self) -> None:
        relay, self.relay = self.relay, None
        if relay is not None:
            relay.close()


class SendStream:
    __slots__ = ("id", "is_same_node", "open", "order", "other_nodes", "receivers", "window")

    def __init__(self, stream_id: Any, receivers: Sequence[Peer], node: int) -> None:
        self.id = stream_id
        self.receivers = receivers
        self.is_same_node = all(peer.node == node for peer in receivers)
        self.other_nodes = len({peer.node for peer in receivers} - {node})
        self.window: SendWindow[InFlight] = SendWindow(peer.endpoint for peer in receivers)
        self.order = threading.RLock()
        """Lock held from numbering a message until its frame is sent, so that frames are sent in numerical order.

        It is reentrant: if a link refuses a message immediately, the message takes another path and may complete while
        the lock is held, and its ``then`` callback may send another message. tests/_messaging/test_moments.py::
        test_who_sends_again_when_a_send_is_done_may_do_so_while_that_leaves
        """
        self.open: dict[int, InFlight] = {}


# This class is not split, although it has more than 30 methods, because each receiver's message and each transport
# changes the same table of streams.
class Outbox:
    """The sending sides of this worker's streams. Any thread may ``send``; the reading thread calls ``on_…``."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._lock = threading.Lock()
        self._streams: dict[Any, SendStream] = {}

    def __repr__(self) -> str:
        return (
            f"<Outbox {len(self._streams)} streams [{sum(len(stream.open) for stream in self._streams.values())} open]>"
        )

    def _stream(self, stream_id: Any, receivers: Sequence[Peer]) -> SendStream:
        key = receivers[0].endpoint if stream_id == message_facts.POINT_TO_POINT else stream_id
        stream = self._streams.get(key)
        if stream is None:
            with self._lock:
                stream = self._streams.setdefault(key, SendStream(stream_id, receivers, node_of(self._peers.me)))
        return stream

    def _find(self, source: int, stream_id: Any) -> SendStream | None:
        return self._streams.get(source if stream_id == message_facts.POINT_TO_POINT else stream_id)

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, sending: SendWork, receivers: Sequence[Peer], stream_id: Any) -> None:
        """Send or announce the message; an error fails the operation."""
        stream = self._stream(stream_id, receivers)
        in_flight = InFlight(sending, receivers)
        with stream.order:
            for peer in receivers:
                if peer.error is not None:
                    sending.fail(copy_of(peer.error))
                    return
            if not self._send(stream, in_flight):
                return
        if in_flight.awaited:
            # Set ``withdraw`` only after the message was sent. Another thread that abandoned the operation earlier
            # would send WITHDRAW ahead of the message; the receivers would ignore the withdrawal and then accept the
            # abandoned message. If the operation was abandoned before this line, ``done`` below detects it.
            # tests/_messaging/test_mailbox.py::test_a_send_that_is_given_up_under_way_is_withdrawn
            # tests/test_exchange.py::test_a_send_that_is_given_up_in_the_middle_was_never_made
            sending.withdraw = functools.partial(self._withdraw, stream, in_flight)
        self._settle(stream, in_flight)
        if sending.done():
            sending.forget()
            if sending.has_failed:  # another thread abandoned it while it was being sent
                self._rollback(stream, in_flight, ClosedError(f"{sending._describe()} was given up"))
        # A peer may have ended after the check above but before this message was in the table; in that case ``fail``
        # did not see the message.
        for peer in receivers:
            if peer.error is not None:
                self._fail(stream)
                return

    def _send(self, stream: SendStream, in_flight: InFlight) -> bool:
        sending, payload = in_flight.sending, in_flight.sending.payload
        try:
            transport = self._choose_transport(stream, payload)
            if payload.is_on_gpu and transport not in GPU_LINKS:
                # Copy on this thread, because the copy would delay the socket-reading thread.
                payload.make_plain()
        except Exception as error:
            sending.fail(error)
            return False
        with self._lock:
            number = stream.window.add(in_flight).number
            stream.open[number] = in_flight
            if not in_flight.left:
                # Post under the lock: the socket-reading thread may receive ROOM or GRANT at this moment, and would
                # otherwise post the content ahead of this announcement. tests/_messaging/test_mailbox.py::
                # test_no_content_overtakes_its_announcement_when_room_is_returned_at_that_moment
                self._peers.post(
                    stream.receivers, (message_facts.ANNOUNCE, stream.id, number, payload.kind, payload.about)
                )
                return True
        start = (message_facts.DATA, stream.id, number, payload.kind, payload.about, in_flight.charge)
        try:
            self._transmit(stream, in_flight, transport, start)
        except BaseException as error:  # also of a signal handler, which may raise while a large content is copied
            with self._lock:
                stream.open.pop(number, None)
                stream.window.undo(in_flight)
            sending.fail(error)
            if not isinstance(error, Exception):
                raise
            return False
        return True

    def _choose_transport(self, stream: SendStream, payload: Payload) -> str:
        receivers = stream.receivers
        if receivers[0].endpoint == self._peers.me:
            return transport_choice.IN_FRAME
        if isinstance(payload, DevicePayload):
            by_gpu = self._peers.devices.link_to(receivers[0])
            if by_gpu is not None and fits(payload.rest):
                return by_gpu
        return self._cpu_transport(stream, payload)

    def _cpu_transport(self, stream: SendStream, payload: Payload) -> str:
        if stream.is_same_node:
            return transport_choice.choose(payload.nbytes, same_node=True, direct=False)
        receivers = stream.receivers
        direct = len(receivers) == 1 and payload.has_small_head and receivers[0].connection.is_good
        return transport_choice.choose(payload.nbytes, same_node=False, direct=direct)

    def _transmit(self, stream: SendStream, in_flight: InFlight, transport: str, start: tuple[Any, ...]) -> None:
        """Send the content; raise before sending anything if it cannot be packed."""
        if transport in GPU_LINKS:
            try:
                self._by_link(stream, in_flight, stream.receivers, transport, start)
            except Exception as error:
                self._count_failure(stream.receivers[0], in_flight, error)
                transport = self._cpu_transport(stream, in_flight.sending.payload)
            else:
                return
        if transport == transport_choice.IN_FRAME:
            self._by_frame(stream, stream.receivers, in_flight, start, *self._pack(stream, in_flight))
        else:
            self._by_link(stream, in_flight, stream.receivers, transport, start)

    def _pack(self, stream: SendStream, in_flight: InFlight) -> tuple[Any, Sequence[int]]:
        payload = in_flight.sending.payload
        if stream.receivers[0].endpoint == self._peers.me:
            return payload.copy(), ()
        return payload.pack()

    def _by_frame(
        self,
        stream: SendStream,
        receivers: Sequence[Peer],
        in_flight: InFlight,
        start: tuple[Any, ...],
        body: Any,
        fds: Sequence[int],
    ) -> None:
        if in_flight.sending.payload.kind != TENSOR:
            for peer in receivers:
                in_flight.awaited.pop(peer.endpoint, None)
            if not in_flight.awaited:
                self._drop(stream, in_flight)  # the send is done, so a receiver's later error must not affect it
        self._peers.post(receivers, (*start, None), body, fds)

    def _by_link(
        self, stream: SendStream, in_flight: InFlight, receivers: Sequence[Peer], transport: str, start: tuple[Any, ...]
    ) -> None:
        payload, number = in_flight.sending.payload, in_flight.number
        in_flight.by_gpu = transport in GPU_LINKS
        links = [self._peers.link(peer, transport) for peer in receivers]
        body: bytes | int
        buffers: Sequence[Any]
        if in_flight.by_gpu:  # a GPU transfer has a single receiver
            assert isinstance(payload, DevicePayload)
            buffers, places = payload.tensors(), [payload.places]
            body, fds = payload.pack_rest()
        else:
            (body, buffers), places, fds = payload.parts(), [], ()
        sizes = [buffer.nbytes for buffer in buffers]
        for peer, link in zip(receivers, links, strict=True):
            if in_flight.by_gpu and not peer.gpu_link.is_proven:
                # GPU libraries may try to connect forever.
                timeout = settings.GPU_LINK_TIMEOUT_S()
                self._peers.later(timeout, functools.partial(self._abandon_gpu_link, stream, number, peer, link))
            in_flight.attempts += 1
            transfer = next(peer.transfers)
            in_flight.links.append((link, transfer))
            self._peers.post((peer,), (*start, [transport, transfer, sizes, *places]), body, fds)
            work = link.send(transfer, buffers)
            work._follow(functools.partial(self._sent_by_link, stream, in_flight, peer, work))
        # If the message has been withdrawn, no receiver will request it.
        if in_flight.awaited and number not in stream.open:
            in_flight.end_transfers(ClosedError(f"{in_flight.sending._describe()} was withdrawn"))

    def _sent_by_link(self, stream: SendStream, in_flight: InFlight, peer: Peer, work: Any) -> None:
        # Do not raise the error, because its traceback would keep the payload alive until a garbage collection.
        if work._error is not None:
            self._retry(stream, in_flight, (peer,), work._error)

    def _abandon_gpu_link(self, stream: SendStream, number: int, peer: Peer, link: Any) -> None:
        in_flight = stream.open.get(number)
        if in_flight is not None and in_flight.by_gpu and not peer.gpu_link.is_proven:
            link.discard(TransferFailed(f"{link!r} has brought nothing within {settings.GPU_LINK_TIMEOUT_S():g} s"))

    def _count_failure(self, peer: Peer, in_flight: InFlight, error: Exception) -> None:
        logger.info("a message to %s did not come through: %s", peer.label, error)
        if (peer.gpu_link if in_flight.by_gpu else peer.connection).fail() and in_flight.by_gpu:
            logger.warning("tensors on the GPU go to %s by way of the CPU from now on: %s", peer.label, error)

    def _retry(self, stream: SendStream, in_flight: InFlight, peers: Iterable[Peer], error: Exception) -> None:
        sending, number = in_flight.sending, in_flight.number
        with self._lock:
            lacking = in_flight.awaited.keys() - set(in_flight.certain) if number in stream.open else set()
            peers = [peer for peer in peers if peer.endpoint in lacking and peer.error is None]
        if sending.done() or not peers:
            return
        if in_flight.relay is None:
            self._count_failure(peers[0], in_flight, error)
        else:
            logger.info("a message to %s did not come through by the relay: %s", ", ".join(map(str, peers)), error)
        if in_flight.attempts > _MAX_ATTEMPTS * len(stream.receivers):
            sending.abandon(TransferFailed(f"{sending._describe()}: what it carries could not be transferred"))
            return
        start = (message_facts.CONTENT, stream.id, number, 0)
        same_node = all(peer.node == node_of(self._peers.me) for peer in peers)
        try:
            transport = transport_choice.choose(sending.payload.nbytes, same_node=same_node, direct=False)
            if transport != transport_choice.IN_FRAME:
                self._by_link(stream, in_flight, peers, transport, start)
                return
            in_flight.certain = {*in_flight.certain, *(peer.endpoint for peer in peers)}
            in_flight.by_gpu = False
            packed = self._pack(stream, in_flight)
        except Exception as error:
            sending.abandon(error)
            return
        self._by_frame(stream, peers, in_flight, start, *packed)
        self._settle(stream, in_flight)

    # -- relayed broadcasts -------------------------------------------------------------------------------------

    def _is_relayed(self, stream: SendStream, in_flight: InFlight) -> bool:
        """True if the message is large, goes to two or more other nodes, and all its receivers wait for it."""
        payload = in_flight.sending.payload
        is_awaited = in_flight.charge == 0 and stream.other_nodes > 1
        return is_awaited and payload.nbytes >= CHAIN_FROM_BYTES and not payload.is_on_gpu and payload.has_small_head

    def _by_relay(self, stream: SendStream, in_flight: InFlight, start: tuple[Any, ...]) -> None:
        """Send the content over the relay; raise before sending anything if it cannot be packed."""
        here = node_of(self._peers.me)
        near = [peer for peer in stream.receivers if peer.node == here]
        far = [peer for peer in stream.receivers if peer.node != here]
        head, buffers = in_flight.sending.payload.parts()
        memory = memory_of(buffers)
        if near:
            self._by_frame(stream, near, in_flight, start, *self._pack(stream, in_flight))

        def on_landed(peers: Sequence[Peer], place: Any, error: Exception | None) -> None:
            if error is None:
                self._peers.post(peers, (*start, [RELAY, place, [buffer.nbytes for buffer in buffers]]), head)
            else:
                self._retry(stream, in_flight, peers, error)

        carriers = [Carrier(self._peers, self, None, peer, stream.id, in_flight.number) for peer in far]
        in_flight.relay = RelayedBroadcast(carriers, on_landed)
        in_flight.relay.start(memory)
        # Another thread, which did not see the relay, may have withdrawn the message.
        if in_flight.number not in stream.open:
            in_flight.end_relay()

    def on_relay(self, source: Peer, stream_id: Any, number: int, *message: Any) -> None:
        stream = self._find(source.endpoint, stream_id)
        in_flight = None if stream is None else stream.open.get(number)
        # Read the attribute once: another thread may end the relay between two reads.
        relay = None if in_flight is None else in_flight.relay
        if relay is not None:
            relay.on_message(source, *message)

    def forget(self, stream_id: Any) -> None:
        self._streams.pop(stream_id, None)

    # -- ends ---------------------------------------------------------------------------------------------------

    def _settle(self, stream: SendStream, in_flight: InFlight) -> None:
        if not in_flight.awaited:
            self._drop(stream, in_flight)
            in_flight.sending.finish()

    def _drop(self, stream: SendStream, in_flight: InFlight) -> None:
        if in_flight.number in stream.open:
            with self._lock:
                stream.open.pop(in_flight.number, None)
        if in_flight.links:
            # A link keeps a transfer until its receiver requests it, but a receiver that already has the message will
            # never request it. tests/_messaging/test_moments.py::
            # test_a_transfer_that_nobody_asks_for_ends_with_its_message
            in_flight.end_transfers(ClosedError(f"{in_flight.sending._describe()} is done"))
        if in_flight.relay is not None:
            in_flight.end_relay()

    def _withdraw(self, stream: SendStream, in_flight: InFlight, error: Exception) -> None:
        if in_flight.number in stream.open:
            self._rollback(stream, in_flight, error)

    def _rollback(self, stream: SendStream, in_flight: InFlight, error: Exception) -> None:
        self._retract(stream, in_flight, error)
        self._send_announced(stream)

    def _retract(self, stream: SendStream, in_flight: InFlight, error: Exception) -> None:
        number = in_flight.number
        with self._lock:
            stream.open.pop(number, None)
            waiting = stream.window.withdraw(number)
        self._peers.post(stream.receivers, (message_facts.WITHDRAW, stream.id, number))
        if not waiting:
            in_flight.end_transfers(error)
        in_flight.end_relay()

    def fail(self, peer: Peer) -> None:
        for key, stream in list(self._streams.copy().items()):
            if peer in stream.receivers:
                self._streams.pop(key, None)
                self._fail(stream)

    def _fail(self, stream: SendStream) -> None:
        error = next(peer.error for peer in stream.receivers if peer.error is not None)
        with self._lock:
            stream.window.fail()
            messages = list(stream.open.values())
            stream.open.clear()
        for in_flight in messages:
            in_flight.end_relay()
            # End the transfers to living receivers as well, because the caller may change the value from now on.
            in_flight.end_transfers(error)
            in_flight.sending.fail(copy_of(error))

    # -- messages from receivers --------------------------------------------------------------------------------

    def on_room(self, source: Peer, stream_id: Any, total: int) -> None:
        stream = self._find(source.endpoint, stream_id)
        if stream is not None:
            with self._lock:
                leaving = stream.window.received(source.endpoint, total)
            self._send_announced(stream, leaving)

    def on_grant(self, source: Peer, stream_id: Any, number: int) -> None:
        stream = self._find(source.endpoint, stream_id)
        if stream is not None:
            with self._lock:
                in_flight = stream.window.granted(source.endpoint, number)
            if in_flight is not None:
                self._send_announced(stream, [in_flight])

    def _send_announced(self, stream: SendStream, leaving: Sequence[InFlight] = ()) -> None:
        """Send the content of these messages, and of later messages that fit into the remaining room."""
        # A message that is withdrawn or cannot be packed leaves its room unused. No later ROOM message would release
        # the messages behind it, so this is a loop. tests/_messaging/test_moments.py::
        # test_those_behind_a_message_that_does_not_leave_have_its_room
        while True:
            for place, in_flight in enumerate(leaving, 1):
                try:
                    self._send_content(stream, in_flight)
                except BaseException:  # a signal handler has raised; nothing else would send those behind it
                    self._send_announced(stream, leaving[place:])
                    raise
            with self._lock:
                leaving = stream.window.leaving()
            if not leaving:
                return

    def _send_content(self, stream: SendStream, in_flight: InFlight) -> None:
        sending = in_flight.sending
        start = (message_facts.CONTENT, stream.id, in_flight.number, in_flight.charge)
        try:
            if self._is_relayed(stream, in_flight):
                self._by_relay(stream, in_flight, start)
            else:
                self._transmit(stream, in_flight, self._choose_transport(stream, sending.payload), start)
        except BaseException as error:
            with self._lock:
                stream.window.undo(in_flight)
            if sending.fail(error):
                why = error if isinstance(error, Exception) else ClosedError(f"{sending._describe()} was interrupted")
                self._retract(stream, in_flight, why)
            if not isinstance(error, Exception):
                raise
        self._settle(stream, in_flight)

    def on_taken(self, source: Peer, stream_id: Any, number: int) -> None:
        stream = self._find(source.endpoint, stream_id)
        in_flight = None if stream is None else stream.open.get(number)
        if stream is not None and in_flight is not None:
            if in_flight.links and source.endpoint not in in_flight.certain:
                (source.gpu_link if in_flight.by_gpu else source.connection).is_proven = True
            in_flight.awaited.pop(source.endpoint, None)
            self._settle(stream, in_flight)

    def on_lost(self, source: Peer, stream_id: Any, number: int) -> None:
        stream = self._find(source.endpoint, stream_id)
        in_flight = None if stream is None else stream.open.get(number)
        if stream is not None and in_flight is not None:
            self._retry(stream, in_flight, (source,), TransferFailed("the receiver has not got it"))

    def on_refused(self, source: Peer, stream_id: Any, number: int, why: str) -> None:
        stream = self._find(source.endpoint, stream_id)
        if stream is None:
            return
        in_flight = stream.open.get(number)
        relay = None if in_flight is None else in_flight.relay
        if relay is not None:  # the other receivers still get the content
            relay.abandon(TransferFailed(f"{source.label} cannot receive it"))
        with self._lock:
            in_flight = stream.open.pop(number, None)
            waited = stream.window.withdraw(number)
        if waited and len(stream.receivers) > 1:
            self._peers.post(stream.receivers, (message_facts.WITHDRAW, stream.id, number))
        self._send_announced(stream)
        if in_flight is not None:
            in_flight.end_transfers(TransferFailed(f"{source.label} does not want it"))
        text = f"{source.label} could not receive a message: {why}"
        if in_flight is None or not in_flight.sending.fail(ValueError(text)):
            logger.warning("%s", text)  # the operation is already done

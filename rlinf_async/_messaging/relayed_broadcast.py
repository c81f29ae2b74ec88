"""Large broadcasts over the relay: ``RelayedBroadcast`` at the source, ``BroadcastHosts`` at the receiving nodes.

The first receiver of each node is its host. The host receives the message's buffers into sealed memory. The source
sends the memory's name to all receivers of the node; each maps the memory privately and answers TAKEN. The source
then makes the hosts release the memory. Content to be unpickled never travels over the relay, whose pieces may use
unauthenticated connections; it is in the body of the frame that names the memory.

If the relay fails, or stalls, the daemons carry the content, as for other broadcasts.
"""

from __future__ import annotations

import functools
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from rlinf_async._core.segment import allocate_segment, map_private, seal_segment
from rlinf_async._messaging.landing import RelayHost
from rlinf_async._messaging.message_content import Content, Payload
from rlinf_async._messaging.operation import ReceiveWork, SendWork
from rlinf_async._messaging.peer import Peer
from rlinf_async._messaging.peers import Peers
from rlinf_async._messaging.relay import Relay
from rlinf_async._messaging.state import message_facts
from rlinf_async._messaging.state.matching import Message
from rlinf_async._messaging.state.message_facts import TENSOR
from rlinf_async._messaging.state.relay_plan import RelayJob
from rlinf_async._transports.lazy_thread import LazyThread
from rlinf_async._transports.memory import GivenMemory, warm
from rlinf_async._transports.shared_memory import SharedSegment, fits
from rlinf_async.errors import ClosedError, TransferFailed
from rlinf_async.work import Work

RELAY: Final = "relay"

HOST: Final = "host"
END: Final = "end"
"""Messages from the source, in addition to ``RelayPlan``'s: HOST (receive for your node), END (release the memory)."""

STALL_S: Final = 20.0
"""Seconds beyond the transfer time at 4 MiB/s, after which the daemons send the content to receivers that lack it."""

_SLOWEST_BYTES_PER_S: Final = 4 << 20
_SECONDS: Final = 2 * STALL_S
"""Time limit of a broadcast; a host waits for another host's pieces for a fraction of this time."""

_ALIGNMENT_BYTES: Final = 64
_PIECE_BYTES: Final = 1 << 20


def places_of(sizes: Iterable[int]) -> list[slice]:
    """Return the slices for buffers of these sizes in one block of memory."""
    places, end = [], 0
    for size in sizes:
        start = -(-end // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        end = start + size
        places.append(slice(start, end))
    return places


def memory_of(buffers: Sequence[memoryview]) -> memoryview:
    """Return the buffers in one contiguous block of memory, without a copy if there is only one buffer."""
    if len(buffers) == 1:
        return buffers[0]
    places = places_of(buffer.nbytes for buffer in buffers)
    memory = warm.take(places[-1].stop)
    for place, buffer in zip(places, buffers, strict=True):
        target = memory[place]
        for start in range(0, buffer.nbytes, _PIECE_BYTES):  # other threads may run between two pieces
            target[start : start + _PIECE_BYTES] = buffer[start : start + _PIECE_BYTES]
    return memory


def open_landed(memory: Sequence[Any], sizes: Sequence[int], head: bytes) -> Content:
    """Return the content of a message that landed on this node; raise if its host released the content or exited."""
    path, inode = memory
    places = places_of(sizes)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_ino != inode:  # the descriptor's number was reused for another file
            raise TransferFailed(f"{path} is not the memory that was announced")
        view = map_private(fd, places[-1].stop)
    finally:
        os.close(fd)
    return Content(head, [view[place] for place in places])


class Carrier:
    """A link for one broadcast: to a peer, and to other hosts by their addresses.

    A source passes no inbox. ``about`` holds the message's stream and number.
    """

    def __init__(self, peers: Peers, outbox: Any, inbox: Any, peer: Peer, *about: Any) -> None:
        self.peer = peer
        self.link = self
        self.node, self.address, self.label = peer.node, peer.endpoint, peer.label
        self._peers = peers
        self._outbox = outbox
        self._inbox = inbox
        self._about = about
        self._used: list[Callable[[], None]] = []

    @property
    def error(self) -> Exception | None:
        return self.peer.error

    def send_message(self, *message: Any) -> None:
        self._peers.post((self.peer,), (message_facts.RELAY, *self._about, *message))

    def send(self, message: Sequence[Any]) -> None:
        self.send_message(*message)

    def send_tensor(self, piece: memoryview, stream_id: int, receiver: int | None = None) -> Work[Any]:
        peer, stream = self._stream_to(stream_id, receiver)
        sending = SendWork("relay to", peer, None, Payload(TENSOR, None, piece))
        sending._follow(functools.partial(setattr, sending, "payload", Payload(TENSOR, None, b"")))
        self._outbox.send(sending, (peer,), stream)
        self._used.append(functools.partial(self._outbox.forget, stream))
        return sending

    def receive_tensor(self, piece: memoryview, stream_id: int, sender: int | None = None) -> Work[None]:
        peer, stream = self._stream_to(stream_id, sender)
        receiving: ReceiveWork[None] = ReceiveWork("relay from", peer, None, _PieceAcceptor(piece))
        self._inbox.receive(receiving, peer, stream)
        self._used.append(functools.partial(self._inbox.forget, peer, stream))
        return receiving

    def _stream_to(self, stream_id: int, third: int | None) -> tuple[Peer, str]:
        peer = self.peer if third is None else self._peers.at(third)
        self._peers.watch([peer])
        return peer, f"relay {stream_id:x}"

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._peers.later(seconds, callback)

    def forget(self) -> None:
        while self._used:
            self._used.pop()()


class _PieceAcceptor:
    """Acceptor for a piece, which is written in place as it arrives."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def refuses(self, message: Message) -> str | None:
        return None if message.kind == TENSOR else "it is no piece"

    def place(self) -> GivenMemory:
        return GivenMemory(self._memory)

    def arrived(self, content: Content) -> None:
        memory = content.memory()
        if isinstance(memory, SharedSegment):
            memory.read_into(self._memory)
        elif memory is not self._memory:
            self._memory[:] = memory

    def value(self, message: Message) -> None:
        return None


class RelayedBroadcast:
    """A message in transit to receivers on several other nodes; thread-safe.

    Args:
        carriers: one carrier per receiver.
        told: called with receivers and either the memory on their node that holds the message, or the error.
    """

    def __init__(self, carriers: Sequence[Carrier], told: Callable[[list[Peer], Any, Exception | None], None]) -> None:
        self._carriers = {carrier.address: carrier for carrier in carriers}
        self._told: Callable[[list[Peer], Any, Exception | None], None] | None = told
        self._hosts: list[Carrier] = []
        self._lock = threading.RLock()
        self._relay = Relay(self, self._lock, 0)

    def start(self, memory: memoryview) -> None:
        job = RelayJob(1, memory.nbytes, _SECONDS)
        job.body, job.packed, job.facts = memory, memory.nbytes, ()
        carriers = list(self._carriers.values())
        # Hold the lock; otherwise ``close`` could run in between and miss hosts appointed later.
        with self._lock:
            if self._told is None:
                return
            for carrier in carriers:
                self._relay.act(self._relay.plan.join, carrier, None)
            self._relay.act(self._relay.plan.publish, job, carriers)
        seconds = STALL_S + memory.nbytes / _SLOWEST_BYTES_PER_S
        carriers[0].later(seconds, functools.partial(_miss, weakref.ref(self), seconds))

    def on_message(self, peer: Peer, *message: Any) -> None:
        self._relay.on_message(self._carriers[peer.endpoint], *message)

    def abandon(self, error: Exception) -> None:
        """Abandon the relay; receivers that lack the content get it by another path."""
        told = self._told
        self.close()
        if told is not None:
            told([carrier.peer for carrier in self._carriers.values()], None, error)

    def close(self) -> None:
        """Abandon the current transfers, and make the hosts release their memory. Idempotent."""
        with self._lock:
            self._told = None
            self._relay.act(self._relay.plan.close)
            hosts, self._hosts = self._hosts, []
            for carrier in hosts:
                carrier.send_message(END)
            for carrier in self._carriers.values():
                carrier.forget()

    # -- for the relay ------------------------------------------------------------------------------------------

    def appoint(self, carrier: Carrier, stream_id: int) -> None:
        # The plan may have appointed a host just before the broadcast was closed. ``close`` sends END only to the hosts
        # that it finds, so a host appointed afterwards would keep its memory.
        # tests/_messaging/test_moments.py::
        # test_a_broadcast_that_ends_while_its_relay_begins_again_leaves_no_host_behind
        if self._told is not None:
            self._hosts.append(carrier)
            carrier.send_message(HOST, stream_id)

    def inform(self, carrier: Carrier, memory: Any, number: int) -> None:
        if carrier in self._hosts:  # another receiver has replaced this host
            self._hosts.remove(carrier)
            carrier.send_message(END)

    def end(self, carriers: Sequence[Carrier], number: int, memory: Any, error: Exception | None) -> None:
        if self._told is not None:
            self._told([carrier.peer for carrier in carriers], memory, error)


def _miss(reference: weakref.ref[RelayedBroadcast], seconds: float) -> None:
    broadcast = reference()
    if broadcast is not None:
        broadcast.abandon(TransferFailed(f"it has not landed within {seconds:.0f} s"))


class BroadcastHosts:
    """Broadcasts for which this process is its node's host. The thread that reads frames calls the methods."""

    def __init__(self, *mailbox: Any) -> None:
        self._mailbox = mailbox
        self._hosts: dict[tuple[int, Any, int], _BroadcastHost] = {}
        self._thread = LazyThread("broadcasts for this node")

    def on_message(self, source: Peer, stream: Any, number: int, what: str, *facts: Any) -> None:
        key = (source.endpoint, stream, number)
        if what in (HOST, END):
            self._close(key, ClosedError("the broadcast is over, or another one is the host"))
        if what == HOST and source.error is None:
            carrier = Carrier(*self._mailbox, source, stream, number)
            self._hosts[key] = _BroadcastHost(carrier, self._thread.submit, *facts)
        elif key in self._hosts:
            self._hosts[key].on_message(what, *facts)

    def fail(self, source: Peer) -> None:
        for key in [key for key in list(self._hosts) if key[0] == source.endpoint]:
            self._close(key, source.error or ClosedError(f"{source.label} is gone"))

    def _close(self, key: tuple[int, Any, int], error: Exception) -> None:
        host = self._hosts.pop(key, None)
        if host is not None:
            host.close(error)


class _BroadcastHost(RelayHost):
    """Host of one broadcast; keeps the memory until closed."""

    def __init__(self, carrier: Carrier, submit: Callable[[Callable[[], None]], None], stream_id: int) -> None:
        self._rooms: list[_SegmentRoom] = []
        super().__init__(carrier, stream_id, self._make, submit)

    def _make(self, number: int, nbytes: int) -> _SegmentRoom:
        self._rooms.append(_SegmentRoom(nbytes))
        return self._rooms[-1]

    def close(self, error: Exception) -> None:
        super().close(error)
        self.carrier.forget()
        self._submit(self._forget)  # after the job that allocates the room

    def _forget(self) -> None:
        for room in self._rooms:
            room.abandon()


class _SegmentRoom:
    """Sealed memory that other processes of this node can open."""

    def __init__(self, nbytes: int) -> None:
        if not fits(nbytes):
            raise MemoryError(f"the budget of shared memory does not admit {nbytes / (1 << 20):.0f} MiB")
        self._fd = allocate_segment(nbytes, "rlinf-broadcast")
        try:
            seal_segment(self._fd)
            self.memory = memoryview(mmap.mmap(self._fd, nbytes))
        except BaseException:
            os.close(self._fd)
            raise

    def pin(self) -> Callable[[], None]:
        return lambda: None  # the piece's view keeps the mapping alive

    def finish(self, number: int) -> list[Any]:
        return [f"/proc/{os.getpid()}/fd/{self._fd}", os.fstat(self._fd).st_ino]

    def abandon(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self.memory = memoryview(b"")

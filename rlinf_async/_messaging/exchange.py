"""The front end of ``send``, ``recv`` and ``broadcast``: encodes values, resolves members, calls outbox or inbox."""

from __future__ import annotations

import functools
import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from rlinf_async._client import emulated_links
from rlinf_async._client.client import NodeClient
from rlinf_async._core.error_copy import copy_of
from rlinf_async._messaging.collective_options import CollectiveGroupOptions
from rlinf_async._messaging.device_content import DevicePayload, encode_on
from rlinf_async._messaging.group_rosters import GroupSearch, Roster
from rlinf_async._messaging.mailbox import Mailbox
from rlinf_async._messaging.message_content import KINDS, Content, Payload, encode
from rlinf_async._messaging.operation import Member, MessageOperation, ReceiveWork, SendWork, expand
from rlinf_async._messaging.peer import Peer
from rlinf_async._messaging.state.matching import Message
from rlinf_async._messaging.state.message_facts import OBJECT, PAIR, POINT_TO_POINT, TENSOR
from rlinf_async._recorder import recording
from rlinf_async._recorder.state.event_ring import EventKind
from rlinf_async._transports.devices.gpu_link_choice import MIN_GPU_LINK_BYTES
from rlinf_async._transports.memory import GivenMemory
from rlinf_async.address import WorkerInfo
from rlinf_async.errors import NodeLost
from rlinf_async.work import Work

_CONTIGUOUS = (
    "All tensors must be contiguous when using P2P communication without metadata: the receiver's tensor has no way to "
    "know of strides. Send tensor.contiguous(), or use send() and recv()"
)


class Exchange:
    """The sends, receives and broadcasts of one worker. Any thread may call a method, which returns the operation."""

    def __init__(self, client: NodeClient, info: WorkerInfo, group: str) -> None:
        self._client = client
        self._me = Member(group, info.rank)
        self._mailbox = Mailbox(client, (group, info.rank, info.node_name, os.getpid()), info.node_ip)
        self._devices = self._mailbox.peers.devices
        self._mailbox.inbox.wait_for_return = self._wait_for_return

    def __repr__(self) -> str:
        return f"<Exchange of {self._me} {self._mailbox!r}>"

    # -- point to point -----------------------------------------------------------------------------------------

    def send(
        self,
        value: Any,
        group: str,
        rank: int | Sequence[int],
        options: CollectiveGroupOptions | None,
        piggyback: Any,
        timeout: float | None,
        stream: str | None = None,
    ) -> Work[None]:
        """Start a send, on the stream of user messages or on ``stream``, a private stream between the two workers."""
        member = _member(group, rank, options, timeout)
        own = self._devices.own
        payload = encode(value, piggyback) if own is None else encode_on(own, value, piggyback)
        return self._send(SendWork("send() to", member, timeout, payload), member, stream)

    def send_tensor(
        self,
        tensor: Any,
        group: str,
        rank: int | Sequence[int],
        options: CollectiveGroupOptions | None,
        timeout: float | None,
        stream: str | None = None,
    ) -> Work[None]:
        member = _member(group, rank, options, timeout)
        from rlinf_async._transports.in_place import describe, flatten, is_tensor, memory_of

        if not is_tensor(tensor):
            raise AssertionError(f"send_tensor() takes one dense tensor, got {type(tensor).__name__}: send() takes it")
        if not tensor.is_contiguous():
            raise ValueError(_CONTIGUOUS)
        about, own = describe(tensor), self._devices.own
        if own is not None and own.keeps(tensor):
            payload: Payload = DevicePayload(TENSOR, about, flatten(tensor), own)
        else:
            payload = Payload(TENSOR, about, memory_of(tensor))
        return self._send(SendWork("send_tensor() to", member, timeout, payload), member, stream)

    def _send(self, sending: SendWork, member: Member, stream: str | None) -> Work[None]:
        devices = self._devices
        if devices.is_awaited or (sending.payload.nbytes >= MIN_GPU_LINK_BYTES and devices.own is None):
            devices.detect_gpu()

        def start(peers: Sequence[Peer]) -> None:
            sending.peer = peers[0]
            self._send_emulated(sending, [member], peers, self._stream_to(peers[0], stream))

        self._start(sending, [member], start, receives=False, stream=stream)
        return sending

    def recv(
        self,
        group: str,
        rank: int | Sequence[int],
        options: CollectiveGroupOptions | None,
        timeout: float | None,
        stream: str | None = None,
    ) -> Work[Any]:
        member = _member(group, rank, options, timeout)
        return self._receive(ReceiveWork("recv() from", member, timeout, _OBJECT_ACCEPTOR), member, stream)

    def recv_tensor(
        self,
        tensor: Any,
        group: str,
        rank: int | Sequence[int],
        options: CollectiveGroupOptions | None,
        timeout: float | None,
        stream: str | None = None,
        *,
        at_once: bool = False,
    ) -> Work[None]:
        """Start a receive into a tensor.

        Args:
            at_once: True to fill a contiguous CPU tensor while its content is still arriving from another machine. If
                the operation then fails or is abandoned, the tensor may still be written to for a while, and later
                messages on the stream are unreliable.
        """
        member = _member(group, rank, options, timeout)
        from rlinf_async._transports.in_place import is_tensor

        if not is_tensor(tensor):
            raise AssertionError(f"recv_tensor() fills one dense tensor, got {type(tensor).__name__}")
        receiving: ReceiveWork[None] = ReceiveWork(
            "recv_tensor() from", member, timeout, _TensorAcceptor(tensor, at_once)
        )
        return self._receive(receiving, member, stream)

    def _receive(self, receiving: ReceiveWork[Any], member: Member, stream: str | None) -> Work[Any]:
        if self._devices.is_awaited:
            self._devices.detect_gpu()

        def start(peers: Sequence[Peer]) -> None:
            receiving.peer = peers[0]
            self._mailbox.inbox.receive(receiving, peers[0], self._stream_to(peers[0], stream))

        self._start(receiving, [member], start, receives=True, stream=stream)
        return receiving

    def _wait_for_return(self, receiving: ReceiveWork[Any], peer: Peer) -> None:
        member = Member(peer.group, peer.rank)

        def start(peers: Sequence[Peer]) -> None:
            receiving.peer = peers[0]
            self._mailbox.inbox.receive(receiving, peers[0], POINT_TO_POINT)

        # This receive was already posted, so it goes ahead of operations that still wait for an earlier lookup.
        self._resolve(receiving, [member], [], start, receives=True, asked=member)

    # -- broadcast ----------------------------------------------------------------------------------------------

    def broadcast(
        self,
        value: Any,
        groups: Any,
        src: Any,
        options: CollectiveGroupOptions | None,
        timeout: float | None,
    ) -> Work[Any]:
        _check(options, timeout)
        members, source = expand(groups, src)
        if self._me not in members:
            names = ", ".join(map(str, members))
            raise ValueError(f"Worker {self._me} is not part of the broadcast group. It has {names}")
        if self._me != source:
            receiving: ReceiveWork[Any] = ReceiveWork("broadcast() from", source, timeout, _OBJECT_ACCEPTOR)

            def receive(peers: Sequence[Peer]) -> None:
                by_member = dict(zip(members, peers, strict=True))
                receiving.peer = by_member[source]
                self._mailbox.inbox.receive(receiving, by_member[source], _stream(peers), peers)

            self._start(receiving, members, receive, receives=True)
            return receiving

        others = [member for member in members if member != source]
        sending = SendWork("broadcast() to", ", ".join(map(str, others)), timeout, encode(value, None))
        sending.result = value

        def send(peers: Sequence[Peer]) -> None:
            receivers = [peer for member, peer in zip(members, peers, strict=True) if member != source]
            if receivers:
                sending.others = receivers
                self._send_emulated(sending, others, receivers, _stream(peers))
            else:
                sending.finish()

        self._start(sending, members, send, receives=False)
        return sending

    def _send_emulated(
        self, sending: SendWork, members: Sequence[Member], receivers: Sequence[Peer], stream: Any
    ) -> None:
        """Send the message; over an emulated link, only after the link's delay."""
        outbox = self._mailbox.outbox
        if emulated_links.here is None:
            outbox.send(sending, receivers, stream)
            return
        names = [f"{member.group}:{member.rank}" for member in members]
        link = ("worker", receivers[0].endpoint) if stream == POINT_TO_POINT else stream

        def go() -> None:
            # Nothing has been sent so far, so an abandoned send needs no WITHDRAW.
            if not sending.done():
                outbox.send(sending, receivers, stream)

        emulated_links.here.send(link, names, sending.payload.nbytes, go)

    # -- groups -------------------------------------------------------------------------------------------------

    def find_group(self, group: str) -> Work[int]:
        """Return the world size of a group, waiting until the group exists."""
        work = GroupSearch(self._client, group, self._mailbox.names)

        def found(roster: Roster | None, error: Exception | None) -> None:
            if roster is None:
                work._settle(error=error or RuntimeError(f"group '{group}' was not found"))
                return
            # A group that is closed and launched again may have another size. Rank 0 is therefore watched, so that the
            # group's end clears the cached roster.
            endpoint, node, pid = roster.find(0)
            self._mailbox.peers.note_names(endpoint, group, 0, node, pid)
            self._mailbox.peers.watch([self._mailbox.peers.at(endpoint)])
            work._settle(roster.size)

        roster = self._mailbox.names.find(group, found)
        if roster is not None:
            found(roster, None)
        return work

    def locate(self, group: str, rank: int | Sequence[int], timeout: float | None) -> Work[tuple[str, int]]:
        member = _member(group, rank, None, timeout)
        locating: MessageOperation[tuple[str, int]] = MessageOperation("finding", member, timeout)

        def start(peers: Sequence[Peer]) -> None:
            peer = peers[0]
            if peer.error is not None:
                locating.fail(copy_of(peer.error))
            else:
                locating._settle((peer.label, peer.node))

        self._start(locating, [member], start, receives=False)
        return locating

    def is_alive(self, group: str, rank: int) -> bool:
        peer = self._mailbox.peers.named(group, rank)
        return peer is not None and peer.error is None

    def is_restarting(self, group: str, rank: int) -> bool:
        peer = self._mailbox.peers.named(group, rank)
        return peer is not None and peer.returns

    @property
    def known_members(self) -> list[tuple[str, int]]:
        return self._mailbox.peers.members

    def watch_introductions(self, callback: Callable[[str, int], None]) -> Callable[[], None]:
        """Call ``callback`` with the group and rank of each worker that introduces itself, before its first message.

        The callback runs in the thread that reads the socket. Call the returned function to stop.
        """
        callbacks = self._mailbox.peers.introduction_callbacks
        callbacks.append(callback)
        return lambda: callbacks.remove(callback)

    def _stream_to(self, peer: Peer, name: str | None) -> int | bytes:
        if name is None:
            return POINT_TO_POINT
        ends = sorted((self._mailbox.peers.me, peer.endpoint))
        return hashlib.blake2b(struct.pack("<2Q", *ends) + name.encode(), digest_size=16).digest()

    # -- resolving members --------------------------------------------------------------------------------------

    def _start(
        self,
        operation: MessageOperation[Any],
        members: Sequence[Member],
        start: Callable[[Sequence[Peer]], None],
        *,
        receives: bool,
        stream: str | None = None,
    ) -> None:
        # Private streams always have a posted receive, which would fill the recorder, so only a traced run records
        # them, as a separate kind of event.
        if (stream is None or recording.log is not None) and recording.admits():
            nbytes = operation.payload.nbytes if isinstance(operation, SendWork) else 0
            names = " ".join([f"{member.group}:{member.rank}" for member in members])
            name = f"{operation.what.partition('(')[0]} {names}"
            kind = EventKind.LINE if stream is not None else EventKind.RECV if receives else EventKind.SEND
            operation._event = recording.begin(kind, name, nbytes)
        # A receive of a user message may still get messages that a rank sent before it died. Broadcasts and private
        # streams wait for the rank to return instead; otherwise a private stream would fail immediately and be
        # reopened, in an endless loop. tests/_messaging/test_moments.py::
        # test_whatever_a_rank_has_sent_before_its_death_others_than_its_receives_wait_for_its_return
        receives = receives and stream is None and len(members) == 1
        if len(members) == 1:
            peer = None if self._is_queued(members[0]) else self._known(members[0], receives)
            if peer is not None and peer.is_watched:
                start((peer,))
                return
        self._resolve(operation, list(members), [], start, receives)

    def _resolve(
        self,
        operation: MessageOperation[Any],
        missing: list[Member],
        found: list[Peer],
        start: Callable[[Sequence[Peer]], None],
        receives: bool,
        asked: Member | None = None,
    ) -> None:
        # The operation has already waited its turn for the member ``asked``. If it joined the lookup again, it would go
        # behind later operations.
        names = self._mailbox.names
        while missing:
            member = missing[0]
            is_queued = member != asked and self._is_queued(member)
            peer = None if is_queued else self._known(member, receives)
            if peer is None:
                operation.missing = member
                before = self._mailbox.peers.named(*member)
                after = before.endpoint if before is not None and before.returns and not is_queued else 0
                operation.is_away = bool(after)
                if operation._timeout is not None and not after:
                    operation.explain = functools.partial(
                        names.late, member.group, operation._timeout, operation.abandon
                    )

                # The roster arrives even if the operation has been abandoned; an abandoned operation must not be sent:
                # tests/_messaging/test_mailbox.py::test_what_is_given_up_while_it_waits_for_a_name_is_never_sent
                def on_roster(
                    roster: Roster | None, error: Exception | None, after: int = after, asked: Member = member
                ) -> None:
                    if not operation.done() and self._take_roster(operation, missing, found, roster, error, after):
                        self._resolve(operation, missing, found, start, receives, asked)

                operation.withdraw = lambda error: names.leave(on_roster)
                roster = names.find(member.group, on_roster, member.rank, after)
                if roster is None:
                    if operation.done():  # another thread has abandoned the operation
                        names.leave(on_roster)
                    return
                # Do not call ``on_roster``: each member would add its frames to the stack.
                if not self._take_roster(operation, missing, found, roster, None, after):
                    return
                asked = member
                continue
            found.append(peer)
            del missing[0]
        operation.explain = operation.missing = None
        if not operation.done():
            self._mailbox.peers.watch(found)
            start(found)

    def _take_roster(
        self,
        operation: MessageOperation[Any],
        missing: list[Member],
        found: list[Peer],
        roster: Roster | None,
        error: Exception | None,
        after: int,
    ) -> bool:
        """Find the first missing member in a roster. Return False if the operation has failed.

        Args:
            after: endpoint of the rank's dead process, or 0.
        """
        member = missing.pop(0)
        if roster is None:
            before = self._mailbox.peers.named(*member)
            if before is not None and isinstance(before.error, NodeLost):
                # The lost node may also have hosted the group's owner, which in that case could not answer.
                error = copy_of(before.error)
            operation.fail(error or RuntimeError(f"group '{member.group}' was not found"))
            return False
        try:
            endpoint, node, pid = roster.find(member.rank)
        except ValueError as failure:
            operation.fail(failure)
            return False
        peers = self._mailbox.peers
        peers.note_names(endpoint, member.group, member.rank, node, pid)
        peer = peers.named(*member) or peers.at(endpoint)  # the rank may already have another endpoint
        peer.is_supervised = roster.is_supervised(member.rank)
        if peer.returns and peer.endpoint != after:
            # The rank died after the roster was requested, so the roster cannot tell whether the rank returns.
            # tests/_messaging/test_moments.py::
            # test_who_waits_for_a_rank_to_return_is_not_told_of_its_end_by_an_earlier_lookup
            missing.insert(0, member)
            return True
        # The roster still lists the dead process, which means that the rank will not return.
        if peer.returns:
            peers.mark_lost(peer)
        found.append(peer)
        return True

    def _is_queued(self, member: Member) -> bool:
        # A peer may introduce itself, and even die, while earlier operations still wait for the lookup of its name, or
        # for the return of its rank's previous process. A new operation would overtake them, so it joins their lookup.
        # tests/_messaging/test_mailbox.py::
        # test_nobody_overtakes_those_who_wait_for_a_name_by_having_met_the_peer_meanwhile
        # tests/_messaging/test_moments.py::test_nobody_overtakes_those_who_wait_for_a_name_whose_peer_came_and_died
        names = self._mailbox.names
        if not names.lookups or member == self._me:
            return False
        peer = self._mailbox.peers.named(*member)
        return names.is_pending(*member, -1 if peer is None else peer.endpoint)

    def _known(self, member: Member, receives: bool) -> Peer | None:
        mailbox = self._mailbox
        if member == self._me:
            return mailbox.peers.at(mailbox.peers.me)
        peer = mailbox.peers.named(member.group, member.rank)
        # If the peer has ended, receive a message that has already arrived, or wait for the rank's next process.
        if peer is None or peer.error is None or (receives and mailbox.inbox.has_message(peer, POINT_TO_POINT)):
            return peer
        return None


class _ObjectAcceptor:
    """Acceptor for pickled objects, which the waiter's thread rebuilds."""

    def refuses(self, message: Message) -> str | None:
        if message.kind in (OBJECT, PAIR):
            return None
        return f"the peer has used {KINDS.get(message.kind, '?')}() there, which goes with recv_tensor()"

    def place(self) -> None:
        return None

    def arrived(self, content: Content) -> None:
        pass

    def value(self, message: Message) -> Any:
        return message.content.value()


_OBJECT_ACCEPTOR: Final = _ObjectAcceptor()


class _TensorAcceptor:
    """Acceptor for one tensor's bytes, which are copied into the given tensor on arrival."""

    def __init__(self, tensor: Any, at_once: bool) -> None:
        from rlinf_async._transports.devices.gpu_tensors import mark
        from rlinf_async._transports.in_place import memory_of

        self._tensor = tensor
        self._used = mark(tensor)
        self._place = GivenMemory(memory_of(tensor)) if at_once else None

    def refuses(self, message: Message) -> str | None:
        from rlinf_async._transports.in_place import describe, difference

        if message.kind != TENSOR:
            return f"the peer has used {KINDS.get(message.kind, '?')}() there, which goes with recv()"
        why = difference(message.about, describe(self._tensor))
        return None if why is None else f"the tensor that the peer has sent does not fit: {why}"

    def place(self) -> GivenMemory | None:
        return self._place

    def arrived(self, content: Content) -> None:
        from rlinf_async._transports.in_place import fill

        memory = content.memory()
        if self._place is None or memory is not self._place.memory:
            fill(self._tensor, memory, self._used)

    def value(self, message: Message) -> None:
        return None


def _member(group: Any, rank: Any, options: CollectiveGroupOptions | None, timeout: float | None) -> Member:
    _check(options, timeout)
    return Member.of(group, rank)


def _check(options: CollectiveGroupOptions | None, timeout: float | None) -> None:
    if options is not None and not isinstance(options, CollectiveGroupOptions):
        raise TypeError(f"options= takes CollectiveGroupOptions, got {type(options).__name__}")
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout= takes seconds, got {timeout!r}")


def _stream(peers: Sequence[Peer]) -> bytes:
    """Return the id of the broadcast stream among these workers, the same on every member."""
    endpoints = sorted(peer.endpoint for peer in peers)
    return hashlib.blake2b(struct.pack(f"<{len(endpoints)}Q", *endpoints), digest_size=16).digest()

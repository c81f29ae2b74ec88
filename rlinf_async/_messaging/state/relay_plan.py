"""Plan for distributing payloads from one source to hosts on other machines: messages, pieces, failure recovery.

One receiver on each machine, the *host*, receives the payload into memory that all receivers on the machine read::

    source -> host
      BRING   number, sizes                              a payload follows as pieces of these sizes on the stream
      BRING   …, sender, seconds                         another machine's host sends the pieces; once the payload is
                                                         published, each piece must arrive within ``seconds``
      WHOLE   number, facts…                             the payload is published
      PASS    number, receiver, stream                   forward the payload to another machine's host, on that stream
      KEEP    stream                                     stop sending on that stream
    host -> source
      ROOM    number, stream                             the host is ready for the pieces
      LANDED  number, failure, memory, stream            the payload is in ``memory``, or its transfer failed
      STUCK   stream, failure                            the payload cannot be forwarded on that stream

Pieces are sent as soon as they are packed. Machines form a chain (``Chain``) for a large payload, so that it crosses
the source's network only once; neighbouring hosts exchange pieces but no messages. If a connection or a host
fails, the machines behind it in the chain start again with the first piece, each on a new stream:

* If a host dies or cannot receive, the hosts behind it get the payload from the host before it, or from the source.
* STUCK, or LANDED with a failure, means that no piece arrived for a fraction of the time limit: the sender may be
  stopped, or the two machines may be unable to reach each other. The source itself then serves the machine that lacks
  the payload, logs a warning, and does not make the two machines neighbours again for a while.

Plain state: methods are events, after which the owner carries out ``actions`` in order. Receivers are objects of the
owner; a receiver's ``link`` has a ``node``, an ``address`` for other hosts (or None) and a ``label``.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rlinf_async._core import clock
from rlinf_async._messaging.state.chain import DISTRUST_S, Chain, chain_sizes
from rlinf_async.errors import TransferFailed, WorkerDied

BRING: Final = "bring"
WHOLE: Final = "whole"
PASS: Final = "pass"
KEEP: Final = "keep"
ROOM: Final = "room"
LANDED: Final = "landed"
STUCK: Final = "stuck"

TO_HOSTS: Final = frozenset({BRING, WHOLE, PASS, KEEP})
FROM_HOSTS: Final = frozenset({ROOM, LANDED, STUCK})

FIRST_PIECE_BYTES: Final = 16 << 20
"""Size of the first piece to a machine outside the chain: small, so that packing it is quick. Later pieces double."""

MAX_PIECE_BYTES: Final = 256 << 20


def piece_sizes(nbytes: int) -> list[int]:
    """Return the sizes in bytes of the pieces from the source to a machine outside the chain."""
    sizes: list[int] = []
    while nbytes:
        sizes.append(min(nbytes, FIRST_PIECE_BYTES << min(len(sizes), 16), MAX_PIECE_BYTES))
        nbytes -= sizes[-1]
    return sizes


class RelayJob:
    """A payload to distribute.

    Args:
        number: serial number, higher for later payloads.
        seconds: time limit for its receivers, counted from its publication.

    Attributes:
        body: the payload's bytes, sliced into pieces.
        sizes: sizes of its pieces in bytes, the same for all machines.
        packed: number of leading bytes that are final.
        facts: further fields of the WHOLE message once the payload is published; None before that.
        is_current: True while its memory still holds a published payload.
        is_cut: True once a host knows ``sizes``.
        may_wait: True if it waits until an earlier payload has landed on a machine or timed out; False if it replaces
            the earlier payload.
    """

    body: Any
    is_current = True
    may_wait = False
    is_cut = False

    def __init__(self, number: int, nbytes: int, seconds: float) -> None:
        self.number = number
        self.nbytes = nbytes
        self.seconds = seconds
        self.sizes = piece_sizes(nbytes)
        self.packed = 0
        self.facts: tuple[Any, ...] | None = None

    def pin(self) -> None:
        """Keep the memory unchanged until ``unpin``, which must be called once per ``pin``."""

    def unpin(self) -> None: ...


@dataclass(eq=False)
class Machine:
    """A machine with receivers.

    Attributes:
        receivers: receivers on the machine; the first is its *host*.
        stream_id: stream for pieces to its host; each host has a different stream.
        memory, number: memory and number of the last payload that landed on the machine.
        transfer: current transfer to the machine, if any.
        behind: receivers that get the latest payload once the current transfers have ended.
    """

    node: int
    receivers: list[Any] = field(default_factory=list)
    stream_id: int = 0
    memory: Any = None
    number: int = 0
    transfer: NodeTransfer | None = None
    behind: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class NodeTransfer:
    """A transfer of a payload to one machine.

    Attributes:
        waiting: receivers to notify of the transfer's end.
        sender: another machine's host that forwards the payload; None if the source sends it.
        failed_hosts: the machine's hosts that could not receive the payload.
        works: the pieces' sends, kept by the owner.
    """

    job: RelayJob
    machine: Machine
    stream_id: int
    waiting: list[Any]
    sender: Any
    failed_hosts: Sequence[Any]
    works: list[Any] = field(default_factory=list)
    has_room: bool = False
    is_asked: bool = False
    is_told: bool = False
    since: float = field(default_factory=clock.monotonic)
    _sent: int = 0

    @property
    def is_overdue(self) -> bool:
        return clock.monotonic() >= self.since + self.job.seconds

    @property
    def is_wanted(self) -> bool:
        return self.machine.transfer is self

    def next_piece(self) -> Any:
        start, end = sum(self.job.sizes[: self._sent]), sum(self.job.sizes[: self._sent + 1])
        if start == end or end > self.job.packed:
            return None
        self._sent += 1
        return self.job.body[start:end]


class RelaySource(Protocol):
    """The part of a payload's source that a plan calls."""

    def appoint(self, receiver: Any, stream_id: int) -> None:
        """Make a receiver the host of its machine."""

    def inform(self, receiver: Any, memory: Any, number: int) -> None:
        """Notify a receiver, other than the host, of the last payload that landed on its machine."""

    def end(self, receivers: Sequence[Any], number: int, memory: Any, error: Exception | None) -> None:
        """Handle the end of a transfer to these receivers: the payload is in ``memory``, or ``error`` says why not."""


class RelayActions(RelaySource, Protocol):
    """The actions of a plan, which the plan's owner carries out."""

    def send(self, receiver: Any, *message: Any) -> None: ...

    def send_piece(self, transfer: NodeTransfer, receiver: Any, piece: Any) -> None:
        """Send a piece on the transfer's stream, if the transfer is still needed, and call ``sent``."""

    def drop(self, transfer: NodeTransfer) -> None: ...

    def warn(self, text: str) -> None: ...


# This class is not split, although it has more than 30 methods, because each event may change a transfer, its machine
# and the chain together.
class RelayPlan:
    """The distributions of one source, one at a time.

    Args:
        owner: object whose methods carry out the actions.
        chain_from: payload size in bytes from which machines form a chain.

    Attributes:
        actions: owner's methods to call, with their arguments.
        job: payload that is being packed, or was published last.
    """

    def __init__(self, owner: RelayActions, chain_from: int) -> None:
        self.actions: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._owner = owner
        self.job: RelayJob | None = None
        self._published: RelayJob | None = None
        self._chained: RelayJob | None = None
        self._chain_from = chain_from
        self._chain = Chain()
        self._machines: dict[int, Machine] = {}
        self._last_stream_id = secrets.randbits(48)
        """Id of the last stream. Machines identify neighbours by stream, so each source begins at a random number."""

    def _enqueue(self, action: Callable[..., None], *facts: Any) -> None:
        self.actions.append((action, facts))

    # -- receivers ----------------------------------------------------------------------------------------------

    def join(self, receiver: Any, latest: RelayJob | None) -> None:
        machine = self._machines.setdefault(receiver.link.node, Machine(receiver.link.node))
        machine.receivers.append(receiver)
        if machine.receivers[0] is receiver:
            self._appoint(machine)
        else:
            self._enqueue(self._owner.inform, receiver, machine.memory, machine.number)
        self._catch_up(machine, [receiver], latest)

    def catch_up(self, receiver: Any, latest: RelayJob) -> None:
        """Send the latest published payload to a receiver that refused it earlier."""
        machine = self._machine_of(receiver)
        if machine is not None:
            if machine.number >= latest.number:
                self._enqueue(self._owner.end, [receiver], machine.number, machine.memory, None)
            self._catch_up(machine, [receiver], latest)

    def _catch_up(self, machine: Machine, waiting: list[Any], latest: RelayJob | None) -> None:
        if latest is None or machine.number >= latest.number:
            return
        self._published = latest
        if machine.transfer is not None and machine.transfer.job.number >= latest.number:
            _join(machine.transfer.waiting, waiting)
            return
        if self._is_busy(machine, latest):
            _join(machine.behind, waiting)
            return
        if machine.transfer is not None:  # an older payload is in transit, and its host may be stopped
            waiting = list(dict.fromkeys([*machine.transfer.waiting, *waiting]))
            behind = self._chain.leave(machine.node)
            self._next_host(machine)
            self._restart(behind, self._chained)
        self._bring(machine, latest, waiting)

    def leave(self, receiver: Any) -> None:
        """Remove an ended receiver. If it was the host, the next receiver becomes host and gets the current payload."""
        machine = self._machine_of(receiver)
        if machine is None:
            return
        was_host, transfer = machine.receivers[0] is receiver, machine.transfer
        machine.receivers.remove(receiver)
        machine.behind = [other for other in machine.behind if other is not receiver]
        if transfer is not None:
            transfer.waiting = [other for other in transfer.waiting if other is not receiver]
        if was_host:
            behind = self._chain.leave(machine.node)
            self._appoint(machine)
            if transfer is not None and transfer.waiting:
                self._bring(machine, transfer.job, transfer.waiting)
            self._restart(behind, self._chained)
        self._send_waiting()

    def lost(self, receiver: Any, memory: Any, latest: RelayJob) -> None:
        """Send the latest published payload to a receiver that cannot open its host's memory."""
        machine = self._machine_of(receiver)
        if machine is not None:
            if machine.memory == memory and machine.receivers[0] is not receiver:
                waiting = [] if machine.transfer is None else machine.transfer.waiting
                self._next_host(machine)
                if waiting:
                    self._catch_up(machine, waiting, latest)
            self.catch_up(receiver, latest)

    def _machine_of(self, receiver: Any) -> Machine | None:
        machine = self._machines.get(receiver.link.node)
        return machine if machine is not None and receiver in machine.receivers else None

    def _appoint(self, machine: Machine) -> None:
        """Make the first receiver of a machine its host, with new memory."""
        self._drop_transfer(machine)
        self._last_stream_id += 1
        machine.stream_id = self._last_stream_id
        machine.memory, machine.number = None, 0
        if machine.receivers:
            self._enqueue(self._owner.appoint, machine.receivers[0], machine.stream_id)

    def _next_host(self, machine: Machine) -> None:
        """Replace the host with the next receiver, if any; the old host releases its memory."""
        before = machine.receivers.pop(0)
        machine.receivers.append(before)
        self._appoint(machine)
        if machine.receivers[0] is not before:
            self._enqueue(self._owner.inform, before, None, 0)

    def _drop_transfer(self, machine: Machine) -> None:
        transfer = machine.transfer
        if transfer is not None:
            self._end(transfer)
            self._enqueue(self._owner.drop, transfer)
            if transfer.is_asked:
                self._enqueue(self._owner.send, transfer.sender, KEEP, transfer.stream_id)

    def _end(self, transfer: NodeTransfer) -> None:
        transfer.machine.transfer = None
        transfer.job.unpin()

    # -- packing and publishing ---------------------------------------------------------------------------------

    def begin(self, job: RelayJob, receivers: Iterable[Any]) -> bool:
        """Start sending a payload that is still being packed. Return False if no machine gets it."""
        self.job = job
        if job.may_wait and self._is_chaining():
            return False
        machines = [self._machines[node] for node in self._by_node(receivers)]
        for machine in self._plan(machines, job):
            self._bring(machine, job, [])
        return any(machine.transfer is not None and machine.transfer.job is job for machine in machines)

    def _by_node(self, receivers: Iterable[Any]) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for receiver in receivers:
            if self._machine_of(receiver) is not None:  # other receivers get the payload on joining
                found.setdefault(receiver.link.node, []).append(receiver)
        return found

    def _plan(self, machines: Iterable[Machine], job: RelayJob) -> list[Machine]:
        able = [each for each in machines if each.receivers and each.transfer is None]
        chained = [each.node for each in able if each.receivers[0].link.address is not None]
        if job.nbytes < self._chain_from or len(chained) < 2:
            chained = []
        elif not job.is_cut:
            job.sizes = chain_sizes(job.nbytes)
        self._chain.plan(chained, clock.monotonic())
        self._chained = job
        return able

    def packed(self, number: int, nbytes: int) -> None:
        """Record that the first ``nbytes`` bytes of a begun payload are final."""
        if self.job is not None and self.job.number == number:
            self.job.packed = nbytes
            for transfer in self._transfers(self.job):
                self._advance(transfer)

    def _transfers(self, job: RelayJob) -> list[NodeTransfer]:
        return [
            each.transfer for each in self._machines.values() if each.transfer is not None and each.transfer.job is job
        ]

    def abandon(self, number: int, latest: RelayJob | None) -> None:
        """Roll back a payload that was begun and will not be published."""
        job = self.job
        if job is not None and job.number == number and job.facts is None:
            self.job = None
            for transfer in self._transfers(job):
                self._appoint(transfer.machine)
                if transfer.waiting:
                    self._catch_up(transfer.machine, transfer.waiting, latest)
            self._published = latest
            self._send_waiting()

    def publish(self, job: RelayJob, receivers: Iterable[Any]) -> None:
        """Publish a packed payload, and send it to the receivers' machines that lack it."""
        by_node = self._by_node(receivers)
        is_new, self.job, self._published = job is not self.job, job, job
        if is_new and not (job.may_wait and self._is_chaining()):
            self._plan([self._machines[node] for node in by_node], job)
        for node, waiting in by_node.items():
            machine = self._machines[node]
            transfer = machine.transfer
            if transfer is not None and transfer.job.number == job.number:
                # The transfer began during packing, or for a newly joined receiver.
                _join(transfer.waiting, waiting)
                self._advance(transfer)
            elif self._is_busy(machine, job):
                _join(machine.behind, waiting)
            else:
                if transfer is not None:  # the old transfer's host may be suspended
                    self._next_host(machine)
                self._bring(machine, job, waiting)
        for transfer in self._transfers(job):  # includes machines whose receivers have changed in the meantime
            if transfer.machine.node not in by_node:
                self._advance(transfer)

    def _is_chaining(self) -> bool:
        """True if machines are forwarding a payload that is not overdue."""
        transfers = [each.transfer for each in self._machines.values() if each.transfer is not None]
        return any(transfer.sender is not None and not transfer.is_overdue for transfer in transfers)

    def _is_busy(self, machine: Machine, job: RelayJob) -> bool:
        """True if the payload must wait for an earlier transfer to this machine."""
        transfer = machine.transfer
        is_coming = transfer is not None and not transfer.is_overdue
        return job.may_wait and (is_coming or (self._is_chaining() and self._chained is not job))

    def _send_waiting(self) -> None:
        job = self._published
        waiting = [each for each in self._machines.values() if each.behind and each.transfer is None]
        if not waiting or job is None or not job.is_current or self._is_chaining():
            return  # the payload is sent once the chain, or a newer payload, has finished
        self._plan([each for each in waiting if each.number < job.number], job)
        for machine in waiting:
            behind, machine.behind = machine.behind, []
            if machine.number >= job.number:
                self._enqueue(self._owner.end, behind, machine.number, machine.memory, None)
            self._catch_up(machine, behind, job)

    # -- to one machine -----------------------------------------------------------------------------------------

    def _bring(self, machine: Machine, job: RelayJob, waiting: list[Any], *, failed_hosts: Sequence[Any] = ()) -> None:
        _join(waiting, machine.behind)
        machine.behind = []
        if job.facts is not None and not job.is_current:
            if job.may_wait:
                machine.behind = waiting
            else:
                error = TransferFailed(f"version {job.number} is followed by others already")
                self._enqueue(self._owner.end, waiting, job.number, None, error)
            return
        node = self._chain.source(machine.node) if job is self._chained else None
        sender: Any = None if node is None else self._machines[node].receivers[0]
        # Pin the payload until ``_end``, because its memory must not be reused before that.
        job.pin()
        machine.transfer = transfer = NodeTransfer(job, machine, machine.stream_id, waiting, sender, failed_hosts)
        job.is_cut = True
        message = [BRING, job.number, job.sizes]
        if node is not None:
            message += [sender.link.address, self._chain.patience(machine.node, job.seconds)]
        self._enqueue(self._owner.send, machine.receivers[0], *message)
        if node is not None:
            self._advance(transfer)

    def room(self, receiver: Any, number: int, stream_id: int) -> None:
        transfer = self._expected_by(receiver, number, stream_id)
        if transfer is not None:
            transfer.has_room = True
            self._advance(transfer)

    def _expected_by(self, receiver: Any, number: int, stream_id: int) -> NodeTransfer | None:
        """Return the transfer to which a host's message refers; None if the transfer has ended."""
        machine = self._machine_of(receiver)
        transfer = None if machine is None else machine.transfer
        return (
            transfer
            if transfer is not None and transfer.stream_id == stream_id and transfer.job.number == number
            else None
        )

    def _advance(self, transfer: NodeTransfer) -> None:
        job, host = transfer.job, transfer.machine.receivers[0]
        if transfer.sender is None and not transfer.has_room:
            return
        if transfer.sender is not None and transfer.has_room and not transfer.is_asked:
            transfer.is_asked = True
            self._enqueue(self._owner.send, transfer.sender, PASS, job.number, host.link.address, transfer.stream_id)
        while transfer.sender is None and (piece := transfer.next_piece()) is not None:
            # Pin the payload once more, until ``sent``.
            job.pin()
            self._enqueue(self._owner.send_piece, transfer, host, piece)
        if job.facts is not None and not transfer.is_told:
            transfer.is_told = True
            self._enqueue(self._owner.send, host, WHOLE, job.number, *job.facts)

    def sent(self, transfer: NodeTransfer, error: Exception | None) -> None:
        """Handle the end of a piece's send, successful or not."""
        transfer.job.unpin()
        if error is None or not transfer.is_wanted:
            return
        machine = transfer.machine
        failed_hosts = [*transfer.failed_hosts, machine.receivers[0]]
        behind = self._chain.leave(machine.node)
        self._next_host(machine)
        if machine.receivers[0] not in failed_hosts:
            self._bring(machine, transfer.job, transfer.waiting, failed_hosts=failed_hosts)
        else:
            self._fail(transfer, error)
        self._restart(behind, transfer.job)
        self._send_waiting()

    def landed(self, receiver: Any, number: int, error: Exception | None, memory: Any, stream_id: int) -> None:
        transfer = self._expected_by(receiver, number, stream_id)
        if transfer is None:
            return
        if error is not None and transfer.sender is not None:
            self._cut(transfer, error)
            return
        machine = transfer.machine
        if error is None:
            self._end(transfer)
            machine.memory, machine.number = memory, number
            self._chain.landed(machine.node)
            self._enqueue(self._owner.end, transfer.waiting, number, memory, None)
            self._send_waiting()
            return
        if transfer.has_room:
            # Pieces may still be in transit without a posted receive. They pin the memory at the source, and
            # would be mistaken for pieces of the stream's next payload.
            # tests/_messaging/test_relay.py::test_what_cannot_land_is_under_way_no_more
            self._appoint(machine)
        else:
            self._end(transfer)
        behind = self._chain.leave(machine.node)
        self._fail(transfer, error)
        self._restart(behind, transfer.job)
        self._send_waiting()

    def _fail(self, transfer: NodeTransfer, error: Exception) -> None:
        """Report a failure to receivers; receivers of an unpublished payload get the last published one."""
        if transfer.job.facts is None and self._published is not None:
            self._catch_up(transfer.machine, transfer.waiting, self._published)
        else:
            self._enqueue(self._owner.end, transfer.waiting, transfer.job.number, None, error)

    # -- the chain ----------------------------------------------------------------------------------------------

    def stuck(self, receiver: Any, stream_id: int, error: Exception) -> None:
        """Handle STUCK: a host cannot forward the payload."""
        for machine in self._machines.values():
            if (
                machine.transfer is not None
                and machine.transfer.stream_id == stream_id
                and machine.transfer.sender is receiver
            ):
                self._cut(machine.transfer, error)

    def _cut(self, transfer: NodeTransfer, error: Exception) -> None:
        if isinstance(error, WorkerDied):
            return  # one of the two hosts has died, which the source detects itself
        node = transfer.machine.node
        there, sender = transfer.machine.receivers[0].link.label, transfer.sender.link.label
        text = f"what was to come to {there} by way of {sender} could not, and comes from here"
        self._enqueue(self._owner.warn, f"{text}; the two are kept apart for {DISTRUST_S:.0f} s: {error}")
        self._restart(self._chain.cut(node, clock.monotonic()), transfer.job)
        self._send_waiting()

    def _restart(self, nodes: Iterable[int], job: RelayJob | None) -> None:
        for node in nodes:
            transfer = self._machines[node].transfer
            if job is not None and transfer is not None and transfer.job is job:
                self._appoint(transfer.machine)
                self._bring(transfer.machine, job, transfer.waiting)

    def close(self) -> None:
        """Abandon all transfers."""
        for machine in self._machines.values():
            self._drop_transfer(machine)
        self._machines.clear()
        self.job = self._published = self._chained = None


def _join(waiting: list[Any], receivers: Iterable[Any]) -> None:
    waiting += [receiver for receiver in receivers if receiver not in waiting]

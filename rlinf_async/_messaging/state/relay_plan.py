"""Plan of distributions from one source to hosts of other machines: messages and pieces to each, recovery from breaks.

One receiver of each machine, its *host*, gets a payload into memory that all receivers of the machine read::

    source -> host
      BRING   number, sizes                              a payload comes, in pieces of these sizes on the host's stream
      BRING   …, sender, seconds                         another machine's host sends the pieces; once the payload is
                                                         published, each of them within so many seconds
      WHOLE   number, facts…                             the payload is published
      PASS    number, receiver, stream                   pass the payload on to another machine's host, on that stream
      KEEP    stream                                     send nothing more on that stream
    host -> source
      ROOM    number, stream                             the pieces may come
      LANDED  number, failure, memory, stream            the payload is in that memory, or has failed
      STUCK   stream, failure                            the payload cannot be passed on along that stream

Pieces leave as soon as they are packed. Machines form a chain (``Chain``) for a large payload, and the source's network
carries it once: hosts of two neighbours exchange pieces and no messages. If a connection or a host fails, the machines
behind it in the chain begin again with the first piece, each on a new stream:

* If a host dies or cannot receive, the hosts behind it follow the one before it, or the source.
* STUCK, or LANDED with a failure, means that nothing has come for a fraction of the time; the sender may be stopped, or
  the two machines may not reach each other. The source itself serves the machine that lacks the payload, with a
  warning, and the two are not neighbours again for a while.

Plain state: methods are events, after which the owner carries out ``actions`` in their order. A receiver is an object
of the owner; its ``link`` has its ``node``, its ``address`` for other hosts (None: it has none) and its ``label``.
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
"""Size of the first piece to a machine outside the chain, small so that it is packed soon. Each next piece is twice as
large."""

MAX_PIECE_BYTES: Final = 256 << 20
"""Upper bound of doubled piece sizes."""


def piece_sizes(nbytes: int) -> list[int]:
    """Return the sizes in bytes of the pieces from the source to a machine outside the chain."""
    sizes: list[int] = []
    while nbytes:
        sizes.append(min(nbytes, FIRST_PIECE_BYTES << min(len(sizes), 16), MAX_PIECE_BYTES))
        nbytes -= sizes[-1]
    return sizes


class Job:
    """Payload to be distributed.

    Args:
        number: later payloads have higher ones.
        nbytes: its size.
        seconds: time for its receivers, once it is published.

    Attributes:
        body: its bytes, which are sliced for its pieces.
        sizes: sizes of its pieces in bytes, the same for all machines.
        packed: bytes from its beginning that will not change any more.
        facts: further fields of WHOLE once it is published; None before.
        is_current: True while its memory still has a published payload.
        is_cut: True once a host knows ``sizes``.
        may_wait: True: it waits until an earlier payload has landed on a machine, or that one's time is over. False: it
            replaces the earlier payload.
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

    def hold(self) -> None:
        """Keep its memory unchanged until ``unpin``, which is called once for each call."""

    def release(self) -> None: ...


@dataclass(eq=False)
class Machine:
    """Machine with receivers.

    Attributes:
        receivers: receivers on it; the first one is the *host*, and knows it.
        stream_id: stream for pieces to its host; no two hosts ever share one.
        memory, number: memory and number of the last payload that has landed there.
        transfer: payload under way to it.
        behind: receivers that get the latest payload once nothing else is under way.
    """

    node: int
    receivers: list[Any] = field(default_factory=list)
    line: int = 0
    memory: Any = None
    number: int = 0
    way: Way | None = None
    behind: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class Way:
    """Payload under way to one machine.

    Attributes:
        waiting: receivers to notify of its end.
        sender: host of another machine that passes it on; None: the source sends it.
        failed_hosts: hosts of the machine that could not receive it.
        works: sends of its pieces, kept by the owner.
        since: start time.
    """

    job: Job
    machine: Machine
    line: int
    waiting: list[Any]
    sender: Any
    tried: Sequence[Any]
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
        return self.machine.way is self

    def next_piece(self) -> Any:
        """Return the next piece if it is packed, else None."""
        start, end = sum(self.job.sizes[: self._sent]), sum(self.job.sizes[: self._sent + 1])
        if start == end or end > self.job.packed:
            return None
        self._sent += 1
        return self.job.body[start:end]


class Source(Protocol):
    """Callbacks of a plan to the source of its payloads."""

    def appoint(self, receiver: Any, line: int) -> None:
        """Make a receiver the host of its machine."""

    def inform(self, receiver: Any, memory: Any, number: int) -> None:
        """Tell a receiver, which is not the host, the last payload that has landed on its machine."""

    def end(self, receivers: Sequence[Any], number: int, memory: Any, error: Exception | None) -> None:
        """Note that a payload is in the memory of these receivers' machine, or has failed."""


class Owner(Source, Protocol):
    """Actions that a plan has its owner carry out."""

    def say(self, receiver: Any, *words: Any) -> None: ...

    def send(self, way: Way, receiver: Any, piece: Any) -> None:
        """Send a piece on the transfer's stream, if the transfer is still wanted, and call ``sent``."""

    def drop(self, way: Way) -> None:
        """Abandon the sends under way."""

    def warn(self, text: str) -> None: ...


class RelayPlan:
    """Distributions of one source, one after the other.

    Args:
        owner: object whose methods are the actions.
        chain_from: size in bytes from which machines form a chain.

    Attributes:
        actions: owner's methods to call, with their arguments.
        job: payload that is being packed, or was published last.
    """

    def __init__(self, owner: Owner, chain_from: int) -> None:
        self.actions: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._owner = owner
        self.job: Job | None = None
        self._published: Job | None = None
        self._chained: Job | None = None
        """Payload for which the chain was planned."""
        self._chain_from = chain_from
        self._chain = Chain()
        self._machines: dict[int, Machine] = {}
        self._last_line = secrets.randbits(48)
        """Machines know their neighbours by stream, so ids must differ between sources: they start at a random number.
        """

    def _do(self, action: Callable[..., None], *facts: Any) -> None:
        self.actions.append((action, facts))

    # -- receivers ----------------------------------------------------------------------------------------------

    def join(self, receiver: Any, latest: Job | None) -> None:
        """Add a receiver, and bring it the latest published payload."""
        machine = self._machines.setdefault(receiver.link.node, Machine(receiver.link.node))
        machine.receivers.append(receiver)
        if machine.receivers[0] is receiver:
            self._appoint(machine)
        else:
            self._do(self._owner.inform, receiver, machine.memory, machine.number)
        self._catch_up(machine, [receiver], latest)

    def catch_up(self, receiver: Any, latest: Job) -> None:
        """Bring the latest published payload to a receiver that refused it before."""
        machine = self._machine_of(receiver)
        if machine is not None:
            if machine.number >= latest.number:
                self._do(self._owner.end, [receiver], machine.number, machine.memory, None)
            self._catch_up(machine, [receiver], latest)

    def _catch_up(self, machine: Machine, waiting: list[Any], latest: Job | None) -> None:
        if latest is None or machine.number >= latest.number:
            return
        self._published = latest
        if machine.way is not None and machine.way.job.number >= latest.number:
            _join(machine.way.waiting, waiting)
            return
        if self._is_busy(machine, latest):
            _join(machine.behind, waiting)
            return
        if machine.way is not None:  # of something older: the host is stopped, perhaps
            waiting = list(dict.fromkeys([*machine.way.waiting, *waiting]))
            behind = self._chain.leave(machine.node)
            self._next_host(machine)
            self._begin_again(behind, self._chained)
        self._bring(machine, latest, waiting)

    def leave(self, receiver: Any) -> None:
        """Remove a receiver that is gone. If it was the host, the next receiver becomes host and gets the current
        payload."""
        machine = self._machine_of(receiver)
        if machine is None:
            return
        was_host, way = machine.receivers[0] is receiver, machine.way
        machine.receivers.remove(receiver)
        machine.behind = [other for other in machine.behind if other is not receiver]
        if way is not None:
            way.waiting = [other for other in way.waiting if other is not receiver]
        if was_host:
            behind = self._chain.leave(machine.node)
            self._appoint(machine)
            if way is not None and way.waiting:
                self._bring(machine, way.job, way.waiting)
            self._begin_again(behind, self._chained)
        self._go_further()

    def lost(self, receiver: Any, memory: Any, latest: Job) -> None:
        """Bring the latest published payload to a receiver that cannot open its host's memory."""
        machine = self._machine_of(receiver)
        if machine is not None:
            if machine.memory == memory and machine.receivers[0] is not receiver:
                waiting = [] if machine.way is None else machine.way.waiting
                self._next_host(machine)
                if waiting:
                    self._catch_up(machine, waiting, latest)
            self.catch_up(receiver, latest)

    def _machine_of(self, receiver: Any) -> Machine | None:
        machine = self._machines.get(receiver.link.node)
        return machine if machine is not None and receiver in machine.receivers else None

    def _appoint(self, machine: Machine) -> None:
        """Make the first receiver of a machine its host, with new memory."""
        self._give_up(machine)
        self._last_line += 1
        machine.line = self._last_line
        machine.memory, machine.number = None, 0
        if machine.receivers:
            self._do(self._owner.appoint, machine.receivers[0], machine.line)

    def _next_host(self, machine: Machine) -> None:
        """Replace the host by the next receiver, if there is one; the old host releases its memory."""
        before = machine.receivers.pop(0)
        machine.receivers.append(before)
        self._appoint(machine)
        if machine.receivers[0] is not before:
            self._do(self._owner.inform, before, None, 0)

    def _give_up(self, machine: Machine) -> None:
        way = machine.way
        if way is not None:
            self._end(way)
            self._do(self._owner.drop, way)
            if way.is_asked:
                self._do(self._owner.say, way.sender, KEEP, way.line)

    def _end(self, way: Way) -> None:
        way.machine.way = None
        way.job.release()

    # -- packing and publishing ---------------------------------------------------------------------------------

    def begin(self, job: Job, receivers: Iterable[Any]) -> bool:
        """Start sending a payload to these receivers' machines while it is packed. Return False if it is sent to none."""
        self.job = job
        if job.may_wait and self._is_chaining():
            return False
        machines = [self._machines[node] for node in self._by_node(receivers)]
        for machine in self._plan(machines, job):
            self._bring(machine, job, [])
        return any(machine.way is not None and machine.way.job is job for machine in machines)

    def _by_node(self, receivers: Iterable[Any]) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for receiver in receivers:
            if self._machine_of(receiver) is not None:  # others get it when they join
                found.setdefault(receiver.link.node, []).append(receiver)
        return found

    def _plan(self, machines: Iterable[Machine], job: Job) -> list[Machine]:
        """Plan the chain. Return the machines to which the payload can leave now."""
        able = [each for each in machines if each.receivers and each.way is None]
        chained = [each.node for each in able if each.receivers[0].link.address is not None]
        if job.nbytes < self._chain_from or len(chained) < 2:
            chained = []
        elif not job.is_cut:
            job.sizes = chain_sizes(job.nbytes)
        self._chain.plan(chained, clock.monotonic())
        self._chained = job
        return able

    def packed(self, number: int, nbytes: int) -> None:
        """Note that so many bytes of a payload that was begun will not change any more."""
        if self.job is not None and self.job.number == number:
            self.job.packed = nbytes
            for way in self._ways(self.job):
                self._go_on(way)

    def _ways(self, job: Job) -> list[Way]:
        return [each.way for each in self._machines.values() if each.way is not None and each.way.job is job]

    def abandon(self, number: int, latest: Job | None) -> None:
        """Roll back a payload that was begun and will not be published."""
        job = self.job
        if job is not None and job.number == number and job.facts is None:
            self.job = None
            for way in self._ways(job):
                self._appoint(way.machine)
                if way.waiting:
                    self._catch_up(way.machine, way.waiting, latest)
            self._published = latest
            self._go_further()

    def publish(self, job: Job, receivers: Iterable[Any]) -> None:
        """Publish a packed payload, and send it to those of these receivers' machines that it was not sent to yet."""
        by_node = self._by_node(receivers)
        is_new, self.job, self._published = job is not self.job, job, job
        if is_new and not (job.may_wait and self._is_chaining()):
            self._plan([self._machines[node] for node in by_node], job)
        for node, waiting in by_node.items():
            machine = self._machines[node]
            way = machine.way
            if way is not None and way.job.number == job.number:
                # Begun when it was packed, or a receiver that has just come has asked for it.
                _join(way.waiting, waiting)
                self._go_on(way)
            elif self._is_busy(machine, job):
                _join(machine.behind, waiting)
            else:
                if way is not None:  # the host is stopped, perhaps
                    self._next_host(machine)
                self._bring(machine, job, waiting)
        for way in self._ways(job):  # also to machines whose receivers have left since, and others have come
            if way.machine.node not in by_node:
                self._go_on(way)

    def _is_chaining(self) -> bool:
        """True if machines pass on a payload that is not overdue. A waiting one takes its place in the chain
        afterwards."""
        ways = [each.way for each in self._machines.values() if each.way is not None]
        return any(way.sender is not None and not way.is_overdue for way in ways)

    def _is_busy(self, machine: Machine, job: Job) -> bool:
        """True if the payload has to wait for an earlier one that is under way to that machine."""
        way = machine.way
        is_coming = way is not None and not way.is_overdue
        return job.may_wait and (is_coming or (self._is_chaining() and self._chained is not job))

    def _go_further(self) -> None:
        """Bring the latest payload to machines for which it has waited."""
        job = self._published
        waiting = [each for each in self._machines.values() if each.behind and each.way is None]
        if not waiting or job is None or not job.is_current or self._is_chaining():
            return  # it comes once nothing is passed on any more, or the next one comes instead
        self._plan([each for each in waiting if each.number < job.number], job)
        for machine in waiting:
            behind, machine.behind = machine.behind, []
            if machine.number >= job.number:
                self._do(self._owner.end, behind, machine.number, machine.memory, None)
            self._catch_up(machine, behind, job)

    # -- to one machine -----------------------------------------------------------------------------------------

    def _bring(self, machine: Machine, job: Job, waiting: list[Any], *, tried: Sequence[Any] = ()) -> None:
        _join(waiting, machine.behind)
        machine.behind = []
        if job.facts is not None and not job.is_current:
            if job.may_wait:
                machine.behind = waiting
            else:
                error = TransferFailed(f"version {job.number} is followed by others already")
                self._do(self._owner.end, waiting, job.number, None, error)
            return
        node = self._chain.source(machine.node) if job is self._chained else None
        sender: Any = None if node is None else self._machines[node].receivers[0]
        job.hold()  # until ``_end``: nothing else comes into that memory
        machine.way = way = Way(job, machine, machine.line, waiting, sender, tried)
        job.is_cut = True
        words = [BRING, job.number, job.sizes]
        if node is not None:
            words += [sender.link.address, self._chain.patience(machine.node, job.seconds)]
        self._do(self._owner.say, machine.receivers[0], *words)
        if node is not None:
            self._go_on(way)

    def room(self, receiver: Any, number: int, line: int) -> None:
        """Handle ROOM: a host is ready for the pieces."""
        way = self._expected_by(receiver, number, line)
        if way is not None:
            way.has_room = True
            self._go_on(way)

    def _expected_by(self, receiver: Any, number: int, line: int) -> Way | None:
        """Return the transfer that a host's message is about; None if it is not under way any more."""
        machine = self._machine_of(receiver)
        way = None if machine is None else machine.way
        return way if way is not None and way.line == line and way.job.number == number else None

    def _go_on(self, way: Way) -> None:
        """Send, or have another host send, whatever can be sent now."""
        job, host = way.job, way.machine.receivers[0]
        if way.sender is None and not way.has_room:
            return
        if way.sender is not None and way.has_room and not way.is_asked:
            way.is_asked = True
            self._do(self._owner.say, way.sender, PASS, job.number, host.link.address, way.line)
        while way.sender is None and (piece := way.next_piece()) is not None:
            job.hold()  # until ``sent``
            self._do(self._owner.send, way, host, piece)
        if job.facts is not None and not way.is_told:
            way.is_told = True
            self._do(self._owner.say, host, WHOLE, job.number, *job.facts)

    def sent(self, way: Way, error: Exception | None) -> None:
        """Note that a piece has left, or has failed."""
        way.job.release()
        if error is None or not way.is_wanted:
            return
        behind, tried = self._chain.leave(way.machine.node), [*way.tried, way.machine.receivers[0]]
        self._next_host(way.machine)
        if way.machine.receivers[0] not in tried:
            self._bring(way.machine, way.job, way.waiting, tried=tried)
        else:
            self._fail(way, error)
        self._begin_again(behind, way.job)
        self._go_further()

    def landed(self, receiver: Any, number: int, error: Exception | None, memory: Any, line: int) -> None:
        """Handle LANDED: a host has the payload, or cannot have it."""
        way = self._expected_by(receiver, number, line)
        if way is None:
            return
        if error is not None and way.sender is not None:
            self._cut(way, error)
            return
        machine = way.machine
        if error is None:
            self._end(way)
            machine.memory, machine.number = memory, number
            self._chain.landed(machine.node)
            self._do(self._owner.end, way.waiting, number, memory, None)
            self._go_further()
            return
        if way.has_room:
            # Pieces without a receive may still be under way. They pin the memory at the source, and the next payload
            # on that stream would take them for its own.
            # tests/_messaging/test_relay.py::test_what_cannot_land_is_under_way_no_more
            self._appoint(machine)
        else:
            self._end(way)
        behind = self._chain.leave(machine.node)
        self._fail(way, error)
        self._begin_again(behind, way.job)
        self._go_further()

    def _fail(self, way: Way, error: Exception) -> None:
        """Report a failure to receivers; those that wait for an unpublished payload get the published one before it."""
        if way.job.facts is None and self._published is not None:
            self._catch_up(way.machine, way.waiting, self._published)
        else:
            self._do(self._owner.end, way.waiting, way.job.number, None, error)

    # -- along the chain ----------------------------------------------------------------------------------------

    def stuck(self, receiver: Any, line: int, error: Exception) -> None:
        """Handle STUCK: a host cannot pass the payload on."""
        for machine in self._machines.values():
            if machine.way is not None and machine.way.line == line and machine.way.sender is receiver:
                self._cut(machine.way, error)

    def _cut(self, way: Way, error: Exception) -> None:
        """Separate a machine from the one that should pass it the payload."""
        if isinstance(error, WorkerDied):
            return  # one of the two, which is heard here too
        node = way.machine.node
        there, sender = way.machine.receivers[0].link.label, way.sender.link.label
        text = f"what was to come to {there} by way of {sender} could not, and comes from here"
        self._do(self._owner.warn, f"{text}; the two are kept apart for {DISTRUST_S:.0f} s: {error}")
        self._begin_again(self._chain.cut(node, clock.monotonic()), way.job)
        self._go_further()

    def _begin_again(self, nodes: Iterable[int], job: Job | None) -> None:
        """Send these machines the payload once more from its first piece, each from its sender."""
        for node in nodes:
            way = self._machines[node].way
            if job is not None and way is not None and way.job is job:
                self._appoint(way.machine)
                self._bring(way.machine, job, way.waiting)

    def close(self) -> None:
        """Abandon everything under way."""
        for machine in self._machines.values():
            self._give_up(machine)
        self._machines.clear()
        self.job = self._published = self._chained = None


def _join(waiting: list[Any], receivers: Iterable[Any]) -> None:
    waiting += [receiver for receiver in receivers if receiver not in waiting]

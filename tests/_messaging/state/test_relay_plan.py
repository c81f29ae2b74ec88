"""Distributions to other machines: each receiver hears of its payload once, in whatever order things happen."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlinf_async._messaging.state.relay_plan import BRING, KEEP, PASS, WHOLE, Machine, NodeTransfer, RelayJob, RelayPlan
from rlinf_async.errors import PeerLost, TransferFailed

MEBI = 1 << 20
NBYTES = 20 * MEBI
"""Three pieces along a chain, two from the source."""


class Payload(RelayJob):
    def __init__(self, number: int, may_wait: bool = False) -> None:
        super().__init__(number, NBYTES, 3600.0)
        self.may_wait = may_wait
        self.body = range(NBYTES)
        self.holds = 0

    def pin(self) -> None:
        self.holds += 1

    def unpin(self) -> None:
        self.holds -= 1
        assert self.holds >= 0


class Member:
    """A receiver, which does as it is told, step by step."""

    def __init__(self, node: int, number: int) -> None:
        self.node = node
        self.address: Any = number
        self.label = f"receiver {number} on machine {node}"
        self.link = self
        self.heard: list[Any] = []
        self.stream_id = 0
        self.bring: Any = None
        self.here = 0
        self.is_whole = False
        self.passes: set[int] = set()

    def hear(self, what: str, *facts: Any) -> None:
        if what == "host":
            self.stream_id, self.bring, self.passes = facts[0], None, set()
        elif what == "hello":
            self.stream_id, self.bring, self.passes = 0, None, set()
        elif what == BRING:
            assert self.stream_id, "only hosts hear of what comes"
            self.bring, self.here, self.is_whole, self.passes = facts, 0, False, set()
        elif what == WHOLE:
            self.is_whole = True
        elif what == PASS:
            assert facts[2] not in self.passes, "it is asked for once"
            self.passes.add(facts[2])
        else:
            assert what == KEEP
            self.passes.discard(facts[0])


class Distributions(RuleBasedStateMachine):
    """A source and its machines, of which any may be slow, dead, deaf or liars."""

    @initialize(nodes=st.lists(st.integers(1, 4), min_size=1, max_size=6), may_wait=st.booleans())
    def begin(self, nodes: list[int], may_wait: bool) -> None:
        self.may_wait = may_wait
        self.plan = RelayPlan(self, chain_from=1)
        self.members: list[Member] = []
        self.leaving: list[tuple[NodeTransfer, Member, Any]] = []
        self.jobs: list[Payload] = []
        self.begun: Payload | None = None
        self.latest: Payload | None = None
        self.told: Counter[tuple[int, int]] = Counter()
        self.due: set[int] = set()
        self.lines: set[int] = set()
        self.sizes: dict[int, list[int]] = {}
        self.landed_lines: set[int] = set()
        self.numbers = 0
        for node in nodes:
            self.join(node)

    def carry_out(self) -> None:
        while self.plan.actions:
            action, facts = self.plan.actions.popleft()
            action(*facts)

    def send(self, receiver: Member, *words: Any) -> None:
        receiver.heard.append(words)
        if words[0] == BRING:
            job = next(job for job in self.jobs if job.number == words[1])
            assert words[2] == self.sizes.setdefault(job.number, words[2]), "hosts pass on the pieces that they get"
            assert job.facts is None or job.is_current, "its memory has something else"

    def appoint(self, receiver: Member, stream_id: int) -> None:
        assert stream_id not in self.lines, "what is under way on a stream would be taken for what comes"
        self.lines.add(stream_id)
        receiver.heard.append(("host", stream_id))

    def inform(self, receiver: Member, memory: Any, number: int) -> None:
        receiver.heard.append(("hello",))
        # Its host may be replaced in the same breath, and its memory is gone then: the receiver asks for it (``lost``).
        self.told[number, receiver.address] += 1

    def send_piece(self, transfer: NodeTransfer, receiver: Member, piece: Any) -> None:
        assert piece.stop <= transfer.job.packed, "it may change"
        self.leaving.append((transfer, receiver, piece))

    def drop(self, transfer: NodeTransfer) -> None:
        for sending in [each for each in self.leaving if each[0] is transfer]:
            self.leaving.remove(sending)
            self.plan.sent(sending[0], TransferFailed("given up"))

    def end(self, receivers: list[Member], number: int, memory: Any, error: Exception | None) -> None:
        assert (memory is None) == (error is not None)
        for receiver in receivers:
            assert receiver in self.members
            self.tell(receiver, memory, number)

    def warn(self, text: str) -> None:
        pass

    def tell(self, receiver: Member, memory: Any, number: int) -> None:
        if memory is not None:
            assert memory == (number, self.machine_of(receiver).stream_id), "another host's is gone"
        self.told[number, receiver.address] += 1

    def machine_of(self, member: Member) -> Machine:
        return self.plan._machines[member.node]

    def upstream(self, machine: Machine) -> list[Machine]:
        """Machines without which this one does not get what is on its way to it."""
        found = []
        while machine.transfer is not None and machine.transfer.sender is not None:
            machine = self.machine_of(machine.transfer.sender)
            found.append(machine)
        return found

    @invariant()
    def each_way_is_consistent(self) -> None:
        if not hasattr(self, "plan"):
            return
        transfers = [machine.transfer for machine in self.plan._machines.values() if machine.transfer is not None]
        held = Counter(
            [transfer.job.number for transfer in transfers] + [transfer.job.number for transfer, *_ in self.leaving]
        )
        assert {job.number: job.holds for job in self.jobs if job.holds} == held, "for each, and for each piece"
        assert all(transfer.is_wanted for transfer, *_ in self.leaving)
        for transfer in transfers:
            if transfer.sender is not None and transfer.job is self.plan._chained:
                before, number = self.machine_of(transfer.sender), transfer.job.number
                assert before.receivers[0] is transfer.sender
                assert before.number == number or (before.transfer is not None and before.transfer.job.number == number)
        for member in self.members:
            if (
                self.latest is not None
                and member.address in self.due
                and not self.told[self.latest.number, member.address]
            ):
                machine = self.machine_of(member)
                assert (machine.transfer is not None and member in machine.transfer.waiting) or (
                    member in machine.behind and (transfers or self.begun is not None)
                ), "it would never hear of it"

    # -- the source ---------------------------------------------------------------------------------------------

    @rule(node=st.integers(1, 4))
    def join(self, node: int) -> None:
        if len(self.members) < 8:
            self.numbers += 1
            self.members.append(Member(node, self.numbers))
            if self.latest is not None:
                self.due.add(self.numbers)
            self.plan.join(self.members[-1], self.latest)
            self.carry_out()

    @precondition(lambda self: self.latest is not None)
    @rule(data=st.data())
    def catch_up(self, data: st.DataObject) -> None:
        """One has refused what comes, and takes it now."""
        if self.members:
            assert self.latest is not None
            member = data.draw(st.sampled_from(self.members))
            self.due.add(member.address)
            self.told[self.latest.number, member.address] = 0
            self.plan.catch_up(member, self.latest)
            self.carry_out()

    @precondition(lambda self: self.begun is None)
    @rule(numbers=st.sets(st.integers(0, 7), min_size=1))
    def pack(self, numbers: set[int]) -> None:
        self.begun = Payload(1 + max([job.number for job in self.jobs], default=0), self.may_wait)
        self.jobs.append(self.begun)
        self.plan.begin(self.begun, [self.members[number] for number in numbers if number < len(self.members)])
        self.carry_out()

    @precondition(lambda self: self.begun is not None)
    @rule(nbytes=st.integers(0, NBYTES))
    def packed(self, nbytes: int) -> None:
        assert self.begun is not None
        self.plan.packed(self.begun.number, max(nbytes, self.begun.packed))
        self.carry_out()

    @precondition(lambda self: self.begun is not None)
    @rule()
    def abandon(self) -> None:
        assert self.begun is not None
        self.plan.abandon(self.begun.number, self.latest)
        self.begun = None
        self.carry_out()

    @rule(numbers=st.sets(st.integers(0, 7), min_size=1))
    def publish(self, numbers: set[int]) -> None:
        if self.begun is None:
            self.begun = Payload(1 + max([job.number for job in self.jobs], default=0), self.may_wait)
            self.jobs.append(self.begun)
        if self.latest is not None:
            self.latest.is_current = False
        self.latest, self.begun = self.begun, None
        self.latest.packed, self.latest.facts = NBYTES, ()
        receivers = [self.members[number] for number in numbers if number < len(self.members)]
        self.due = {receiver.address for receiver in receivers}
        self.plan.publish(self.latest, receivers)
        self.carry_out()

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.members:
            member = self.members.pop(data.draw(st.integers(0, len(self.members) - 1)))
            self.due.discard(member.address)
            here, machines = self.machine_of(member), self.plan._machines.values()
            others = [each for each in machines if each is not here and here not in self.upstream(each)]
            lines = [each.stream_id for each in others]
            self.plan.leave(member)
            assert [each.stream_id for each in others] == lines, "they do not depend on it"
            self.carry_out()

    @rule(data=st.data())
    def be_overdue(self, data: st.DataObject) -> None:
        """The time is over for what is on its way to a machine."""
        transfers = [machine.transfer for machine in self.plan._machines.values() if machine.transfer is not None]
        if transfers:
            data.draw(st.sampled_from(transfers)).since = -math.inf

    @rule(data=st.data())
    def lose_a_piece(self, data: st.DataObject) -> None:
        if self.leaving:
            transfer, host, _ = self.leaving.pop(data.draw(st.integers(0, len(self.leaving) - 1)))
            self.plan.sent(transfer, PeerLost("no way"))
            assert transfer.machine.receivers[0] is not host or len(transfer.machine.receivers) == 1
            self.carry_out()

    # -- the hosts ----------------------------------------------------------------------------------------------

    @rule(data=st.data(), steps=st.sampled_from([1, 2, 20]))
    def step(self, data: st.DataObject, steps: int) -> None:
        if self.members:
            member = data.draw(st.sampled_from(self.members))
            while steps and self.go_on(member):
                steps -= 1

    @rule(numbers=st.sets(st.integers(0, 7), min_size=1), pieces=st.integers(0, 3))
    def run(self, numbers: set[int], pieces: int) -> None:
        """Some go on as far as they can, and get so many pieces."""
        members = [self.members[number] for number in numbers if number < len(self.members)]
        while any(self.go_on(member) for member in members if member.bring is None or member.here < pieces):
            pass

    def go_on(self, member: Member) -> bool:
        """Whether there was anything to do."""
        if member.heard:
            words = member.heard.pop(0)
            member.hear(*words)
            if words[0] == BRING:
                self.plan.room(member, words[1], member.stream_id)
        elif member.bring is None:
            return False
        elif member.here < len(member.bring[1]):
            if not self.has_come(member):
                return False
            member.here += 1
        elif member.is_whole:
            number, member.bring = member.bring[0], None
            self.landed_lines.add(member.stream_id)
            self.plan.landed(member, number, None, (number, member.stream_id), member.stream_id)
        else:
            return False
        self.carry_out()
        return True

    def has_come(self, member: Member) -> bool:
        if len(member.bring) > 2:  # from another host
            sender = next((other for other in self.members if other.address == member.bring[2]), None)
            return sender is not None and member.stream_id in sender.passes and sender.here > member.here
        for sending in self.leaving:
            if sending[0].stream_id == member.stream_id and sending[1] is member:
                sizes = member.bring[1]
                start = sum(sizes[: member.here])
                assert sending[2] == range(start, start + sizes[member.here]), "they come in order"
                self.leaving.remove(sending)
                self.plan.sent(sending[0], None)
                return True
        return False

    @rule(data=st.data())
    def complain(self, data: st.DataObject) -> None:
        if self.members:
            self.give_up(data.draw(st.sampled_from(self.members)))

    def give_up(self, member: Member) -> bool:
        if member.bring is None:
            return False
        number, member.bring = member.bring[0], None
        self.plan.landed(member, number, TransferFailed("nothing has come"), None, member.stream_id)
        transfer = self.machine_of(member).transfer if member in self.members else None
        assert transfer is None or transfer.stream_id != member.stream_id, "it would wait for ever"
        self.carry_out()
        return True

    @rule(data=st.data())
    def be_stuck(self, data: st.DataObject) -> None:
        if self.members and (member := data.draw(st.sampled_from(self.members))).passes:
            self.plan.stuck(member, data.draw(st.sampled_from(sorted(member.passes))), TransferFailed("no way"))
            self.carry_out()

    @rule(data=st.data(), by=st.integers(1, 9))
    def talk_of_something_else(self, data: st.DataObject, by: int) -> None:
        if self.members:
            member = data.draw(st.sampled_from(self.members))
            transfer = self.machine_of(member).transfer
            stream_id, number = (
                (member.stream_id, by) if transfer is None else (transfer.stream_id, transfer.job.number)
            )
            for wrong in ((number + by, stream_id), (number, stream_id - by), (number, stream_id + by)):
                self.plan.room(member, *wrong)
                self.plan.landed(member, wrong[0], None, "nowhere", wrong[1])
            assert not self.plan.actions

    # -- the end ------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "plan"):
            return
        if self.begun is not None:
            self.abandon()
        while any(map(self.go_on, self.members)) or any(map(self.give_up, self.members)):
            pass
        assert self.latest is None or all(self.told[self.latest.number, address] == 1 for address in self.due)
        assert all(count <= 1 for (number, _), count in self.told.items() if number)
        for machine in self.plan._machines.values():
            assert [member.stream_id for member in machine.receivers[1:]] == [0] * len(machine.receivers[1:])
            assert not machine.receivers or machine.receivers[0].stream_id == machine.stream_id
        self.plan.close()
        self.carry_out()
        while any(map(self.go_on, self.members)):
            pass
        assert all(member.passes <= self.landed_lines for member in self.members), "nothing is awaited there"
        for transfer, *_ in self.leaving:
            self.plan.sent(transfer, None)
        assert [job.number for job in self.jobs if job.holds] == []


TestDistributions = Distributions.TestCase
TestDistributions.settings = settings(max_examples=200, stateful_step_count=40, deadline=None, derandomize=True)

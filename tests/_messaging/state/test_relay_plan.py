"""Distributions to other machines: each receiver hears of its payload once, in whatever order things happen."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rlinf_async._messaging.state.relay_plan import BRING, KEEP, PASS, WHOLE, Do, Job, RelayPlan, Way
from rlinf_async.errors import PeerLost, TransferFailed

MEBI = 1 << 20
NBYTES = 20 * MEBI
"""Three pieces along a chain, two from the source."""


class Payload(Job):
    def __init__(self, number: int) -> None:
        super().__init__(number, NBYTES, 60.0)
        self.body = range(NBYTES)
        self.holds = 0

    def hold(self) -> None:
        self.holds += 1

    def release(self) -> None:
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
        self.line = 0
        self.bring: Any = None
        self.here = 0
        self.is_whole = False
        self.passes: set[int] = set()

    def hear(self, what: str, *facts: Any) -> None:
        if what == "host":
            self.line, self.bring, self.passes = facts[0], None, set()
        elif what == "hello":
            self.line, self.bring, self.passes = 0, None, set()
        elif what == BRING:
            assert self.line, "only hosts hear of what comes"
            self.bring, self.here, self.is_whole = facts, 0, False
        elif what == WHOLE:
            self.is_whole = True
        elif what == PASS:
            self.passes.add(facts[2])
        else:
            assert what == KEEP
            self.passes.discard(facts[0])


class Distributions(RuleBasedStateMachine):
    """A source and its machines, of which any may be slow, dead, deaf or liars."""

    @initialize(nodes=st.lists(st.integers(1, 4), min_size=1, max_size=6))
    def begin(self, nodes: list[int]) -> None:
        self.plan = RelayPlan(chain_from=1)
        self.members: list[Member] = []
        self.leaving: list[tuple[Way, Member, Any]] = []
        self.jobs: list[Payload] = []
        self.begun: Payload | None = None
        self.latest: Payload | None = None
        self.told: Counter[tuple[int, int]] = Counter()
        self.due: set[int] = set()
        self.numbers = 0
        for node in nodes:
            self.join(node)

    def carry_out(self) -> None:
        while self.plan.actions:
            do, *facts = self.plan.actions.popleft()
            if do is Do.SAY:
                facts[0].heard.append(facts[1])
            elif do is Do.APPOINT:
                facts[0].heard.append(("host", facts[1]))
            elif do is Do.INFORM:
                facts[0].heard.append(("hello",))
                self.told[facts[2], facts[0].address] += 1
            elif do is Do.SEND:
                self.leaving.append(tuple(facts))  # type: ignore[arg-type]
            elif do is Do.DROP:
                for sending in [each for each in self.leaving if each[0] is facts[0]]:
                    self.leaving.remove(sending)
                    self.plan.sent(sending[0], TransferFailed("given up"))
            elif do is Do.END:
                receivers, number, memory, error = facts
                assert (memory is None) == (error is not None)
                for receiver in receivers:
                    self.told[number, receiver.address] += 1

    # -- the source ---------------------------------------------------------------------------------------------

    @rule(node=st.integers(1, 4))
    def join(self, node: int) -> None:
        if len(self.members) < 8:
            self.numbers += 1
            self.members.append(Member(node, self.numbers))
            self.plan.join(self.members[-1], self.latest)
            self.carry_out()

    @precondition(lambda self: self.begun is None)
    @rule(numbers=st.sets(st.integers(0, 7), min_size=1))
    def pack(self, numbers: set[int]) -> None:
        self.begun = Payload(1 + max([job.number for job in self.jobs], default=0))
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
            self.begun = Payload(1 + max([job.number for job in self.jobs], default=0))
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
            self.plan.leave(member)
            self.carry_out()

    @rule(data=st.data())
    def be_late(self, data: st.DataObject) -> None:
        if self.members:
            self.plan.doubt(data.draw(st.sampled_from(self.members)))

    @rule(data=st.data())
    def lose_a_piece(self, data: st.DataObject) -> None:
        if self.leaving:
            sending = self.leaving.pop(data.draw(st.integers(0, len(self.leaving) - 1)))
            self.plan.sent(sending[0], PeerLost("no way"))
            self.carry_out()

    # -- the hosts ----------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        if self.members:
            self.go_on(data.draw(st.sampled_from(self.members)))

    def go_on(self, member: Member) -> bool:
        """Whether there was anything to do."""
        if member.heard:
            words = member.heard.pop(0)
            member.hear(*words)
            if words[0] == BRING:
                self.plan.room(member, words[1], member.line)
        elif member.bring is None:
            return False
        elif member.here < len(member.bring[1]):
            if not self.has_come(member):
                return False
            member.here += 1
        elif member.is_whole:
            number, member.bring = member.bring[0], None
            self.plan.landed(member, number, None, "there", member.line)
        else:
            return False
        self.carry_out()
        return True

    def has_come(self, member: Member) -> bool:
        if len(member.bring) > 4:  # from another host
            sender = next((other for other in self.members if other.address == member.bring[4]), None)
            return sender is not None and member.line in sender.passes and sender.here > member.here
        for sending in self.leaving:
            if sending[0].line == member.line and sending[1] is member:
                assert len(sending[2]) == member.bring[1][member.here], "they come in order"
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
        self.plan.landed(member, number, TransferFailed("nothing has come"), None, member.line)
        self.carry_out()
        return True

    @rule(data=st.data())
    def be_stuck(self, data: st.DataObject) -> None:
        if self.members and (member := data.draw(st.sampled_from(self.members))).passes:
            self.plan.stuck(member, data.draw(st.sampled_from(sorted(member.passes))), TransferFailed("no way"))
            self.carry_out()

    @rule(data=st.data(), line=st.integers(0, 1 << 50), number=st.integers(0, 9))
    def talk_of_something_else(self, data: st.DataObject, line: int, number: int) -> None:
        if self.members:
            member = data.draw(st.sampled_from(self.members))
            self.plan.room(member, number, line)
            self.plan.landed(member, number, None, "nowhere", line)
            self.plan.stuck(member, line, TransferFailed("no way"))
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
        assert all(count == 1 for (number, _), count in self.told.items() if number)
        self.plan.close()
        self.carry_out()
        for way, *_ in self.leaving:
            self.plan.sent(way, None)
        assert [job.number for job in self.jobs if job.holds] == []


TestDistributions = Distributions.TestCase
TestDistributions.settings = settings(max_examples=200, stateful_step_count=40, deadline=None, derandomize=True)

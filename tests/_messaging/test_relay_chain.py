"""Messages of a sender to a chain of machines, through every break."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from rlinf_async._core.failures import pack_error
from rlinf_async._messaging.state import relay_plan
from rlinf_async._messaging.state.relay_plan import BRING, KEEP, PASS, WHOLE
from rlinf_async.errors import PeerLost, TransferFailed, WorkerDied
from tests._support.simulated_remote_nodes import NBYTES, Payload, Receiver, Sender

SIZES = [1024, 1024, 1024]


@pytest.fixture(autouse=True)
def _a_chain_of_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_plan, "chain_sizes", lambda nbytes: SIZES)


@pytest.fixture
def sender() -> Iterator[Sender]:
    sender = Sender(chain_from=NBYTES)
    yield sender
    sender.close()


def hosts_of(sender: Sender, *numbers: int) -> list[Any]:
    """A receiver on each of these machines; each may be reached by the others."""
    receivers = []
    for number in numbers:
        receiver = Receiver(number)
        receiver.link.address = ["rollout", number]
        sender.join(receiver)
        receivers.append(receiver)
    return receivers


def since_told(receiver: Receiver) -> list[tuple[Any, ...]]:
    """What it was told since it last became the host."""
    index = max(index for index, words in enumerate(receiver.said) if words[0] == "host")
    return receiver.said[index + 1 :]


def test_each_gets_it_from_the_one_before_it_and_the_sender_sends_it_once(sender: Sender) -> None:
    one, two, three = receivers = hosts_of(sender, 1, 2, 3)
    payload = sender.begin(1, *receivers)
    assert one.said[-1] == (BRING, 1, SIZES)
    assert two.said[-1] == (BRING, 1, SIZES, ["rollout", 1], 15.0)
    assert three.said[-1] == (BRING, 1, SIZES, ["rollout", 2], pytest.approx(18.0))
    sender.room(three, 1)
    assert two.said[-1:] == [(PASS, 1, ["rollout", 3], three.stream_id)], "there is room, and more is not asked for"
    sender.room(one, 1)
    sender.room(two, 1)
    assert one.said[-1:] == [(PASS, 1, ["rollout", 2], two.stream_id)]
    sender.publish(payload, *receivers)
    assert one.link.sizes == SIZES
    assert two.link.sizes == three.link.sizes == []
    assert [receiver.said[-1] for receiver in receivers] == [(WHOLE, 1, b"more", 0)] * 3
    for receiver in receivers:
        sender.answer(receiver, 1, None, "there")
    assert sender.ended == [([receiver], 1, "there", None) for receiver in receivers]
    assert [words[0] for words in three.said] == ["host", BRING, WHOLE]


def test_little_and_late_receivers_come_from_the_sender(sender: Sender) -> None:
    _, two = receivers = hosts_of(sender, 1, 2)
    payload = Payload(1)
    payload.nbytes -= 1
    sender.publish(payload, *receivers)
    assert len(two.said[-1]) == 3, "there is no sender but the source"
    for receiver in receivers:
        sender.answer(receiver, 1, None, "there")
    (late,) = hosts_of(sender, 3)
    assert late.said[-1][:2] == (BRING, 1)
    assert len(late.said[-1]) == 3


def test_if_one_dies_the_next_follows_the_one_before_it_and_the_machine_of_the_dead_begins_again(
    sender: Sender,
) -> None:
    one, two, three = receivers = hosts_of(sender, 1, 2, 3)
    heir = Receiver(2)
    sender.join(heir)
    payload = sender.begin(1, *receivers, heir)
    for receiver in receivers:
        sender.room(receiver, 1)
    sender.publish(payload, *receivers, heir)
    sender.leave(two)
    assert since_told(three)[0] == (BRING, 1, SIZES, ["rollout", 1], 15.0)
    assert len(since_told(heir)[0]) == 3
    assert (KEEP, two.stream_id) in one.said
    sender.room(three, 1)
    assert one.said[-1] == (PASS, 1, ["rollout", 3], three.stream_id)


def test_if_one_dies_who_gets_it_from_one_that_has_it_goes_on(sender: Sender) -> None:
    one, two, three = receivers = hosts_of(sender, 1, 2, 3)
    payload = sender.begin(1, *receivers)
    sender.publish(payload, *receivers)
    sender.answer(two, 1, None, "there")
    heard = list(three.said)
    sender.leave(one)
    assert three.said == heard
    sender.leave(two)
    assert since_told(three)[0] == (BRING, 1, SIZES), "the one that had it passes it on no more"


@pytest.mark.parametrize("how", ["is not sent", "does not land"])
def test_if_the_first_cannot_have_it_the_others_have_it_all_the_same(sender: Sender, how: str) -> None:
    one, two, three = receivers = hosts_of(sender, 1, 2, 3)
    payload = sender.begin(1, *receivers)
    sender.room(one, 1)
    sender.publish(payload, *receivers)
    if how == "is not sent":
        one.link.tensors[0][2]._settle(error=TransferFailed("no way"))
    else:
        sender.answer(one, 1, pack_error(MemoryError("no room")), None)
    ((failed, _, _, why),) = sender.ended
    assert failed == [one]
    assert why == ("TransferFailed" if how == "is not sent" else "MemoryError")
    assert since_told(two)[0] == (BRING, 1, SIZES)
    assert since_told(three)[0][-2] == ["rollout", 2]


@pytest.mark.parametrize("who", ["source", "receiver"])
def test_if_there_is_no_way_between_two_those_behind_get_it_directly_with_one_warning(
    sender: Sender, caplog: pytest.LogCaptureFixture, who: str
) -> None:
    one, two, three = receivers = hosts_of(sender, 1, 2, 3)
    payload = sender.begin(1, *receivers)
    for receiver in receivers:
        sender.room(receiver, 1)
    sender.publish(payload, *receivers)
    stream_id, failure = two.stream_id, pack_error(TransferFailed("no way"))
    with caplog.at_level(logging.WARNING):
        if who == "source":
            sender.stuck(one, stream_id, failure)
        sender.landed(two, 1, failure, None, stream_id)
        sender.stuck(one, stream_id, failure)
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING
    assert "no way" in caplog.text
    assert since_told(two)[0] == (BRING, 1, SIZES)
    assert since_told(three)[0][-2:] == (["rollout", 2], 15.0)
    assert one.said[-1] == (KEEP, stream_id)
    sender.room(two, 1)
    assert two.link.sizes == SIZES
    for receiver in receivers:
        sender.answer(receiver, 1, None, "there")
    sender.begin(2, *receivers)
    assert [words[-2] for words in (three.said[-1], two.said[-1])] == [["rollout", 1], ["rollout", 3]]


def test_that_the_other_one_has_died_is_heard_here_too_and_no_reason_to_distrust(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = receivers = hosts_of(sender, 1, 2)
    payload = sender.begin(1, *receivers)
    sender.publish(payload, *receivers)
    sender.answer(two, 1, pack_error(WorkerDied("killed")), None)
    assert sender.ended == []
    sender.leave(one)
    assert since_told(two)[0] == (BRING, 1, SIZES)
    assert caplog.records == []


def test_a_version_that_is_not_published_leaves_every_line_of_the_chain(sender: Sender) -> None:
    one, two = receivers = hosts_of(sender, 1, 2)
    sender.begin(1, *receivers)
    lines = [receiver.stream_id for receiver in receivers]
    for receiver in receivers:
        sender.room(receiver, 1)
    sender.abandon(1)
    assert (KEEP, lines[1]) in one.said
    sender.begin(1, *receivers)
    assert two.said[-1][-2] == ["rollout", 1]
    assert not set(lines) & {receiver.stream_id for receiver in receivers}
    sender.room(two, 1)
    assert one.said[-1] == (PASS, 1, ["rollout", 2], two.stream_id)


class Machine:
    """What a receiver does with the words that it hears; its tensors are counted only."""

    def __init__(self, receiver: Any, world: World) -> None:
        self.receiver = receiver
        self.world = world
        self.heard = 0
        self.stream_id = 0
        self.bring: tuple[Any, ...] | None = None
        self.source: int | None = None
        self.here = 0
        self.is_whole = False
        self.has_landed = False
        self.passes: set[int] = set()

    def hear(self) -> bool:
        """The next word; False where there is none."""
        if self.heard == len(self.receiver.said):
            return False
        what, *facts = self.receiver.said[self.heard]
        self.heard += 1
        if what == "host":
            self.stream_id, self.bring, self.passes = facts[-1], None, set()
        elif what == BRING:
            self.bring, self.here, self.is_whole, self.has_landed = tuple(facts), 0, False, False
            self.source = facts[2][1] if len(facts) > 2 else None
            self.world.sender.relay.on_message(self.receiver, "room", facts[0], self.stream_id)
        elif what == WHOLE:
            self.is_whole = True
        elif what == PASS:
            assert self.bring is not None
            assert facts[0] == self.bring[0]
            self.passes.add(facts[2])
        elif what == KEEP:
            self.passes.discard(facts[0])
        return True

    def receive(self) -> bool:
        """The next piece, if there is one; then it says that all is here."""
        if self.bring is None or self.has_landed:
            return False
        if self.here < len(self.bring[1]) and self._has_come():
            self.here += 1
            return True
        if self.here == len(self.bring[1]) and self.is_whole:
            self.has_landed = True
            self.world.sender.landed(self.receiver, self.bring[0], None, "there", self.stream_id)
            return True
        return False

    def _has_come(self) -> bool:
        if self.source is None:
            mine = [work for line, _, work in self.receiver.link.tensors if line == self.stream_id]
            return any(work._settle() for work in mine)
        source = self.world.machines.get(self.source)
        return (
            source is not None
            and (self.source, self.receiver.link.node) not in self.world.cut
            and self.stream_id in source.passes
            and source.here > self.here
        )

    def complain(self) -> bool:
        """Nothing comes any more, and there is something to come."""
        if self.bring is None or self.has_landed or self.source is None or not self.is_whole:
            return False
        version, self.bring = self.bring[0], None
        failure = pack_error(TransferFailed("nothing has come"))
        self.world.sender.landed(self.receiver, version, failure, None, self.stream_id)
        return True


class World:
    """Machines that pass weights on, until some of them die or stop, or the way between two does."""

    def __init__(self, sender: Sender, count: int) -> None:
        self.sender = sender
        self.machines = {
            receiver.link.node: Machine(receiver, self) for receiver in hosts_of(sender, *range(1, count + 1))
        }
        self.stopped: set[int] = set()
        self.cut: set[tuple[int, int]] = set()

    @property
    def awake(self) -> list[Machine]:
        return [machine for number, machine in self.machines.items() if number not in self.stopped]

    def go_on(self, steps: int | None = None) -> None:
        """So many steps, or until nothing happens any more."""
        while steps is None or steps > 0:
            happened = sum(machine.hear() or machine.receive() for machine in self.awake)
            if not happened and (steps is not None or not any(machine.complain() for machine in self.awake)):
                return
            steps = None if steps is None else steps - 1

    def kill(self, number: int) -> None:
        machine = self.machines.pop(number, None)
        if machine is not None:
            machine.receiver.link.error = PeerLost("killed")
            self.sender.leave(machine.receiver)


faults = st.lists(
    st.tuples(st.sampled_from(["kill", "stop", "cut"]), st.integers(1, 5), st.integers(1, 5), st.integers(0, 12)),
    max_size=4,
)


@settings(derandomize=True, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(2, 5), faults, st.booleans())
def test_whoever_lives_and_is_not_stopped_gets_every_version(
    count: int, faults: list[tuple[str, int, int, int]], packs_first: bool
) -> None:
    sender = Sender(chain_from=NBYTES)
    try:
        world = World(sender, count)
        receivers = [machine.receiver for machine in world.machines.values()]
        payload = sender.begin(1, *receivers)
        if not packs_first:
            sender.publish(payload, *receivers)
        for fault, one, other, steps in faults:
            world.go_on(steps)
            if fault == "kill":
                world.kill(one)
            elif fault == "stop":
                world.stopped.add(one)
            else:
                world.cut |= {(one, other), (other, one)}
        if packs_first:
            sender.publish(payload, *[machine.receiver for machine in world.machines.values()])
        world.go_on()
        assert all(machine.has_landed for machine in world.awake)
        world.stopped.clear()
        living = [machine.receiver for machine in world.machines.values()]
        if living:
            sender.publish(Payload(2), *living)
            world.go_on()
            assert all(machine.has_landed and machine.bring[0] == 2 for machine in world.awake if machine.bring)
            assert {number for number, node in sender.plan._machines.items() if node.number == 2} == set(world.machines)
    finally:
        sender.close()

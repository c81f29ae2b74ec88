"""Messages of a sender to a chain of machines, through every break."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from rlinf_async.errors import PeerLost, TransferFailed, WorkerDied
from rlinf_async.weights.plane import far_nodes
from tests._support.simulated_remote_nodes import Outlet, Sender
from tests._support.weight_parts import Comparing, words as say

SIZES = [1024, 1024, 1024]


@pytest.fixture(autouse=True)
def _a_chain_of_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far_nodes, "CHAIN_FROM", 1)
    monkeypatch.setattr(far_nodes, "chain_sizes", lambda nbytes: SIZES)


@pytest.fixture
def sender() -> Iterator[Sender]:
    sender = Sender()
    yield sender
    sender.nodes.close()
    sender.store.close()


def hosts_of(sender: Sender, *numbers: int) -> list[Any]:
    """A receiver on each of these machines; each may be reached by the others."""
    outlets = []
    for number in numbers:
        outlet = Outlet(number)
        outlet.link.address = ["rollout", number]
        sender.nodes.greet(outlet, sender.store, sender.store.latest)  # type: ignore[arg-type]
        outlets.append(outlet)
    return outlets


def since_told(outlet: Outlet) -> list[tuple[Any, ...]]:
    """What it was told since it last became the host."""
    index = max(index for index, words in enumerate(outlet.said) if words[0] == say.HOST)
    return outlet.said[index + 1 :]


def test_each_gets_it_from_the_one_before_it_and_the_sender_sends_it_once(sender: Sender) -> None:
    one, two, three = outlets = hosts_of(sender, 1, 2, 3)
    slot, writer = sender.begin(1, *outlets)
    assert one.said[-1] == (say.BRING, 1, SIZES, 0, b"")
    assert two.said[-1] == (say.BRING, 1, SIZES, 0, b"", ["rollout", 1], 15.0)
    assert three.said[-1] == (say.BRING, 1, SIZES, 0, b"", ["rollout", 2], pytest.approx(18.0))
    sender.room(three, 1)
    assert two.said[-1:] == [(say.PASS, 1, ["rollout", 3], three.line)], "there is room, and more is not asked for"
    sender.room(one, 1)
    sender.room(two, 1)
    assert one.said[-1:] == [(say.PASS, 1, ["rollout", 2], two.line)]
    sender.pack(slot, 1)
    sender.nodes.bring(1, outlets, sender.store, writer)
    assert one.link.sizes == SIZES
    assert two.link.sizes == three.link.sizes == []
    assert [outlet.said[-1] for outlet in outlets] == [(say.WHOLE, 1, b"more", 0)] * 3
    for outlet in outlets:
        sender.answer(outlet, 1, None, "there")
    assert sender.landed == [([outlet], 1, "there", None) for outlet in outlets]
    assert [words[0] for words in three.said] == [say.HOST, say.BRING, say.WHOLE]


def test_little_and_what_has_changed_and_late_receivers_come_from_the_sender(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, two = outlets = hosts_of(sender, 1, 2)
    monkeypatch.setattr(far_nodes, "CHAIN_FROM", 3073)
    slot, writer = sender.begin(1, *outlets)
    assert len(two.said[-1]) == 5, "there is no source"
    sender.pack(slot, 1)
    sender.nodes.bring(1, outlets, sender.store, writer)
    for outlet in outlets:
        sender.answer(outlet, 1, None, "there")
    monkeypatch.setattr(far_nodes, "CHAIN_FROM", 3072)
    slot = sender.store.take()
    sender.pack(slot, 2)
    found = Comparing("on", "it").compare(sender.store, 2)
    assert found is not None
    sender.nodes.bring(2, outlets, sender.store, sender.store.writer(slot), found)
    assert [len(outlet.said[-1]) for outlet in outlets] == [5, 5]
    (late,) = hosts_of(sender, 3)
    assert late.said[-1][:2] == (say.BRING, 2)
    assert len(late.said[-1]) == 5


def test_if_one_dies_the_next_follows_the_one_before_it_and_the_machine_of_the_dead_begins_again(
    sender: Sender,
) -> None:
    one, two, three = outlets = hosts_of(sender, 1, 2, 3)
    heir = Outlet(2)
    sender.nodes.greet(heir, sender.store, sender.store.latest)  # type: ignore[arg-type]
    slot, writer = sender.begin(1, *outlets, heir)
    for outlet in outlets:
        sender.room(outlet, 1)
    sender.pack(slot, 1)
    sender.nodes.bring(1, [*outlets, heir], sender.store, writer)  # type: ignore[list-item]
    sender.nodes.forget(two)
    assert since_told(three)[0] == (say.BRING, 1, SIZES, 0, b"", ["rollout", 1], 15.0)
    assert len(since_told(heir)[0]) == 5
    assert (say.KEEP, two.line) in one.said
    sender.room(three, 1)
    assert one.said[-1] == (say.PASS, 1, ["rollout", 3], three.line)


def test_if_one_dies_who_gets_it_from_one_that_has_it_goes_on(sender: Sender) -> None:
    one, two, three = outlets = hosts_of(sender, 1, 2, 3)
    slot, writer = sender.begin(1, *outlets)
    sender.pack(slot, 1)
    sender.nodes.bring(1, outlets, sender.store, writer)
    sender.answer(two, 1, None, "there")
    heard = list(three.said)
    sender.nodes.forget(one)
    assert three.said == heard
    sender.nodes.forget(two)
    assert since_told(three)[0] == (say.BRING, 1, SIZES, 0, b""), "the one that had it passes it on no more"


@pytest.mark.parametrize("how", ["is not sent", "does not land"])
def test_if_the_first_cannot_have_it_the_others_have_it_all_the_same(sender: Sender, how: str) -> None:
    one, two, three = outlets = hosts_of(sender, 1, 2, 3)
    slot, writer = sender.begin(1, *outlets)
    sender.room(one, 1)
    sender.pack(slot, 1)
    sender.nodes.bring(1, outlets, sender.store, writer)
    if how == "is not sent":
        one.link.tensors[0][2]._settle(error=TransferFailed("no way"))
    else:
        sender.answer(one, 1, say.pack_error(MemoryError("no room")), None)
    ((failed, _, _, why),) = sender.landed
    assert failed == [one]
    assert why == ("TransferFailed" if how == "is not sent" else "MemoryError")
    assert since_told(two)[0] == (say.BRING, 1, SIZES, 0, b"")
    assert since_told(three)[0][-2] == ["rollout", 2]


@pytest.mark.parametrize("who", ["source", "receiver"])
def test_if_there_is_no_way_between_two_those_behind_get_it_directly_with_one_warning(
    sender: Sender, caplog: pytest.LogCaptureFixture, who: str
) -> None:
    one, two, three = outlets = hosts_of(sender, 1, 2, 3)
    slot, writer = sender.begin(1, *outlets)
    for outlet in outlets:
        sender.room(outlet, 1)
    sender.pack(slot, 1)
    sender.nodes.bring(1, outlets, sender.store, writer)
    line, failure = two.line, say.pack_error(TransferFailed("no way"))
    with caplog.at_level(logging.WARNING):
        if who == "source":
            sender.nodes.stuck(one, line, failure)
        sender.nodes.landed(two, 1, failure, None, line)
        sender.nodes.stuck(one, line, failure)
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING
    assert "no way" in caplog.text
    assert since_told(two)[0] == (say.BRING, 1, SIZES, 0, b"")
    assert since_told(three)[0][-2:] == (["rollout", 2], 15.0)
    assert one.said[-1] == (say.KEEP, line)
    sender.room(two, 1)
    assert two.link.sizes == SIZES
    for outlet in outlets:
        sender.answer(outlet, 1, None, "there")
    slot, writer = sender.begin(2, *outlets)
    assert [words[-2] for words in (three.said[-1], two.said[-1])] == [["rollout", 1], ["rollout", 3]]


def test_that_the_other_one_has_died_is_heard_here_too_and_no_reason_to_distrust(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = outlets = hosts_of(sender, 1, 2)
    slot, writer = sender.begin(1, *outlets)
    sender.pack(slot, 1)
    sender.nodes.bring(1, outlets, sender.store, writer)
    sender.answer(two, 1, say.pack_error(WorkerDied("killed")), None)
    assert sender.landed == []
    sender.nodes.forget(one)
    assert since_told(two)[0] == (say.BRING, 1, SIZES, 0, b"")
    assert caplog.records == []


def test_a_version_that_is_not_published_leaves_every_line_of_the_chain(sender: Sender) -> None:
    one, two = outlets = hosts_of(sender, 1, 2)
    slot, _ = sender.begin(1, *outlets)
    lines = [outlet.line for outlet in outlets]
    for outlet in outlets:
        sender.room(outlet, 1)
    sender.store.give_back(slot)
    sender.nodes.abandon(1)
    assert (say.KEEP, lines[1]) in one.said
    sender.begin(1, *outlets)
    assert two.said[-1][-2] == ["rollout", 1]
    assert not set(lines) & {outlet.line for outlet in outlets}
    sender.room(two, 1)
    assert one.said[-1] == (say.PASS, 1, ["rollout", 2], two.line)


def test_who_was_late_passes_nothing_on_until_it_has_a_version(sender: Sender) -> None:
    one, two, three = outlets = hosts_of(sender, 1, 2, 3)
    sender.nodes.doubt(one)
    slot, writer = sender.begin(1, *outlets)
    assert one.words[-1] == say.HOST
    assert [words[-2] if len(words) > 5 else None for words in (two.said[-1], three.said[-1])] == [None, ["rollout", 2]]
    sender.pack(slot, 1)
    sender.nodes.bring(1, outlets, sender.store, writer)
    assert since_told(one)[0] == (say.BRING, 1, SIZES, 0, b"")
    for outlet in outlets:
        sender.answer(outlet, 1, None, "there")
    sender.begin(2, *outlets)
    assert two.said[-1][-2] == ["rollout", 1]


class Machine:
    """What a receiver does with the words that it hears; its tensors are counted only."""

    def __init__(self, outlet: Any, world: World) -> None:
        self.outlet = outlet
        self.world = world
        self.heard = 0
        self.line = 0
        self.bring: tuple[Any, ...] | None = None
        self.source: int | None = None
        self.here = 0
        self.is_whole = False
        self.has_landed = False
        self.passes: set[int] = set()

    def hear(self) -> bool:
        """The next word; False where there is none."""
        if self.heard == len(self.outlet.said):
            return False
        what, *facts = self.outlet.said[self.heard]
        self.heard += 1
        if what == say.HOST:
            self.line, self.bring, self.passes = facts[-1], None, set()
        elif what == say.BRING:
            self.bring, self.here, self.is_whole, self.has_landed = tuple(facts), 0, False, False
            self.source = facts[4][1] if len(facts) > 4 else None
            self.world.sender.nodes.room(self.outlet, facts[0], self.line)
        elif what == say.WHOLE:
            self.is_whole = True
        elif what == say.PASS:
            assert self.bring is not None
            assert facts[0] == self.bring[0]
            self.passes.add(facts[2])
        elif what == say.KEEP:
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
            self.world.sender.nodes.landed(self.outlet, self.bring[0], None, "there", self.line)
            return True
        return False

    def _has_come(self) -> bool:
        if self.source is None:
            mine = [work for line, _, work in self.outlet.link.tensors if line == self.line]
            return any(work._settle() for work in mine)
        source = self.world.machines.get(self.source)
        return (
            source is not None
            and (self.source, self.outlet.link.node) not in self.world.cut
            and self.line in source.passes
            and source.here > self.here
        )

    def complain(self) -> bool:
        """Nothing comes any more, and there is something to come."""
        if self.bring is None or self.has_landed or self.source is None or not self.is_whole:
            return False
        version, self.bring = self.bring[0], None
        failure = say.pack_error(TransferFailed("nothing has come"))
        self.world.sender.nodes.landed(self.outlet, version, failure, None, self.line)
        return True


class World:
    """Machines that pass weights on, until some of them die or stop, or the way between two does."""

    def __init__(self, sender: Sender, count: int) -> None:
        self.sender = sender
        self.machines = {outlet.link.node: Machine(outlet, self) for outlet in hosts_of(sender, *range(1, count + 1))}
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
            machine.outlet.link.error = PeerLost("killed")
            self.sender.nodes.forget(machine.outlet)


faults = st.lists(
    st.tuples(st.sampled_from(["kill", "stop", "cut"]), st.integers(1, 5), st.integers(1, 5), st.integers(0, 12)),
    max_size=4,
)


@settings(derandomize=True, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(2, 5), faults, st.booleans())
def test_whoever_lives_and_is_not_stopped_gets_every_version(
    count: int, faults: list[tuple[str, int, int, int]], packs_first: bool
) -> None:
    sender = Sender()
    try:
        world = World(sender, count)
        outlets = [machine.outlet for machine in world.machines.values()]
        slot, writer = sender.begin(1, *outlets)
        if not packs_first:
            sender.pack(slot, 1)
            sender.nodes.bring(1, outlets, sender.store, writer)
        for fault, one, other, steps in faults:
            world.go_on(steps)
            if fault == "kill":
                world.kill(one)
            elif fault == "stop":
                world.stopped.add(one)
            else:
                world.cut |= {(one, other), (other, one)}
        if packs_first:
            sender.pack(slot, 1)
            sender.nodes.bring(1, [machine.outlet for machine in world.machines.values()], sender.store, writer)
        world.go_on()
        assert all(machine.has_landed for machine in world.awake)
        for machine in world.machines.values():
            if not machine.has_landed:
                sender.nodes.doubt(machine.outlet)
        world.stopped.clear()
        living = [machine.outlet for machine in world.machines.values()]
        if living:
            slot = sender.store.take()
            sender.nodes.begin(2, living, sender.store, sender.store.writer(slot))
            sender.pack(slot, 2)
            sender.nodes.bring(2, living, sender.store, sender.store.writer(slot))
            world.go_on()
            assert all(machine.has_landed and machine.bring[0] == 2 for machine in world.awake if machine.bring)
            assert {number for number, node in sender.nodes._nodes.items() if node.version == 2} == set(world.machines)
    finally:
        sender.nodes.close()
        assert set(sender.store._in_use) <= {0}, "nothing is held any more"
        sender.store.close()

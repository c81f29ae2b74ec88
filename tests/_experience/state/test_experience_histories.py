"""An experience's state against a model: random histories of puts, takes, deaths, versions, deadlines and disks."""

from __future__ import annotations

import pickle
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlinf_async._channels.state.actions import QueueAction, Step
from rlinf_async._experience.state.experience_changes import Change
from rlinf_async._experience.state.experience_options import ExperienceOptions
from rlinf_async._experience.state.experience_queue import (
    TAKE,
    TAKE_STALE_TOO,
    WISH,
    ExperienceQueue,
    pack_kind,
    pack_name,
)  # fmt: skip
from rlinf_async._experience.state.ledger import WITHDRAWN

CHOICE = st.booleans()
Identity = tuple[int, int]


class Desk:
    """A keeper whose disk writes when it is told to."""

    def __init__(self, *, is_durable: bool) -> None:
        self.is_durable = is_durable
        self.changes: list[Change] = []
        self.deadline: float | None = None
        self.gone: list[int] = []

    def write(self, change: Change) -> None:
        self.changes.append(change)

    def wake_at(self, deadline: float | None) -> None:
        self.deadline = deadline

    def trainer_gone(self, endpoint: int) -> None:
        self.gone.append(endpoint)


class Histories(RuleBasedStateMachine):
    """Processes that put, take, confirm, cancel, die and are replaced."""

    @initialize(
        group=st.sampled_from([1, 2, 3]),
        max_staleness=st.sampled_from([0, 1, 2]),
        maxsize=st.sampled_from([0, 6, 9]),
        max_bytes=st.sampled_from([0, 40]),
        order=st.sampled_from(["oldest", "newest"]),
        group_timeout_s=st.sampled_from([0.0, 3.0]),
        short_groups=st.sampled_from(["drop", "take"]),
        is_durable=st.booleans(),
    )
    def start(self, is_durable: bool, **options: Any) -> None:
        self.options = ExperienceOptions(lease_s=9.0, **options)
        self.desk = Desk(is_durable=is_durable)
        self.gone: set[int] = set()
        self.now = 0.0
        self.queue = ExperienceQueue("x", self.options, self.desk, self.gone, lambda: self.now)
        self.said = dict.fromkeys((1, 2, 3), 0)
        self.version: int | None = None
        self.versions: dict[Identity, int] = {}
        self.open: dict[Identity, str] = {}
        """Requests without an answer."""
        self.accepted: set[Identity] = set()
        self.given_up: set[Identity] = set()
        self.leased: dict[Identity, list[list[Identity]]] = {}
        """By take, the groups that it has not confirmed."""
        self.settling: dict[Any, list[Identity]] = {}
        self.taken: set[Identity] = set()
        self.stale_too: set[Identity] = set()

    def who(self, which: int) -> int:
        return list(self.said)[which]

    def next_number(self, who: int, what: str) -> int:
        self.said[who] += 1
        self.open[who, self.said[who]] = what
        return self.said[who]

    # what processes do

    whichever = st.integers(0, 2)
    keys = st.sampled_from([None, None, b"k"])

    names = st.sampled_from([b"a", b"b"])

    @rule(
        which=whichever, key=keys, name=names, version=st.integers(0, 5), size=st.integers(1, 5), nowait=st.booleans()
    )
    def put(self, which: int, key: bytes | None, name: bytes, version: int, size: int, nowait: bool) -> None:
        who = self.who(which)
        number = self.next_number(who, "put")
        self.versions[who, number] = version
        self.follow(self.queue.put(who, number, pack_name(key, name), version, size, (who, number), nowait))

    @rule(which=whichever, key=keys, groups=st.integers(1, 3), stale_too=st.booleans())
    def take(self, which: int, key: bytes | None, groups: int, stale_too: bool) -> None:
        who = self.who(which)
        number = self.next_number(who, "take")
        kind = pack_kind(TAKE_STALE_TOO if stale_too else TAKE, key)
        if stale_too:
            self.stale_too.add((who, number))
        self.follow(self.queue.get(who, number, kind, groups, False, True, False, False, False, 0.0))

    @rule(which=whichever)
    def wish(self, which: int) -> None:
        who = self.who(which)
        self.follow(self.queue.get(who, self.next_number(who, "wish"), pack_kind(WISH, None)))

    @precondition(lambda self: self.leased)
    @rule(which=st.integers(0, 20), count=st.integers(1, 3))
    def settle(self, which: int, count: int) -> None:
        (who, number), groups = list(self.leased.items())[which % len(self.leased)]
        confirmed = [sample for group in groups[:count] for sample in group]
        token = object()

        def done(error: Exception | None) -> None:
            settled = self.settling.pop(token)
            if error is None:
                assert not set(settled) & self.taken
                self.taken |= set(settled)

        self.settling[token] = confirmed
        steps = self.queue.settle(who, number, count, done)
        if steps is None:
            assert count > len(groups)
            del self.settling[token]
            return
        del groups[:count]
        if not groups:
            del self.leased[who, number]
        self.follow(steps)

    @rule(which=st.integers(0, 20))
    def cancel(self, which: int) -> None:
        """Somebody gives up a request, or a lease ends before its holder has confirmed it."""
        candidates = [*self.open, *self.leased]
        if candidates:
            who, number = candidates[which % len(candidates)]
            self.leased.pop((who, number), None)
            self.open.pop((who, number), None)
            self.given_up.add((who, number))
            self.follow(self.queue.cancel(who, number))

    @rule(which=whichever)
    def kill(self, which: int) -> None:
        who = self.who(which)
        del self.said[who]
        self.gone.add(who)
        for identity in [identity for identity in (*self.open, *self.leased) if identity[0] == who]:
            self.open.pop(identity, None)
            self.leased.pop(identity, None)
        self.follow(self.queue.drop(who))
        self.said[max(*self.gone, *self.said) + 1] = 0

    @rule(which=whichever, by=st.integers(0, 3), restart=st.booleans())
    def set_version(self, which: int, by: int, restart: bool) -> None:
        before = self.version or 0
        version = max(0, before - 2) if restart else before + by
        self.version = version
        self.follow(self.queue.set_version(self.who(which), "group 'trainer'", version, restart=restart))

    @rule(by=st.sampled_from([1.0, 4.0]))
    def pass_time(self, by: float) -> None:
        self.now += by
        if self.desk.deadline is not None and self.desk.deadline <= self.now:
            self.follow(self.queue.expire())

    @precondition(lambda self: self.desk.changes)
    @rule(count=st.integers(1, 4), fails=st.booleans())
    def write(self, count: int, fails: bool) -> None:
        """The disk writes some changes, or is full when the first one comes."""
        for change in self.desk.changes[:count]:
            self.desk.changes.remove(change)
            self.follow(self.queue.written(change, OSError("full") if fails else None))
            fails = False

    @rule(sure=st.integers(0, 20), discard=st.booleans())
    def close(self, sure: int, discard: bool) -> None:
        if sure == 0:
            self.follow(self.queue.close(discard=discard))

    # what follows

    def follow(self, steps: list[Step]) -> None:
        for act, what in steps:
            if act == QueueAction.ACCEPTED:
                identity = (what.producer, what.number)
                assert identity not in self.accepted | self.given_up
                self.accepted.add(identity)
                self.open.pop(identity, None)
            elif act == QueueAction.DELIVER:
                self.deliver(what)
            else:
                assert act == QueueAction.FAILED
                who, number, kind, text = what
                assert "experience 'x'" in text or kind == "OSError"
                self.open.pop((who, number), None)

    def deliver(self, get: Any) -> None:
        identity = (get.consumer, get.number)
        head = pickle.loads(get.items[0].body[1:])
        if self.open.pop(identity) == "wish":
            assert head == self.queue.pool.version
            return
        version, max_staleness, facts = head
        samples = list(get.items[1:])
        groups: list[list[Identity]] = []
        for _, versions in facts:
            members, samples = samples[: len(versions)], samples[len(versions) :]
            assert versions == [self.versions[sample.body] for sample in members]
            assert 0 < len(members) <= self.options.group
            assert len(members) == self.options.group or self.options.short_groups == "take"
            if version is not None and identity not in self.stale_too:
                assert version - min(versions) <= max_staleness
            groups.append([sample.body for sample in members])
        assert not samples
        oldest = [min(versions) for _, versions in facts]
        assert oldest == sorted(oldest, reverse=self.options.order == "newest")
        held = {sample for other in self.leased.values() for group in other for sample in group}
        held |= {sample for settled in self.settling.values() for sample in settled}
        for group in groups:
            assert not held & set(group), "delivered although another one has it"
            assert not self.taken & set(group), "delivered although it was taken"
            assert set(group) <= self.accepted
        self.leased[identity] = groups

    # at every step

    @invariant()
    def the_ledger_is_closed(self) -> None:
        ledger = self.queue.pool.ledger()
        assert ledger.is_closed
        assert ledger.put - ledger.dropped.get(WITHDRAWN, 0) == len(self.accepted)
        assert ledger.taken == len(self.taken)
        held = sum(len(group) for groups in self.leased.values() for group in groups)
        assert ledger.leased == held + sum(map(len, self.settling.values()))
        assert ledger.present == sum(1 for _ in self.queue.pool.samples())

    @invariant()
    def what_is_here_was_accepted_and_not_taken(self) -> None:
        here: list[Identity] = [sample.body for _, sample in self.queue.pool.samples()]
        assert len(set(here)) == len(here)
        assert set(here) <= self.accepted
        assert not self.taken & set(here)

    @invariant()
    def room_is_counted_and_kept(self) -> None:
        pool = self.queue.pool
        if pool.is_empty and not self.leased and not self.settling:
            assert (pool._samples, pool._bytes) == (0, 0)
        if self.queue.finished:
            assert not self.open or self.desk.changes

    @invariant()
    def everything_written_down_is_what_is_here(self) -> None:
        """Another life of the experience has what this one has written, and not taken."""
        if self.desk.is_durable or self.queue.closed:
            return
        rows: list[Any] = [
            (sample.place, group.serial, group.key, group.name, sample.weight, sample.nbytes, sample.body)
            for group, sample in sorted(self.queue.pool.samples(), key=lambda each: each[1].place)
        ]
        again = ExperienceQueue("x", self.options, Desk(is_durable=False))
        again.pool.restore(rows, self.now)
        restored = again.pool.ledger()
        assert restored.put == len(rows)
        assert restored.present + sum(restored.dropped.values()) == len(rows)

    def teardown(self) -> None:
        """Whatever happens, a closed experience answers everybody once its leases have ended."""
        if not hasattr(self, "queue"):
            return
        self.follow(self.queue.close())
        for who, number in list(self.leased):
            self.leased.pop((who, number))
            self.follow(self.queue.cancel(who, number))
        while self.desk.changes:
            self.follow(self.queue.written(self.desk.changes.pop(0), None))
        while self.leased:
            self.settle(which=0, count=len(next(iter(self.leased.values()))))
            while self.desk.changes:
                self.follow(self.queue.written(self.desk.changes.pop(0), None))
        assert not self.open, self.queue
        assert self.queue.pool.ledger().is_closed


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=50, derandomize=True, deadline=None)

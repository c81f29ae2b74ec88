"""Calls that any rank may take: choice, order, keys, deaths and stalls, by tables and in any order of events."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rlinf_async._group import rank_pool as module
from rlinf_async._group.rank_pool import Attempt, PoolRequest, RankPool, Standing

LIVE, AWAY, GONE = Standing
ALL = (0, 1, 2)


def live_pool(*standing: Standing) -> RankPool:
    pool = RankPool(3)
    pool.set_standing(standing or (LIVE,) * 3, 0.0)
    return pool


def ranks_of(pool: RankPool, *wishes: PoolRequest, now: float = 0.0) -> list[int | None]:
    """Where calls go, in this order; None for one that waits."""
    attempts = [pool.submit(request, now) for request in wishes]
    return [None if attempt is None else attempt.rank for attempt in attempts]


def test_a_call_goes_to_the_fewest_open_ones_and_of_equals_to_the_first() -> None:
    pool = live_pool()
    first = [pool.submit(PoolRequest(ALL), 0.0) for _ in range(3)]
    assert [attempt.rank for attempt in first if attempt] == [0, 1, 2]
    assert first[1] is not None
    pool.end(first[1], 1.0)
    assert ranks_of(pool, *(PoolRequest(ALL) for _ in range(3))) == [1, 0, 1]


def test_conversations_spread_also_where_no_call_is_open() -> None:
    pool = live_pool()
    found = []
    for key in (*"abcdef", "a"):
        attempt = pool.submit(PoolRequest(ALL, key=key), 0.0)
        assert attempt is not None
        found.append(attempt.rank)
        pool.end(attempt, 0.0)
    assert found == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("standing", "ranks", "expected"),
    [
        ((LIVE, AWAY, GONE), ALL, [0, 0]),
        ((AWAY, AWAY, GONE), ALL, [None, None]),
        ((GONE, GONE, GONE), ALL, [0, 1]),
        ((AWAY, LIVE, LIVE), (0,), [None, None]),
        ((GONE, LIVE, LIVE), (0,), [0, 0]),
        ((LIVE, LIVE, LIVE), (2, 1), [2, 1]),
    ],
)
@pytest.mark.parametrize("keyed", [False, True])
def test_ranks_that_are_away_or_gone_get_calls_only_where_none_lives(
    standing: tuple[Standing, ...], ranks: tuple[int, ...], expected: list[int | None], keyed: bool
) -> None:
    pool = live_pool(*standing)
    assert ranks_of(pool, *(PoolRequest(ranks, key=number if keyed else None) for number in range(2))) == expected


def test_calls_wait_where_all_ranks_are_full_and_go_in_their_order() -> None:
    pool = live_pool()
    wishes = [PoolRequest(ALL, in_flight=1) for _ in range(6)]
    attempts = [pool.submit(request, 0.0) for request in wishes]
    assert pool.waiting() == wishes[3:]
    assert pool.withdraw(wishes[4], 0.0) == []
    assert attempts[2] is not None
    begun = pool.end(attempts[2], 1.0)
    assert [(each.rank, each.request) for each in begun] == [(2, wishes[3])]
    assert pool.withdraw(wishes[3], 1.0) is None
    assert ranks_of(pool, PoolRequest(ALL, in_flight=9)) == [None], (
        "it would overtake one that waits for the same ranks"
    )
    assert ranks_of(pool, PoolRequest((0,), in_flight=9)) == [None]


def test_a_call_that_wants_less_room_waits_behind_no_one_that_has_gone() -> None:
    pool = live_pool(LIVE, GONE, GONE)
    pool.submit(PoolRequest(ALL), 0.0)
    strict, modest = PoolRequest(ALL, in_flight=1), PoolRequest(ALL, in_flight=2)
    assert ranks_of(pool, strict, modest) == [None, None]
    begun = pool.withdraw(strict, 0.0)
    assert begun is not None
    assert [each.request for each in begun] == [modest]


def test_a_key_stays_at_its_rank_while_that_lives() -> None:
    pool = live_pool()
    (rank,) = ranks_of(pool, PoolRequest(ALL, key="a"))
    others = ranks_of(pool, PoolRequest(ALL, key="b"), PoolRequest(ALL, key="c"))
    assert {rank, *others} == set(ALL), "conversations spread"
    assert ranks_of(pool, *(PoolRequest(ALL, key="a") for _ in range(3))) == [rank] * 3
    waiting = PoolRequest(ALL, key="a", in_flight=1)
    assert ranks_of(pool, waiting) == [None], "it waits for its rank, while others are free"
    assert rank is not None
    begun = pool.set_standing([AWAY if each == rank else LIVE for each in ALL], 1.0)
    assert begun == [], "the others have a call each"
    (other,) = {each for each in others if each is not None and pool._bound[ALL, "a"] == each}
    first = next(iter(pool.open[other]))
    assert [(each.rank, each.request) for each in pool.end(first, 2.0)] == [(other, waiting)]
    pool.set_standing([LIVE] * 3, 3.0)
    assert ranks_of(pool, PoolRequest(ALL, key="a")) == [other], "the new rank lives, so it stays there"


def test_keys_that_have_been_quiet_for_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEYS", 2)
    pool = live_pool()
    ranks_of(pool, *(PoolRequest(ALL, key=key) for key in "abac"))
    assert list(pool._bound) == [(ALL, "a"), (ALL, "c")]


def test_a_silent_rank_loses_its_calls_and_gets_none_until_it_is_heard() -> None:
    pool = live_pool()
    wishes = [PoolRequest(ALL, stall_timeout=5.0) for _ in range(3)]
    attempts = [pool.submit(request, 0.0) for request in wishes]
    assert pool.next_stall() == 5.0
    pool.mark_alive(1, 3.0)
    assert attempts[2] is not None
    pool.end(attempts[2], 4.0)
    assert pool.find_stalled(4.9) == []
    lost = pool.find_stalled(5.0)
    assert [each.request for each in lost] == [wishes[0]]
    for each in lost:
        each.detach()
    assert pool.begin_elsewhere(5.0) == []
    assert pool.next_stall() == 8.0
    assert 0 not in ranks_of(pool, *(PoolRequest(ALL) for _ in range(9)), now=5.0)
    pool.end(lost[0], 6.0)
    assert ranks_of(pool, PoolRequest(ALL), now=6.0) == [0]


@pytest.mark.parametrize(
    ("late", "limits", "expected"),
    [
        (4.0, (5.0, 5.0), [0, 1]),  # the silence is the rank's, whenever the call has come
        (4.0, (None, 5.0), [1]),
        (4.0, (5.0, 9.0), [0]),
        (4.0, (None, None), []),
    ],
)
def test_a_call_is_lost_by_the_silence_of_its_rank_within_its_own_limit(
    late: float, limits: tuple[float | None, float | None], expected: list[int]
) -> None:
    pool = live_pool(LIVE, GONE, GONE)
    wishes = [PoolRequest(ALL, stall_timeout=limit) for limit in limits]
    pool.submit(wishes[0], 0.0)
    pool.submit(wishes[1], late)
    assert [wishes.index(each.request) for each in pool.find_stalled(5.0) if each.request] == expected


def test_a_rank_that_owes_nothing_is_not_silent() -> None:
    """A stream whose consumer has items left waits for the consumer."""
    pool = live_pool(LIVE, GONE, GONE)
    stream = pool.submit(PoolRequest(ALL, stall_timeout=5.0), 0.0)
    assert stream is not None
    pool.mark_alive(0, 1.0)
    stream.since = None
    assert pool.next_stall() is None
    assert pool.find_stalled(100.0) == []
    stream.since = 100.0
    assert pool.next_stall() == 105.0


def test_a_call_that_leaves_the_line_makes_way_at_its_other_ranks() -> None:
    pool = live_pool()
    busy = [pool.submit(PoolRequest(ranks, 1), 0.0) for ranks in ((0,), (1, 2), (1, 2))]
    first, second = PoolRequest(ALL, 1), PoolRequest((0,), 2)
    assert pool.submit(first, 0.0) is pool.submit(second, 0.0) is None
    assert busy[1] is not None
    assert [(each.rank, each.request) for each in pool.end(busy[1], 0.0)] == [(1, first), (0, second)]


class Pools(RuleBasedStateMachine):
    """Calls, answers, cancels, deaths, returns and stalls in any order."""

    ranks = st.sampled_from([(0,), (1, 2), ALL])

    @initialize()
    def start(self) -> None:
        self.pool = live_pool()
        self.now = 0.0
        self.attempts: list[Attempt] = []
        self.waiting: list[PoolRequest] = []

    def begin(self, begun: list[Attempt]) -> None:
        for attempt in begun:
            assert attempt.request in self.waiting, "it has begun, and did not wait"
            earlier = self.waiting[: self.waiting.index(attempt.request)]
            assert not any(
                other.key is None and attempt.rank in other.ranks and other.in_flight >= attempt.request.in_flight
                for other in earlier
            ), "it has overtaken one that could go there"
            self.waiting.remove(attempt.request)
            self.attempts.append(attempt)
        for attempt in begun:
            request = attempt.request
            assert request is not None
            assert attempt.rank in request.ranks

    @rule(ranks=ranks, in_flight=st.sampled_from([1, 2]), key=st.sampled_from([None, None, "a", "b"]))
    def call(self, ranks: tuple[int, ...], in_flight: int, key: str | None) -> None:
        request = PoolRequest(ranks, in_flight, 3.0, key)
        self.waiting.append(request)
        if (attempt := self.pool.submit(request, self.now)) is not None:
            assert len(self.pool.open[attempt.rank]) <= in_flight
            self.begin([attempt])

    @rule(index=st.integers(0, 5))
    def answer(self, index: int) -> None:
        if index < len(self.attempts):
            self.begin(self.pool.end(self.attempts.pop(index), self.now))

    @rule(index=st.integers(0, 5))
    def cancel(self, index: int) -> None:
        if index < len(self.waiting):
            begun = self.pool.withdraw(self.waiting.pop(index), self.now)
            assert begun is not None
            self.begin(begun)

    @rule(standing=st.tuples(*[st.sampled_from([LIVE, LIVE, AWAY, GONE])] * 3))
    def change(self, standing: tuple[Standing, ...]) -> None:
        self.begin(self.pool.set_standing(standing, self.now))

    @rule(seconds=st.sampled_from([0.5, 4.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for attempt in self.pool.find_stalled(self.now):
            attempt.detach()
        self.begin(self.pool.begin_elsewhere(self.now))
        due = self.pool.next_stall()
        assert due is None or due > self.now, "the timer would come again at once"

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert self.pool.waiting() == self.waiting
        assert sorted(map(id, self.attempts)) == sorted(id(each) for rank in self.pool.open for each in rank)

    @invariant()
    def keys_are_counted(self) -> None:
        assert self.pool._keys == [[*self.pool._bound.values()].count(rank) for rank in ALL]

    @invariant()
    def nobody_waits_for_room_that_is_there(self) -> None:
        pool = self.pool
        for request in self.waiting[:1]:
            ranks = [pool._bound[request.ranks, request.key]] if request.key is not None else request.ranks
            free = [rank for rank in pool._eligible(request.ranks) if rank in ranks]
            assert all(len(pool.open[rank]) >= request.in_flight for rank in free)


TestPools = Pools.TestCase

"""Prefetch windows of the consumer's process."""

from __future__ import annotations

import pytest

from rlinf_async._channels.state.prefetch_window import (
    BACK_OFF_S,
    IDLE_S,
    LARGE_WINDOW,
    MAX_BACK_OFF_S,
    MAX_GAP_S,
    MAX_ITEM_BYTES,
    MAX_WINDOW,
    MIN_STREAK,
    WINDOW,
    PrefetchWindows,
)

K = b"k"


def ask(state: PrefetchWindows, count: int, *, gap: float = MAX_GAP_S / 2, since: float = 100.0) -> bool:
    """A caller has so many items, one by one; whether gets may be sent ahead after the last."""
    found = False
    for number in range(1, count + 1):
        state.asked(K, number, since + number * gap)
        found = state.had(K, number)
    return found


def opened() -> PrefetchWindows:
    state = PrefetchWindows()
    assert ask(state, MIN_STREAK + 1)
    state.sent(K, list(range(101, 101 + WINDOW)))
    return state


NOW = 100.0 + (MIN_STREAK + 1) * MAX_GAP_S / 2


def test_it_begins_when_a_caller_asks_again_and_again() -> None:
    assert not ask(PrefetchWindows(), MIN_STREAK - 1)
    assert ask(PrefetchWindows(), MIN_STREAK + 1)
    assert not ask(PrefetchWindows(), 3 * MIN_STREAK, gap=2 * MAX_GAP_S)


@pytest.mark.parametrize("in_flight", [2, 4, 16, 100])
def test_it_begins_for_a_caller_with_several_gets_in_flight_when_some_asked_for_since_have_come(
    in_flight: int,
) -> None:
    state = PrefetchWindows()
    begins = []
    for number in range(1, in_flight + 1):
        state.asked(K, number, 100.0)
    for number in range(1, in_flight + MIN_STREAK + 1):
        begins.append(state.had(K, number))
        state.asked(K, in_flight + number, 100.0 + number * MAX_GAP_S / 2)
    assert begins == [False] * (in_flight + MIN_STREAK - 1) + [True]


@pytest.mark.parametrize("seconds", [MAX_GAP_S / 2, 2 * MAX_GAP_S])
def test_several_gets_at_once_now_and_then_do_not_begin_it(seconds: float) -> None:
    state = PrefetchWindows()
    begins = []
    for burst in range(3):
        numbers = range(1 + 32 * burst, 33 + 32 * burst)
        for number in numbers:
            state.asked(K, number, 100.0 + burst * seconds)
        begins += [state.had(K, number) for number in numbers]
    assert any(begins) == (seconds < MAX_GAP_S)


def test_the_oldest_is_taken_first_whatever_has_arrived() -> None:
    state = opened()
    assert state.arrived(102, (b"b", [], False))
    assert state.take(K, NOW) == (101, None)
    assert state.take(K, NOW) == (102, (b"b", [], False))
    assert not state.arrived(101, (b"a", [], False))  # a caller's


def test_it_is_topped_up_several_at_a_time() -> None:
    state = opened()
    wanted = []
    for _ in range(WINDOW):
        state.take(K, NOW)
        wanted.append(state.wanted(K))
    assert wanted == [0] * (WINDOW // 2 - 1) + list(range(WINDOW // 2, WINDOW + 1))


def test_more_are_ahead_as_a_streak_goes_on_and_few_when_another_begins() -> None:
    state = opened()
    last, limits = 100 + WINDOW, [state.limit(K)]
    for _ in range(2 * MAX_WINDOW):
        taken = state.take(K, NOW)
        assert taken is not None
        assert not state.had(K, taken[0])  # it has begun
        wanted = state.wanted(K)
        assert not wanted or wanted + len(state.open[K].numbers) == state.limit(K)
        state.sent(K, list(range(last + 1, last + 1 + wanted)))
        last += wanted
        limits.append(state.limit(K))
    assert limits == sorted(limits)
    assert {WINDOW, WINDOW + 1, MAX_WINDOW - 1} < set(limits)
    assert limits[-1] == max(limits) == MAX_WINDOW
    state.give_back(K)
    assert state.limit(K) == WINDOW


def test_fewer_are_ahead_where_items_have_memory_of_their_own_until_small_ones_come() -> None:
    state = opened()
    assert state.limit(K) == WINDOW
    state.arrived(101, (MAX_ITEM_BYTES, [9], False))
    assert state.limit(K) == LARGE_WINDOW
    wanted = []
    for _ in range(WINDOW):
        state.take(K, NOW)
        wanted.append(state.wanted(K))
    assert wanted == [0] * (WINDOW - LARGE_WINDOW // 2 - 1) + list(range(LARGE_WINDOW // 2, LARGE_WINDOW + 1))
    state.sent(K, [201, 202])
    state.arrived(201, (b"small", [], False))
    assert state.limit(K) == WINDOW


def test_what_a_caller_has_asked_for_itself_tells_how_large_they_are() -> None:
    state = PrefetchWindows()
    ask(state, MIN_STREAK - 2)
    state.large(K, MAX_ITEM_BYTES)
    assert ask(state, MIN_STREAK + 1)
    assert state.limit(K) == LARGE_WINDOW
    state.large(K, MAX_ITEM_BYTES + 1)
    assert state.wanted(K) == 0


def test_slow_callers_and_very_large_items_let_it_run_dry() -> None:
    state = opened()
    state.arrived(101, (MAX_ITEM_BYTES + 1, [9], False))
    for _ in range(WINDOW):
        state.take(K, NOW)
    assert state.wanted(K) == 0
    state = opened()
    for number in range(WINDOW):
        state.take(K, NOW + number * 2 * MAX_GAP_S)
    assert state.wanted(K) == 0
    assert not state.open


def test_everything_that_no_caller_has_taken_goes_back() -> None:
    state = opened()
    state.arrived(101, (b"a", [], False))
    state.arrived(102, (b"b", [], False))
    state.take(K, NOW)
    assert state.give_back(K) == (list(range(102, 101 + WINDOW)), [(b"b", [], False)])
    assert state.take(K, NOW) is None
    assert not state.arrived(103, (b"c", [], False))
    assert state.give_back(K) == ([], [])


def test_nobody_takes_what_has_lain_there_for_long() -> None:
    state = opened()
    assert not state.is_stale(K, NOW + IDLE_S)
    assert state.is_stale(K, NOW + 2 * IDLE_S)
    assert state.stale(NOW + 2 * IDLE_S) == [K]


def test_after_a_call_there_is_none_for_a_while() -> None:
    state = opened()
    state.back_off(K, NOW)
    state.give_back(K)
    assert not ask(state, MIN_STREAK + 1, since=NOW)
    assert not ask(state, MIN_STREAK - 1, since=NOW + BACK_OFF_S)
    assert ask(state, MIN_STREAK + 1, since=NOW + BACK_OFF_S)
    assert state.limit(K) == WINDOW


def test_where_others_ask_again_and_again_it_stays_away_for_longer_until_it_has_gone_well() -> None:
    state = opened()
    found, now = [], NOW
    for streak in (0, 0, MAX_WINDOW, *[0] * 9, MAX_WINDOW + 1):
        state._windows[K].streak = streak
        state.back_off(K, now)
        found.append(round(state._windows[K].off_until - now))
        now += MAX_BACK_OFF_S
    assert found == [1, 2, 4, 8, 16, 32, *[60] * 6, 1]


def test_what_has_ended_is_not_taken() -> None:
    state = opened()
    for number in range(102, 101 + WINDOW):
        assert state.ended(number)
    assert not state.ended(1)
    assert state.take(K, NOW) == (101, None)
    assert not state.open


def test_keys_that_come_and_go_leave_nothing() -> None:
    state = opened()
    for number in range(1000):
        state.had(b"%d" % number, number)
    assert len(state._windows) <= 64
    assert state.take(K, NOW) == (101, None)

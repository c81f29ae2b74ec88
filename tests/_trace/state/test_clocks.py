"""Clock offsets of other machines: accuracy, and monotonic conversion."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings, strategies as st

from rlinf_async._trace.state.clocks import ClockOffset

MS = 1_000_000
SECOND = 1_000_000_000


def ask(offset: ClockOffset, at: int, ahead: int, there: int, back: int) -> None:
    """A question at our time ``at`` to a clock that is ``ahead``; so long it takes there, and back."""
    offset.add_sample(at, at + there + ahead, at + there + back)


def test_the_shortest_of_several_round_trips_counts() -> None:
    offset = ClockOffset()
    ahead = 1000 * SECOND
    for there, back in ((30 * MS, 1 * MS), (200_000, 250_000), (1 * MS, 40 * MS)):
        ask(offset, 5 * SECOND, ahead, there, back)
    theirs = 6 * SECOND + ahead
    assert abs(offset.to_ours(theirs) - 6 * SECOND) < MS


def test_an_unknown_clock_is_taken_for_ours() -> None:
    offset = ClockOffset()
    assert not offset.is_known
    assert offset.to_ours(77) == 77


def test_an_answer_before_its_question_is_refused() -> None:
    with pytest.raises(ValueError, match="before it was asked for"):
        ClockOffset().add_sample(2, 0, 1)


def test_clocks_that_drift_stay_within_a_millisecond_over_hours() -> None:
    chance = random.Random(1)
    offset = ClockOffset()
    ahead, rate = -40_000 * SECOND, 1.00003
    worst = 0
    for at in range(0, 3 * 3600 * SECOND, 5 * SECOND):
        for _ in range(8):
            there, back = (int(chance.expovariate(1 / 300_000)) + 100_000 for _ in range(2))
            offset.add_sample(at, int((at + there) * rate) + ahead, at + there + back)
        for later in (0, 2 * SECOND, 4 * SECOND):
            ours = at + later
            worst = max(worst, abs(offset.to_ours(int(ours * rate) + ahead) - ours)) if at else worst
    assert worst < MS


SAMPLES = st.lists(
    st.tuples(st.integers(0, 50 * MS), st.integers(0, 50 * MS), st.integers(0, 20 * SECOND)), min_size=1, max_size=40
)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(SAMPLES, st.integers(-(10**14), 10**14), st.randoms(use_true_random=False))
def test_what_is_brought_over_keeps_its_order_and_never_changes(
    samples: list[tuple[int, int, int]], ahead: int, chance: random.Random
) -> None:
    offset = ClockOffset()
    at = 0
    brought: dict[int, int] = {}
    for there, back, pause in samples:
        ask(offset, at, ahead, there, back)
        at += there + back + pause
        for _ in range(5):
            theirs = chance.randrange(max(1, at)) + ahead
            assert brought.setdefault(theirs, offset.to_ours(theirs)) == offset.to_ours(theirs)
    times = sorted(brought)
    ours = [brought[theirs] for theirs in times]
    assert ours == sorted(ours)

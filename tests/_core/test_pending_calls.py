"""Tallies and pending calls."""

from __future__ import annotations

from hypothesis import given, strategies as st

from rlinf_async._core.frames import Status
from rlinf_async._core.pending_calls import PendingCalls, Tally, TallyStep


def test_a_call_finishes_with_its_last_answer() -> None:
    tally = Tally(2)
    assert tally.answer(1, Status.OK, b"b") is TallyStep.WAIT
    assert tally.unanswered() == [0]
    assert tally.answer(0, Status.OK, b"a") is TallyStep.FINISH
    assert tally.failures() == []


def test_the_first_failure_cancels_the_others_once() -> None:
    tally = Tally(4)
    assert tally.answer(2, Status.ERROR, b"first") is TallyStep.CANCEL_OTHERS
    assert tally.answer(1, Status.ERROR, b"second") is TallyStep.WAIT
    assert tally.answer(0, Status.CANCELLED, b"") is TallyStep.WAIT
    assert tally.answer(3, Status.CANCELLED, b"") is TallyStep.FINISH
    assert tally.failures() == [(1, Status.ERROR, b"second"), (2, Status.ERROR, b"first")]


def test_a_second_answer_of_a_slot_counts_for_nothing() -> None:
    tally = Tally(2)
    tally.answer(0, Status.OK, b"a")
    assert tally.answer(0, Status.DIED, b"") is TallyStep.NOTHING
    assert tally.missing == 1
    assert tally.failures() == []


@given(st.permutations(range(6)), st.lists(st.sampled_from(list(Status)[:3]), min_size=6, max_size=6))
def test_whatever_the_order_every_slot_is_answered_once(order: list[int], statuses: list[Status]) -> None:
    tally = Tally(6)
    steps = [tally.answer(slot, statuses[slot], b"") for slot in order]
    assert steps[-1] is TallyStep.FINISH
    assert steps.count(TallyStep.FINISH) == 1
    assert steps.count(TallyStep.CANCEL_OTHERS) <= 1
    assert {slot for slot, _, _ in tally.failures()} == {i for i in range(6) if statuses[i] == Status.ERROR}


def test_what_is_owed_is_told_oldest_first() -> None:
    pending = PendingCalls()
    for call in range(8):
        pending.add(1, call, 0, f"m{call}", float(call))
    assert pending.complete(1, 0)
    assert not pending.complete(1, 0)
    assert pending.methods(10.0)[:2] == ["m1 (9.0 s)", "m2 (8.0 s)"]
    assert pending.methods(10.0)[-1] == "and 2 more"
    assert [call[2:] for call in pending.ages(10.0, 2)] == [("m1", 9.0), ("m2", 8.0)]
    assert len(pending.ages(10.0)) == len(pending)
    assert pending.of_source(1) == list(range(1, 8))
    assert pending.of_source(2) == []
    assert [call for _, call, _ in pending.fail_all()] == list(range(1, 8))
    assert len(pending) == 0

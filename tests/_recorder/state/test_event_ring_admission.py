from __future__ import annotations

import threading

import pytest

from rlinf_async._recorder.state.event_ring import COVERED_S, RingAdmission

SLOTS = 65536
RATE = SLOTS // 2 / COVERED_S
BURST = SLOTS // 128


class Recorder:
    """An admission under a clock that stands still until it is told."""

    def __init__(self, slots: int = SLOTS) -> None:
        self.now = 10**18
        self.told = 0
        self.asks = RingAdmission(slots, self._tell, lambda: self.now).question()

    def _tell(self, count: int) -> None:
        self.told = count

    def admitted(self, count: int) -> int:
        return sum(self.asks() for _ in range(count))

    def after(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


def test_a_burst_is_admitted_and_what_follows_at_once_is_not() -> None:
    recorder = Recorder()
    assert recorder.admitted(BURST) == BURST
    assert recorder.admitted(1000) == 0


def test_a_rate_that_the_ring_can_hold_is_admitted_for_ever() -> None:
    recorder = Recorder()
    for _ in range(300):
        assert recorder.admitted(100) == 100
        recorder.after(100 / RATE)
    assert recorder.told == 0


def test_a_higher_rate_is_cut_to_the_one_that_the_ring_can_hold() -> None:
    recorder = Recorder()
    recorder.admitted(2 * BURST)
    admitted = 0
    for _ in range(3000):
        recorder.after(0.01)
        admitted += recorder.admitted(500)
    assert 0.95 * RATE * 30 < admitted <= RATE * 30 + 1


def test_what_is_admitted_in_half_a_minute_has_room_but_for_a_burst() -> None:
    recorder = Recorder()
    recorder.admitted(BURST // 2)  # a slow time, whose share is used up later
    recorder.after(3600)
    admitted = 0
    for _ in range(COVERED_S * 100):
        recorder.after(0.01)
        admitted += recorder.admitted(2000)
    assert admitted <= SLOTS // 2 + BURST + 256


def test_a_quiet_time_gives_back_the_burst_within_16_operations() -> None:
    recorder = Recorder()
    recorder.admitted(BURST + 100)
    recorder.after(3600)
    assert 100 - 16 <= recorder.admitted(100) <= 100


def test_operations_that_are_left_out_are_counted_and_told_of_with_the_next_that_is_not() -> None:
    recorder = Recorder()
    recorder.admitted(BURST)
    recorder.admitted(160)
    assert recorder.told == 0
    recorder.after(1)
    recorder.admitted(1)
    assert recorder.told == 160


def test_the_smallest_ring_has_one_operation_in_half_a_minute() -> None:
    recorder = Recorder(2)
    assert recorder.admitted(10_000) == 1
    recorder.after(COVERED_S)
    assert recorder.admitted(10_000) == 1


def test_a_question_within_a_question_is_answered() -> None:
    """Of a finalizer, or another thread, that the clock's reading lets in."""
    answers: list[bool] = []
    within = threading.local()

    def clock() -> int:
        if not getattr(within, "asks", True):
            within.asks = True
            answers.append(asks())
        return 10**18

    asks = RingAdmission(SLOTS, lambda count: None, clock).question()
    within.asks = False
    answers.append(asks())
    assert answers == [True, True]


def test_a_signal_handler_that_raises_while_it_is_asked_ends_nothing() -> None:
    def clock() -> int:
        if signals and signals.pop():
            raise KeyboardInterrupt
        return 10**18

    signals = [True, False]  # the first reading is that of the constructor
    asks = RingAdmission(SLOTS, lambda count: None, clock).question()
    with pytest.raises(KeyboardInterrupt):
        asks()
    assert asks()

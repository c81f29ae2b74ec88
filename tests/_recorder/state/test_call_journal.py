"""``CallJournal`` and ``JournalContents``: how far each call had come, at whichever moment its worker was killed."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from rlinf_async._core import frames
from rlinf_async._recorder.state.call_journal import JOURNAL_BYTES, CallJournal, Execution, JournalContents

DRIVER, WORKER = frames.endpoint(0, 1), frames.endpoint(3, 7)


class Written:
    """A journal, and its contents at any moment."""

    def __init__(self) -> None:
        self.data = bytearray(JOURNAL_BYTES)
        self.journal = CallJournal(memoryview(self.data))

    def run(self, source: int, call: int) -> None:
        self.journal.finish(self.journal.start(source, call))

    def execution(self, source: int, call: int) -> Execution:
        return JournalContents(bytes(self.data)).execution(source, call)


def test_a_call_has_not_started_then_it_has_then_it_has_finished() -> None:
    written = Written()
    assert written.execution(DRIVER, 1) is Execution.NOT_STARTED
    place = written.journal.start(DRIVER, 1)
    assert written.execution(DRIVER, 1) is Execution.STARTED
    assert written.execution(DRIVER, 2) is Execution.NOT_STARTED
    assert written.execution(WORKER, 1) is Execution.NOT_STARTED
    written.journal.finish(place)
    assert written.execution(DRIVER, 1) is Execution.FINISHED


def test_a_hundred_thousand_calls_later_it_still_tells_of_those_whose_answers_may_be_under_way() -> None:
    written = Written()
    long = written.journal.start(WORKER, 5)
    for call in range(1, 100_000):
        written.run(DRIVER, call)
    assert written.execution(DRIVER, 3) is Execution.UNKNOWN
    assert written.execution(DRIVER, 99_000) is Execution.FINISHED
    assert written.execution(DRIVER, 100_000) is Execution.NOT_STARTED
    assert written.execution(WORKER, 5) is Execution.STARTED
    written.journal.finish(long)


def test_calls_that_overtake_others_leave_none_wrongly_told() -> None:
    written = Written()
    written.run(DRIVER, 7)
    place = written.journal.start(DRIVER, 5)
    assert written.execution(DRIVER, 7) is Execution.FINISHED
    assert written.execution(DRIVER, 6) is Execution.NOT_STARTED
    assert written.execution(DRIVER, 8) is Execution.NOT_STARTED
    written.journal.finish(place)
    for number in range(2100):
        written.run(WORKER, number + 1)
    assert written.execution(DRIVER, 7) is written.execution(DRIVER, 6) is Execution.UNKNOWN
    assert written.execution(DRIVER, 8) is Execution.NOT_STARTED


def test_more_calls_than_there_is_room_for_are_unknown_and_those_with_a_place_are_not() -> None:
    written = Written()
    places = [written.journal.start(DRIVER, call) for call in range(1, 2050)]
    assert places.count(0) == 1
    assert written.execution(DRIVER, 1) is Execution.STARTED
    assert written.execution(DRIVER, 2049) is Execution.UNKNOWN
    assert written.execution(DRIVER, 4000) is Execution.UNKNOWN
    for place in places:
        written.journal.finish(place)


def test_more_callers_than_there_is_room_for_are_unknown() -> None:
    written = Written()
    for call in range(1, 4):
        for number in range(1, 400):
            written.run(frames.endpoint(0, number), call)
    assert written.execution(frames.endpoint(0, 399), 1) is Execution.UNKNOWN


def test_bytes_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=f"a journal of calls has {JOURNAL_BYTES} bytes, this has 3"):
        JournalContents(b"abc")


@given(st.lists(st.integers(1, 3), max_size=60), st.booleans(), st.data())
def test_what_it_tells_is_so_in_whichever_order_calls_start(
    callers: list[int], is_old: bool, data: st.DataObject
) -> None:
    written = Written()
    for number in range(2100 if is_old else 0):
        written.run(WORKER, number + 1)
    waiting = [(caller, call) for call, caller in enumerate(callers, 1)]
    truth = dict.fromkeys(waiting, Execution.NOT_STARTED)
    running: dict[tuple[int, int], int] = {}
    for _ in range(data.draw(st.integers(0, 2 * len(callers)))):
        if waiting and data.draw(st.booleans()):
            caller, call = waiting.pop(data.draw(st.integers(0, min(3, len(waiting) - 1))))
            running[caller, call] = written.journal.start(caller, call)
            truth[caller, call] = Execution.STARTED
        elif running:
            ended = data.draw(st.sampled_from(sorted(running)))
            written.journal.finish(running.pop(ended))
            truth[ended] = Execution.FINISHED
    for (caller, call), execution in truth.items():
        told = written.execution(caller, call)
        assert told is execution or (is_old and execution is Execution.NOT_STARTED and told is Execution.UNKNOWN)

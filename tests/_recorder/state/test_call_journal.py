"""``CallJournal`` and ``JournalContents``: how far each call had come, at whichever moment its worker was killed."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from rlinf_async._core import frames
from rlinf_async._recorder.state.call_journal import (
    JOURNAL_BYTES,
    CallJournal,
    Execution,
    JournalContents,
)

DRIVER, WORKER = frames.endpoint(0, 1), frames.endpoint(3, 7)


class Written:
    """A journal, and its contents at any moment."""

    def __init__(self) -> None:
        self.data = bytearray(JOURNAL_BYTES)
        self.journal = CallJournal(memoryview(self.data))

    def execution(self, source: int, call: int) -> Execution:
        return JournalContents.read(bytes(self.data)).execution(source, call)


def test_a_call_has_not_started_then_it_has_then_it_has_finished() -> None:
    written = Written()
    assert written.execution(DRIVER, 1) is Execution.NOT_STARTED
    place = written.journal.start(DRIVER, 1)
    assert written.execution(DRIVER, 1) is Execution.STARTED
    assert written.execution(DRIVER, 2) is Execution.NOT_STARTED
    assert written.execution(WORKER, 1) is Execution.NOT_STARTED
    written.journal.finish(place)
    assert written.execution(DRIVER, 1) is Execution.FINISHED


def test_a_hundred_thousand_calls_later_it_still_tells_for_each() -> None:
    written = Written()
    long = written.journal.start(WORKER, 5)
    for call in range(1, 100_000):
        written.journal.finish(written.journal.start(DRIVER, call))
    assert written.execution(DRIVER, 3) is Execution.FINISHED
    assert written.execution(DRIVER, 99_999) is Execution.FINISHED
    assert written.execution(DRIVER, 100_000) is Execution.NOT_STARTED
    assert written.execution(WORKER, 5) is Execution.STARTED
    written.journal.finish(long)


def test_calls_that_overtake_leave_none_wrongly_told() -> None:
    written = Written()
    written.journal.has_concurrent_methods()
    written.journal.finish(written.journal.start_concurrent(DRIVER, 7))
    assert written.execution(DRIVER, 8) is Execution.NOT_STARTED
    assert written.execution(DRIVER, 7) is Execution.UNKNOWN  # it might be one in turn, which has not started
    written.journal.finish(written.journal.start(DRIVER, 8))
    assert written.execution(DRIVER, 7) is Execution.FINISHED
    assert written.execution(DRIVER, 8) is Execution.UNKNOWN


def test_more_calls_than_there_is_room_for_are_unknown_and_those_with_a_place_are_not() -> None:
    written = Written()
    places = [written.journal.start(DRIVER, call) for call in range(1, 1026)]
    assert places.count(0) == 1
    assert written.execution(DRIVER, 1) is Execution.STARTED
    assert written.execution(DRIVER, 1025) is Execution.UNKNOWN
    assert written.execution(DRIVER, 2000) is Execution.UNKNOWN
    for place in places:
        written.journal.finish(place)


def test_more_callers_than_there_is_room_for_are_unknown() -> None:
    written = Written()
    for call in range(1, 4):
        for number in range(1, 400):
            written.journal.finish(written.journal.start(frames.endpoint(0, number), call))
    assert written.execution(frames.endpoint(0, 399), 1) is Execution.UNKNOWN


def test_bytes_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=f"a journal of calls has {JOURNAL_BYTES} bytes, this has 3"):
        JournalContents.read(b"abc")


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), max_size=60), st.data())
def test_what_it_tells_is_so_whatever_ran_and_whichever_calls_overtook(
    made: list[tuple[int, bool, bool]], data: st.DataObject
) -> None:
    """Each caller's calls start in the order of their numbers, concurrent ones in an order of their own."""
    written = Written()
    overtakes = any(concurrent for _, concurrent, _ in made)
    if overtakes:
        written.journal.has_concurrent_methods()
    queues: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for call, (caller, concurrent, _) in enumerate(made, 1):
        queues[concurrent].append((caller, call))
    truth = {(caller, call): Execution.NOT_STARTED for call, (caller, _, _) in enumerate(made, 1)}
    running: dict[tuple[int, int], int] = {}
    for _ in range(data.draw(st.integers(0, 2 * len(made)))):
        kind = data.draw(st.booleans())
        if data.draw(st.booleans()) and queues[kind]:
            caller, call = queues[kind].pop(0)
            start = written.journal.start_concurrent if kind else written.journal.start
            running[caller, call] = start(caller + 1, call)
            truth[caller, call] = Execution.STARTED
        elif running:
            ended = data.draw(st.sampled_from(sorted(running)))
            written.journal.finish(running.pop(ended))
            truth[ended] = Execution.FINISHED
    for (caller, call), execution in truth.items():
        told = written.execution(caller + 1, call)
        assert told is execution or (overtakes and told is Execution.UNKNOWN)

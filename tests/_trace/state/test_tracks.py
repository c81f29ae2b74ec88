"""Tracks of one process: spans without overlaps, bounded memory."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

from hypothesis import given, settings, strategies as st

from rlinf_async._trace.state import tracks as module
from rlinf_async._trace.state.tracks import MAIN, DrawnSpan, Tracks

FIRST, SECOND, THREAD = 1, 2, -1


class Stage:
    """Tracks with a clock that goes on by one at each event, and somebody who is running."""

    def __init__(self) -> None:
        self.ticks, self.numbers = itertools.count(1), itertools.count(1)
        self.running = MAIN
        self.tracks = Tracks()

    def enter(self, name: str, category: str = "x") -> int:
        return self._begin(name, category, entered=True)

    def begin(self, name: str) -> int:
        return self._begin(name, "x", entered=False)

    def _begin(self, name: str, category: str, *, entered: bool) -> int:
        number = next(self.numbers)
        self.tracks.begin(number, next(self.ticks), self.running, name, category, None, None, entered=entered)
        return number

    def end(self, number: int) -> None:
        self.tracks.end(number, next(self.ticks))

    def end_innermost(self, name: str, category: str = "x") -> None:
        self.tracks.end_innermost(next(self.ticks), self.running, name, category)


def assert_nested(spans: list[DrawnSpan]) -> None:
    tracks: dict[int, list[DrawnSpan]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span[1], -span[2])):
        around = tracks[span[0]]
        while around and around[-1][2] <= span[1]:
            around.pop()
        assert not around or span[2] <= around[-1][2], (span, around[-1])
        around.append(span)


def test_spans_of_one_task_nest_and_those_of_overlapping_tasks_have_tracks_of_their_own() -> None:
    stage = Stage()
    stage.running = FIRST
    outer = stage.enter("outer")
    stage.running = SECOND
    other = stage.enter("other")
    stage.running = FIRST
    for span in (stage.enter("inner"), outer, other):
        stage.end(span)
    tracks = {span[3]: span[0] for span in stage.tracks.spans}
    assert tracks["outer"] == tracks["inner"] != tracks["other"]


def test_a_track_that_is_free_is_used_again_so_that_many_tasks_need_few() -> None:
    stage = Stage()
    for stage.running in range(1, 1000):
        stage.end(stage.enter("step"))
        stage.end(stage.begin("put"))
    assert {span[0] for span in stage.tracks.spans} == {2}
    stage.running = THREAD
    stage.end(stage.enter("step"))
    assert stage.tracks.names == {1: "main", 2: "coroutine 1", 3: "thread 1"}


def test_an_operation_that_fits_into_what_began_it_is_drawn_there_and_one_that_overlaps_on_a_lane() -> None:
    stage = Stage()
    call = stage.enter("call")
    for _ in range(2):
        stage.end(stage.begin("get"))
    assert {span[0] for span in stage.tracks.spans} == {1}
    for operation in [stage.begin(f"get {number}") for number in range(3)]:
        stage.end(operation)
    stage.end(call)
    names = [stage.tracks.names[span[0]] for span in stage.tracks.spans[2:]]
    assert names == ["main", "overlapping 1", "overlapping 2", "main"]
    assert_nested(stage.tracks.spans)


def test_a_span_that_outlives_what_it_was_entered_in_leaves_its_track() -> None:
    stage = Stage()
    block, generator = stage.enter("block"), stage.enter("generator")
    for span in (block, stage.enter("later"), generator):
        stage.end(span)
    assert [span[3] for span in stage.tracks.spans] == ["block", "later", "generator"]
    assert_nested(stage.tracks.spans)


def test_the_innermost_of_a_name_ends_where_it_was_entered_only() -> None:
    stage = Stage()
    stage.enter("a")
    stage.enter("a")
    stage.end_innermost("a", "y")
    stage.running = FIRST
    stage.end_innermost("a")
    assert stage.tracks.spans == []
    stage.running = MAIN
    for _ in range(3):
        stage.end_innermost("a")
    assert [span[1] for span in stage.tracks.spans] == [2, 1]


def test_spans_that_are_begun_and_ended_crosswise_are_all_drawn() -> None:
    stage = Stage()
    stage.running = FIRST
    for name in "abc":
        stage.enter(name)
    for name in "abc":
        stage.end_innermost(name)
    assert [span[3] for span in stage.tracks.spans] == ["a", "b", "c"]
    assert_nested(stage.tracks.spans)
    assert len(stage.tracks._tracks) == 1


def test_what_is_open_is_bounded_and_what_is_given_up_is_counted(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 8)
    stage = Stage()
    begun = []
    for stage.running in range(1, 100):
        begun += [stage.enter("never left"), stage.begin("never ended")]
    assert len(stage.tracks._tracks) <= 8
    assert stage.tracks.abandon() == 8
    for number in begun:
        stage.end(number)
    assert stage.tracks.spans == []
    assert len(stage.tracks._tracks) == 1


def test_events_of_several_threads_may_be_a_moment_out_of_order() -> None:
    tracks = Tracks()
    tracks.begin(1, 100, FIRST, "a", "x", None, None, entered=True)
    tracks.end(1, 200)
    tracks.begin(2, 150, SECOND, "b", "x", None, None, entered=True)
    tracks.begin(3, 140, SECOND, "put", "x", None, None, entered=False)
    tracks.end(3, 130)
    tracks.end(2, 120)
    assert len(tracks.spans) == 3
    assert all(span[1] <= span[2] for span in tracks.spans)
    assert_nested(tracks.spans)


STEPS = st.lists(st.tuples(st.sampled_from(["enter", "leave", "begin", "end"]), st.integers(-2, 2)), max_size=120)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(STEPS)
def test_whatever_is_begun_and_ended_where_and_in_which_order_nothing_overlaps(steps: list[tuple[str, int]]) -> None:
    stage = Stage()
    entered: list[int] = []
    begun: list[int] = []
    ended = 0
    for what, who in steps:
        stage.running = who
        if what == "enter":
            entered.append(stage.enter("span"))
        elif what == "begin":
            begun.append(stage.begin("operation"))
        elif open_ones := entered if what == "leave" else begun:
            stage.end(open_ones.pop(-1 - abs(who) % len(open_ones)))
            ended += 1
    assert len(stage.tracks.spans) == ended
    assert_nested(stage.tracks.spans)

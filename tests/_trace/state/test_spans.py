"""Span recorder: tracks without overlaps, bounded memory."""

from __future__ import annotations

import gc
import itertools
import threading
from collections import defaultdict
from typing import Any

from hypothesis import given, settings, strategies as st

from rlinf_async._trace.state.spans import Event, Recorder, Span, plain

MAIN = 1


class FakeTask:
    """What the recorder needs of a task."""

    def __init__(self) -> None:
        self.ended = False

    def done(self) -> bool:
        return self.ended


class Stage:
    """A recorder with a clock that goes on by one at each look, and somebody who is running."""

    def __init__(self, **options: Any) -> None:
        ticks = itertools.count(1)
        self.running: Any = MAIN
        self.full = 0
        self.recorder = Recorder(lambda: self.running, self._on_full, MAIN, clock=lambda: next(ticks), **options)

    def _on_full(self) -> None:
        self.full += 1

    def events(self) -> list[Event]:
        found = []
        while (batch := self.recorder.take()) is not None:
            found += batch[2]
        return found


def assert_nested(events: list[Event]) -> None:
    tracks: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event[1], -event[2])):
        around = tracks[event[0]]
        while around and around[-1][2] <= event[1]:
            around.pop()
        assert not around or event[2] <= around[-1][2], (event, around[-1])
        around.append(event)


def test_spans_of_one_task_nest_and_those_of_overlapping_tasks_have_tracks_of_their_own() -> None:
    stage = Stage()
    first, second = FakeTask(), FakeTask()
    stage.running = first
    outer = stage.recorder.enter("outer", "x")
    stage.running = second
    other = stage.recorder.enter("other", "x")
    stage.running = first
    inner = stage.recorder.enter("inner", "x")
    stage.recorder.leave(inner)
    stage.recorder.leave(outer)
    stage.recorder.leave(other)
    tracks = {event[3]: event[0] for event in stage.events()}
    assert tracks["outer"] == tracks["inner"] != tracks["other"]


def test_a_track_that_is_free_is_used_again_so_that_many_tasks_need_few() -> None:
    stage = Stage()
    for _ in range(1000):
        stage.running = FakeTask()
        stage.recorder.leave(stage.recorder.enter("step", "x"))
    assert {event[0] for event in stage.events()} == {2}


def test_an_operation_that_fits_into_what_began_it_is_drawn_there() -> None:
    stage = Stage()
    call = stage.recorder.enter("call", "x")
    for _ in range(2):
        stage.recorder.end(stage.recorder.begin("get", "x"))
    stage.recorder.leave(call)
    assert {event[0] for event in stage.events()} == {1}


def test_operations_that_overlap_go_to_lanes_and_the_names_of_all_tracks_are_told_once() -> None:
    stage = Stage()
    call = stage.recorder.enter("call", "x")
    operations = [stage.recorder.begin(f"get {number}", "x") for number in range(3)]
    for operation in operations:
        stage.recorder.end(operation)
    stage.recorder.leave(call)
    batch = stage.recorder.take()
    assert batch is not None
    names, dropped, events = batch
    assert dropped == 0
    assert [names[event[0]] for event in events] == ["main", "overlapping 1", "overlapping 2", "main"]
    assert_nested(events)
    stage.recorder.leave(stage.recorder.enter("again", "x"))
    batch = stage.recorder.take()
    assert batch is not None
    assert batch[0] == {}


def test_a_span_that_outlives_what_it_was_entered_in_leaves_its_track() -> None:
    stage = Stage()
    block = stage.recorder.enter("block", "x")
    generator = stage.recorder.enter("generator", "x")
    stage.recorder.leave(block)
    stage.recorder.leave(stage.recorder.enter("later", "x"))
    stage.recorder.leave(generator)
    events = stage.events()
    assert [event[3] for event in events] == ["block", "later", "generator"]
    assert_nested(events)


def test_the_innermost_of_a_name_is_found_where_it_was_entered_only() -> None:
    stage = Stage()
    first, second = stage.recorder.enter("a", "x"), stage.recorder.enter("a", "x")
    assert stage.recorder.innermost("a", "x") is second
    assert stage.recorder.innermost("a", "y") is None
    stage.running = FakeTask()
    assert stage.recorder.innermost("a", "x") is None
    stage.recorder.leave(second)
    stage.running = MAIN
    assert stage.recorder.innermost("a", "x") is first


def test_what_is_kept_is_bounded_and_what_is_left_out_is_counted() -> None:
    stage = Stage(enough=4, capacity=8)
    for number in range(20):
        stage.recorder.leave(stage.recorder.enter(str(number), "x"))
    assert len(stage.recorder) == 8
    assert stage.full >= 4
    batch = stage.recorder.take(8)
    assert batch is not None
    _, dropped, events = batch
    assert (dropped, [event[3] for event in events]) == (12, [str(number) for number in range(8)])
    assert stage.recorder.take() is None


def test_tasks_that_end_with_something_open_do_not_hold_their_tracks_for_ever() -> None:
    stage = Stage()
    for _ in range(5000):
        task = stage.running = FakeTask()
        stage.recorder.enter("never left", "x")
        stage.recorder.begin("never ended", "x")
        task.ended = True
    assert len(stage.recorder._tracks) <= 1025


def test_a_span_that_is_left_after_its_track_was_taken_away_still_overlaps_nothing() -> None:
    stage = Stage()
    recorder = stage.recorder
    entered: list[Span] = []
    begun: list[Span] = []
    for _ in range(1024):
        task = stage.running = FakeTask()
        entered.append(recorder.enter("left late", "x"))
        begun.append(recorder.begin("ended late", "x"))
        task.ended = True
    for first in (True, False):
        stage.running = FakeTask()
        held = recorder.begin("held", "x") if first else recorder.enter("held", "x")
        for _ in range(512):
            recorder.end(begun.pop(0))
            recorder.leave(entered.pop(0))
        recorder.end(held) if first else recorder.leave(held)
    assert_nested(stage.events())


def test_an_operation_may_be_ended_by_a_finalizer_that_runs_inside_the_recorder() -> None:
    stage = Stage()

    class Ends:
        def __init__(self) -> None:
            self.itself = self
            self.span = stage.recorder.begin("dropped", "x")

        def __del__(self) -> None:
            stage.recorder.end(self.span)

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            Ends()
            stage.recorder.leave(stage.recorder.enter("step", "x"))
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    events = stage.events()
    assert sum(event[3] == "dropped" for event in events) == 200
    assert_nested(events)


def test_threads_may_record_and_take_at_once() -> None:
    recorder = Recorder(threading.get_ident, lambda: None, threading.get_ident())
    taken: list[Event] = []

    def work() -> None:
        for _ in range(500):
            span = recorder.enter("step", "x")
            operation = recorder.begin("put", "x")
            recorder.leave(span)
            recorder.end(operation)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if (batch := recorder.take()) is not None:
            taken += batch[2]
    while (batch := recorder.take()) is not None:
        taken += batch[2]
    assert len(taken) == 4 * 500 * 2
    assert_nested(taken)


STEPS = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "begin", "end", "finish"]), st.integers(0, 4)), max_size=120
)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(STEPS)
def test_whatever_is_begun_and_ended_where_and_in_which_order_nothing_overlaps(steps: list[tuple[str, int]]) -> None:
    stage = Stage()
    tasks: list[Any] = [MAIN, *(FakeTask() for _ in range(4))]
    entered: list[Span] = []
    begun: list[Span] = []
    ended = 0
    for what, which in steps:
        stage.running = tasks[which]
        if what == "enter":
            entered.append(stage.recorder.enter("span", "x"))
        elif what == "begin":
            begun.append(stage.recorder.begin("operation", "x"))
        elif what == "finish" and which:
            tasks[which].ended = True
            tasks[which] = FakeTask()
        elif what == "leave" and entered:
            stage.recorder.leave(entered.pop(-1 - which % len(entered)))
            ended += 1
        elif what == "end" and begun:
            stage.recorder.end(begun.pop(-1 - which % len(begun)))
            ended += 1
    events = stage.events()
    assert len(events) == ended
    assert_nested(events)


def test_of_arguments_numbers_and_texts_are_kept_and_of_anything_else_its_type() -> None:
    class Tensor:
        def __repr__(self) -> str:
            raise RuntimeError("it would wait for the device")

    args = {
        "step": 3,
        "loss": float("nan"),
        "text": "x" * 999,
        "list": [1, "a", Tensor()],
        "tensor": Tensor(),
        "n": None,
    }
    assert plain(args) == {
        "step": 3, "loss": "nan", "text": "x" * 200, "list": [1, "a", "<Tensor>"], "tensor": "<Tensor>", "n": None,
    }  # fmt: skip
    assert plain({"huge": 10**400, "large": 2**70, "yes": True}) == {
        "huge": "a large number", "large": "1.18059e+21", "yes": True,
    }  # fmt: skip
    assert plain({}) is plain(None) is None
    assert len(plain({str(number): number for number in range(99)}) or {}) == 16

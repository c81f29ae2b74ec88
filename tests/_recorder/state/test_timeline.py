"""Timelines: operations become spans in lanes, and times without work become bubbles."""

from __future__ import annotations

import dataclasses

import pytest

from rlinf_async._recorder.state.event_ring import SKIPPED, EventKind, EventRing, MetricKind, size_of
from rlinf_async._recorder.state.ring_contents import RingContents, RingMetric
from rlinf_async._recorder.state.timeline import MAX_LANES, Timeline
from tests._support.made_rings import operation, point, ring

SERVE, RECV, GET, SPAN, CALL = EventKind.SERVE, EventKind.RECV, EventKind.GET, EventKind.SPAN, EventKind.CALL


def test_a_begin_and_its_end_are_one_span_and_what_has_not_ended_is_open() -> None:
    made = ring("a:0", operation(CALL, "g.f", 10, 30), operation(CALL, "g.h", 20, None, failed=True))
    spans = Timeline.of(made, 100).spans
    assert [(span.name, span.begin, span.end, span.failed) for span in spans] == [
        ("g.f", 10, 30, False),
        ("g.h", 20, None, False),
    ]


def test_a_failed_operation_is_marked() -> None:
    (span,) = Timeline.of(ring("a:0", operation(CALL, "g.f", 1, 2, failed=True)), 9).spans
    assert span.failed


def test_the_wall_clock_of_each_machine_brings_its_times_together() -> None:
    one = Timeline.of(ring("a:0", operation(CALL, "f", 5, 9), wall_offset=1000), 2000)
    other = Timeline.of(ring("a:1", operation(CALL, "f", 905, 909), wall_offset=100), 2000)
    assert (one.spans[0].begin, one.spans[0].end) == (other.spans[0].begin, other.spans[0].end) == (1005, 1009)


def test_nested_and_overlapping_spans_lie_in_lanes_below_each_other() -> None:
    made = ring(
        "a:0",
        operation(SERVE, "step", 0, 100),
        operation(RECV, "first", 10, 20),
        operation(RECV, "beside", 15, 40),
        operation(RECV, "after", 20, 30),
        operation(SERVE, "next", 100, None),
    )
    lanes = {span.name: span.lane for span in Timeline.of(made, 200).spans}
    assert lanes == {"step": 0, "first": 1, "beside": 2, "after": 1, "next": 0}


def test_more_operations_at_once_than_there_are_lanes_share_the_last_one() -> None:
    made = ring("driver", *(operation(CALL, "f", number, None) for number in range(MAX_LANES + 5)))
    assert max(span.lane for span in Timeline.of(made, 100).spans) == MAX_LANES - 1


def test_a_rank_that_serves_no_call_is_in_a_bubble() -> None:
    made = ring("a:0", operation(SERVE, "step", 10, 20), operation(SERVE, "step", 50, 60))
    assert Timeline.of(made, 80).bubbles == [(20, 50), (60, 80)]


@pytest.mark.parametrize("kind", [RECV, GET, EventKind.WAIT])
def test_a_rank_whose_call_only_waits_is_in_a_bubble(kind: EventKind) -> None:
    made = ring("a:0", operation(SERVE, "step", 0, 100), operation(kind, "obs", 30, 70))
    assert Timeline.of(made, 100).bubbles == [(30, 70)]


def test_a_rank_with_a_call_that_works_beside_one_that_waits_is_in_none() -> None:
    made = ring("a:0", operation(SERVE, "f", 0, 100), operation(SERVE, "g", 0, 50), operation(GET, "obs", 10, 90))
    assert Timeline.of(made, 100).bubbles == [(50, 90)]


def test_a_span_of_the_users_that_begins_beside_a_posted_receive_is_work_and_one_around_it_is_not() -> None:
    posted = ring(
        "a:0", operation(SERVE, "f", 0, 100), operation(RECV, "x", 10, 90), operation(SPAN, "forward", 20, 60)
    )
    assert Timeline.of(posted, 100).bubbles == [(10, 20), (60, 90)]
    around = ring("a:0", operation(SERVE, "f", 0, 100), operation(SPAN, "recv", 5, 95), operation(RECV, "x", 10, 90))
    assert Timeline.of(around, 100).bubbles == [(10, 90)]


def test_what_was_posted_before_a_call_is_no_wait_of_that_call() -> None:
    made = ring("a:0", operation(RECV, "x", 0, 100), operation(SERVE, "f", 10, 40), operation(SERVE, "f", 60, 90))
    assert Timeline.of(made, 100).bubbles == [(0, 10), (40, 60), (90, 100)]
    within = ring("a:0", operation(SERVE, "f", 0, 40), operation(RECV, "x", 10, None), operation(SERVE, "f", 60, 90))
    assert Timeline.of(within, 90).bubbles == [(10, 60)]


def test_a_driver_has_no_bubbles() -> None:
    assert Timeline.of(ring("driver", operation(CALL, "f", 0, 10)), 100).bubbles == []


def test_of_a_full_ring_nothing_is_said_before_its_first_served_call_and_its_last_unknown_end() -> None:
    call, unknown = operation(SERVE, "run", 0, 40)
    made = ring("a:0", [unknown], operation(SERVE, "f", 10, 20), operation(SERVE, "f", 60, 70), is_full=True)
    assert call.time == 0
    assert Timeline.of(made, 80).bubbles == [(40, 60), (70, 80)]


def test_words_about_long_waits_are_points() -> None:
    made = ring("driver", point(EventKind.WORD, "waits for long", 5), wall_offset=1000)
    assert [(each.name, each.time) for each in Timeline.of(made, 1010).points] == [("waits for long", 1005)]


def test_an_empty_ring_is_an_empty_timeline() -> None:
    timeline = Timeline.of(ring("a:0"), 10)
    assert (timeline.spans, timeline.bubbles, timeline.begin, timeline.latest) == ([], [], 0, 0)


def test_a_ring_that_was_written_is_read_as_it_was_nested() -> None:
    memory = bytearray(size_of(64))
    writer = EventRing(memory, 64, {"process": "a:0"})
    outer = writer.begin(SERVE, "step")
    inner = writer.begin(RECV, "recv b:0")
    writer.end(inner, failed=True)
    writer.begin(SPAN, "forward")
    writer.end(outer)
    timeline = Timeline.of(RingContents.read(bytes(memory)), 0)
    assert [(span.name, span.lane, span.failed, span.end is None) for span in timeline.spans] == [
        ("step", 0, False, False),
        ("recv b:0", 1, True, False),
        ("forward", 1, False, True),
    ]
    assert timeline.begin <= timeline.latest


def test_operations_that_were_left_out_are_counted() -> None:
    made = ring("a:0", operation(SERVE, "f", 0, 1))
    assert Timeline.of(made, 10).skipped == 0
    skipping = dataclasses.replace(made, metrics=[RingMetric(MetricKind.COUNTER, SKIPPED, 7.0)])
    assert Timeline.of(skipping, 10).skipped == 7

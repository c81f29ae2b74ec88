"""Series over a run: versions and staleness, items in channels, times of phases."""

from __future__ import annotations

from rlinf_async._recorder.state.event_ring import EventKind
from rlinf_async._recorder.state.run_series import fill_of_channels, phases_of, thinned, versions_of
from rlinf_async._recorder.state.timeline import Timeline
from tests._support.made_rings import operation, point, ring

PUT, GET, SERVE, SPAN, VERSION = EventKind.PUT, EventKind.GET, EventKind.SERVE, EventKind.SPAN, EventKind.VERSION


def test_a_rank_is_as_stale_as_the_latest_version_is_ahead_of_its_own() -> None:
    actor = ring("actor:0", *(point(VERSION, "published policy", 10 * number, number) for number in (1, 2, 3)))
    rollout = ring("rollout:0", point(VERSION, "applied policy", 15, 1), point(VERSION, "applied policy", 35, 3))
    models = versions_of([Timeline.of(actor, 50), Timeline.of(rollout, 50)])
    assert models["policy"].published == [(10, 1), (20, 2), (30, 3)]
    assert models["policy"].applied == {"rollout:0": [(15, 1), (35, 3)]}
    assert models["policy"].staleness("rollout:0") == [(15, 0), (20, 1), (30, 2), (35, 0)]


def test_several_publishers_of_a_version_count_once() -> None:
    rings = [ring(f"actor:{rank}", point(VERSION, "published policy", 10 + rank, 1)) for rank in (0, 1)]
    assert versions_of(Timeline.of(each, 50) for each in rings)["policy"].published == [(10, 1)]


def test_a_channel_holds_what_was_put_and_not_got_over_all_processes() -> None:
    producer = ring("a:0", operation(PUT, "obs", 0, 10), operation(PUT, "obs", 10, 20), operation(PUT, "obs", 20, None))
    consumer = ring("b:0", operation(GET, "obs", 0, 15), operation(GET, "obs", 16, 40, failed=True))
    timelines = [Timeline.of(each, 50) for each in (producer, consumer)]
    assert fill_of_channels(timelines, {}) == {"obs": [(10, 1), (15, 0), (20, 1)]}
    assert fill_of_channels(timelines, {"obs": 5}) == {"obs": [(10, 5), (15, 4), (20, 5)]}


def test_a_channel_whose_first_puts_were_overwritten_was_empty_at_its_lowest() -> None:
    consumer = ring("b:0", operation(GET, "obs", 0, 10), operation(GET, "obs", 0, 20), operation(PUT, "obs", 0, 30))
    assert fill_of_channels([Timeline.of(consumer, 50)], {})["obs"] == [(10, 1), (20, 0), (30, 1)]


def test_phases_are_counted_by_name_and_window_the_longest_first() -> None:
    rings = [
        ring("a:0", operation(SERVE, "step", 0, 40), operation(SPAN, "forward", 0, 10)),
        ring("a:1", operation(SERVE, "step", 50, 70, failed=True), operation(SERVE, "step", 80, None)),
    ]
    step, forward = phases_of((Timeline.of(each, 100) for each in rings), 0, 100, 4)
    assert (step.name, step.count, step.total, step.p50, step.most, step.failed) == ("step", 2, 60, 30, 40, 1)
    assert step.windows == [None, 40, 20, None]
    assert (forward.kind, forward.name, forward.windows) == (SPAN, "forward", [10, None, None, None])


def test_what_a_process_had_begun_when_it_died_ended_there_and_has_failed() -> None:
    made = ring("a:0", operation(SERVE, "step", 0, 10), operation(SERVE, "step", 20, None))
    (step,) = phases_of([Timeline.of(made, 60, died=60)], 0, 50, 5)
    assert (step.count, step.most, step.failed) == (2, 40, 1)
    assert step.windows == [None, 10, None, None, 40]
    (step,) = phases_of([Timeline.of(made, 60)], 0, 50, 5)
    assert (step.count, step.failed) == (1, 0)


def test_thinned_steps_keep_every_peak_and_the_last_value() -> None:
    steps = [(time, float(time == 700)) for time in range(1000)]
    thin = thinned(steps, 100)
    assert len(thin) <= 110
    assert (700, 1.0) in thin
    assert thin[-1] == steps[-1]
    assert thinned(steps[:50], 100) == steps[:50]

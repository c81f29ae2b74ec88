"""The user's gauges and counters: values reach the ring, mistakes are told once, and nothing fails."""

from __future__ import annotations

import math
import os
import sys
import threading

import pytest
import torch

from rlinf_async._recorder import recording, user_metrics
from rlinf_async._recorder.state.event_ring import MAX_CELLS, EventRing, MetricKind, size_of
from rlinf_async._recorder.state.ring_contents import RingMetric, metrics_of
from rlinf_async._recorder.user_metrics import Metrics

GAUGE, COUNTER = MetricKind.GAUGE, MetricKind.COUNTER


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> bytearray:
    """The memory of this process's ring."""
    data = bytearray(size_of(8))
    monkeypatch.setattr(recording, "ring", EventRing(data, 8, {}))
    monkeypatch.setattr(user_metrics, "_warned", set())
    return data


def values(ring: bytearray) -> dict[str, float]:
    return {metric.name: metric.value for metric in metrics_of(bytes(ring))}


def test_a_gauge_has_its_latest_value_and_a_counter_their_sum(ring: bytearray) -> None:
    metrics = Metrics()
    for value in (1.0, torch.tensor(2.5)):
        metrics.gauge("loss").set(value)
    metrics.counter("episodes").add(3)
    metrics.counter("episodes_total").add()
    assert metrics_of(bytes(ring)) == [RingMetric(GAUGE, "loss", 2.5), RingMetric(COUNTER, "episodes", 4.0)]


def test_a_gauge_may_be_no_number_and_infinite(ring: bytearray) -> None:
    Metrics().gauge("loss").set(-math.inf)
    assert values(ring) == {"loss": -math.inf}
    Metrics().gauge("loss").set(math.nan)
    assert math.isnan(values(ring)["loss"])


def test_each_combination_of_labels_is_a_metric_whatever_their_order_and_types(ring: bytearray) -> None:
    metrics = Metrics()
    metrics.counter("n", a=1, b="x").add()
    metrics.counter("n", b="x", a="1").add()
    metrics.counter("n", a=2, b="x").add()
    assert values(ring) == {'n{a="1",b="x"}': 2.0, 'n{a="2",b="x"}': 1.0}
    assert metrics.gauge("loss", task=["a"]) is metrics.gauge("loss", task=["a"])


def test_mistakes_are_told_once_and_leave_the_rest_alone(ring: bytearray, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.gauge("mean return").set(1)
        metrics.gauge("loss").set(1)
        metrics.counter("loss").add(1)
        metrics.gauge("loss").set("high")  # type: ignore[arg-type]
        metrics.counter("n").add(-1)
        metrics.counter("n").add(math.nan)
        metrics.counter("n").add(None)  # type: ignore[arg-type]
    assert values(ring) == {"loss": 1.0, "n": 0.0}
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 6
    assert told[0].startswith("metric 'mean return' is not kept as a gauge: a name has letters")
    assert (
        told[1] == "metric 'loss' is not kept as a counter: it is a gauge elsewhere: give one of the two another name"
    )
    assert told[2] == "metric loss keeps its value: gauges take no 'high'"
    assert told[3] == "metric n keeps its value: counters take no -1"


def test_a_value_that_is_no_float_fails_nothing(ring: bytearray) -> None:
    class Unready:
        def __float__(self) -> float:
            raise KeyError("loss")

    for value in (10**400, 10**5000, Unready()):
        Metrics().gauge("loss").set(value)
        Metrics().counter("n").add(value)
    assert values(ring) == {"loss": 0.0, "n": 0.0}


def test_a_name_or_label_that_is_no_text_fails_nothing(ring: bytearray, caplog: pytest.LogCaptureFixture) -> None:
    class Mute:
        def __str__(self) -> str:
            raise ValueError("no text")

    metrics = Metrics()
    for _ in range(2):
        metrics.gauge(["loss"]).set(1)  # type: ignore[arg-type]
        metrics.counter("n", task=Mute()).add()
        metrics.counter("_total").add()
        metrics.gauge("x" * 100_000).set(1)
    assert values(ring) == {}
    told = [record.getMessage() for record in caplog.records]
    assert told[:2] == [
        "metric ['loss'] is not kept as a gauge: unhashable type: 'list'",
        "metric 'n' is not kept as a counter: no text",
    ]
    assert len(told) == 4
    assert max(map(len, told)) < 500


def test_metrics_beyond_the_room_of_the_ring_are_told_once(ring: bytearray, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    for number in range(MAX_CELLS + 100):
        metrics.gauge("loss", step=number).set(number)
    assert len(values(ring)) == MAX_CELLS
    assert [record.getMessage() for record in caplog.records] == [
        "further metrics of this process are not kept: there is room for 512, each combination of labels being one, "
        "and 64 KiB of names"
    ]


def test_counters_lose_no_step_of_several_threads(ring: bytearray) -> None:
    counter = Metrics().counter("n")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=lambda: [counter.add() for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert values(ring) == {"n": 8000.0}


def test_another_run_begins_with_the_same_objects_anew(ring: bytearray, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    counter, gauge = metrics.counter("n"), metrics.gauge("loss")
    counter.add(5)
    gauge.set(5)
    later = bytearray(size_of(8))
    monkeypatch.setattr(recording, "ring", EventRing(later, 8, {}))
    counter.add(1)
    gauge.set(1)
    assert (values(ring), values(later)) == ({"n": 5.0, "loss": 5.0}, {"n": 1.0, "loss": 1.0})


def test_without_a_ring_nothing_is_kept_and_that_is_told_once(
    ring: bytearray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recording, "ring", None)
    metrics = Metrics()
    for _ in range(2):
        metrics.gauge("loss").set(1)
        metrics.counter("n").add(1)
    assert len(caplog.records) == 1
    assert "it has no flight recorder" in caplog.text


def test_a_forked_child_writes_nothing_into_its_parents_ring(ring: bytearray) -> None:
    metrics = Metrics()
    gauge, counter = metrics.gauge("loss"), metrics.counter("n")
    gauge.set(1)
    counter.add(1)
    child = os.fork()
    if child == 0:
        try:
            gauge.set(2)
            counter.add(2)
            metrics.gauge("other").set(3)
            os._exit(recording.ring is not None)
        finally:
            os._exit(9)
    assert os.waitpid(child, 0)[1] == 0
    assert values(ring) == {"loss": 1.0, "n": 1.0}

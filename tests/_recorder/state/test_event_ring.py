"""``EventRing`` and ``RingContents``: what is written is read, also while it is written, wrapped around, or torn."""

from __future__ import annotations

import itertools
import struct
import threading

import pytest
from hypothesis import given, strategies as st

from rlinf_async._recorder.state.event_ring import (
    EVENT,
    MAX_CELLS,
    OTHER,
    SKIPPED,
    SLOTS_AT,
    EventKind,
    EventRing,
    MetricKind,
    Phase,
    RingAdmission,
    size_of,
)
from rlinf_async._recorder.state.metric_names import cell_name, split_cell
from rlinf_async._recorder.state.ring_contents import RingContents


def make(slots: int = 64) -> tuple[EventRing, bytearray]:
    buffer = bytearray(size_of(slots))
    return EventRing(buffer, slots, {"process": "actor:0", "endpoint": 7}), buffer


def read(buffer: bytearray) -> RingContents:
    return RingContents.read(bytes(buffer))


def test_begin_and_end_of_an_operation_have_its_number_and_the_begin_has_name_and_value() -> None:
    ring, buffer = make()
    sent = ring.begin(EventKind.SEND, "send actor:0", 4096)
    received = ring.begin(EventKind.RECV, "recv actor:1")
    ring.end(received, failed=True)
    ring.end(sent)
    ring.point(EventKind.VERSION, "applied policy", 3)

    found = read(buffer)
    assert found.identity == {"process": "actor:0", "endpoint": 7}
    assert not found.is_full
    assert [(event.kind, event.phase, event.name, event.value) for event in found.events] == [
        (EventKind.SEND, Phase.BEGIN, "send actor:0", 4096),
        (EventKind.RECV, Phase.BEGIN, "recv actor:1", 0),
        (EventKind.END, Phase.FAILED, "", 0),
        (EventKind.END, Phase.END, "", 0),
        (EventKind.VERSION, Phase.POINT, "applied policy", 3),
    ]
    begun, other, failed, ended, _ = found.events
    assert (begun.operation, other.operation) == (ended.operation, failed.operation)
    assert begun.operation != other.operation
    assert [event.time for event in found.events] == sorted(event.time for event in found.events)


@given(st.integers(0, 400))
def test_the_latest_events_stay_and_the_oldest_go(count: int) -> None:
    ring, buffer = make(64)
    for number in range(count):
        ring.point(EventKind.SPAN, "n", number)
    found = read(buffer)
    values = [event.value for event in found.events]
    assert values == list(range(count))[-len(values) :] if values else count == 0
    assert len(values) == count if count < 63 else len(values) >= 50
    assert found.is_full == (count >= 63)


def test_a_slot_that_a_process_was_killed_in_shows_no_event_that_never_was() -> None:
    ring, buffer = make(64)
    for number in range(100):
        ring.point(EventKind.SPAN, "n", number)
    at = SLOTS_AT + ((100 + 1) % 64) * EVENT.size
    struct.pack_into("<BBHId", buffer, at, EventKind.SEND, Phase.BEGIN, 0, 4711, 1e300)  # all but the time
    assert {event.kind for event in read(buffer).events} == {EventKind.SPAN}
    assert read(buffer).events[-1].value == 99


def test_bytes_of_another_file_and_of_half_a_ring_are_refused() -> None:
    _, buffer = make()
    for data, text in (
        (bytes(len(buffer)), "begins with"),
        (bytes(buffer[: SLOTS_AT + 99]), "slots"),
        (b"x", "at least"),
    ):
        with pytest.raises(ValueError, match=text):
            RingContents.read(data)


@given(st.binary(max_size=64), st.integers(0, size_of(16) - 64))
def test_a_ring_whose_bytes_were_damaged_is_read_or_refused(noise: bytes, at: int) -> None:
    ring, buffer = make(16)
    for number in range(20):
        ring.point(EventKind.SPAN, f"n{number}", number)
    buffer[at : at + len(noise)] = noise
    try:
        found = read(buffer)
    except ValueError:
        return
    assert len(found.events) <= 16


def test_names_that_do_not_fit_any_more_are_told_as_others() -> None:
    ring, buffer = make(1024)
    for number in range(1000):
        ring.point(EventKind.SPAN, f"{number:0200}")
    names = [event.name for event in read(buffer).events]
    assert names[0] == f"{0:0200}"
    assert names[-1] == OTHER


def test_events_of_many_threads_are_all_there() -> None:
    ring, buffer = make(4096)

    def record(name: str) -> None:
        for _ in range(200):
            ring.end(ring.begin(EventKind.SPAN, name))

    threads = [threading.Thread(target=record, args=(f"thread {number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read(buffer).events
    begun = {event.operation: event.name for event in found if event.phase is Phase.BEGIN}
    assert len(found) == 3200
    assert {event.operation for event in found if event.phase is Phase.END} == begun.keys()
    assert all(list(begun.values()).count(f"thread {number}") == 200 for number in range(8))


def test_a_metric_has_its_last_value_and_the_table_has_an_end() -> None:
    ring, buffer = make()
    place = ring.cell(MetricKind.GAUGE, 'return{task="cheetah"}')
    assert place is not None
    ring.store(place, 1.5)
    ring.store(place, 2.5)
    assert ring.cell(MetricKind.GAUGE, 'return{task="cheetah"}') == place
    assert (MetricKind.GAUGE, 'return{task="cheetah"}', 2.5) in read(buffer).metrics
    for number in range(1, MAX_CELLS):
        assert ring.cell(MetricKind.COUNTER, f"n{number}") is not None
    assert ring.cell(MetricKind.COUNTER, "one too many") is None


def test_a_metric_has_its_whole_name_or_no_place() -> None:
    ring, buffer = make()
    assert ring.cell(MetricKind.GAUGE, cell_name("versions", {"model": "m" * 182})) is not None
    assert ring.cell(MetricKind.GAUGE, cell_name("versions", {"model": "m" * 183})) is None
    assert [split_cell(metric.name) for metric in read(buffer).metrics] == [("versions", {"model": "m" * 182})]


@pytest.mark.parametrize("slots", [0, 3, -8])
def test_a_ring_has_a_power_of_two_of_slots(slots: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        EventRing(bytearray(size_of(64)), slots, {})


def test_an_identity_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="4072 bytes"):
        EventRing(bytearray(size_of(64)), 64, {"process": "x" * 5000})


def test_at_a_high_rate_operations_are_left_out_and_counted_so_that_the_ring_covers_half_a_minute() -> None:
    now = 1
    buffer = bytearray(size_of(1024))
    ring = EventRing(buffer, 1024, {}, lambda: now)
    admits = RingAdmission(1024, ring.left_out, lambda: now).question()
    admitted = []
    for now in range(1, 60_000_000_000, 1_000_000):  # an operation each millisecond, for a minute
        if admits():
            ring.end(ring.begin(EventKind.PUT, "obs"))
            admitted.append(now)
    found = read(buffer)
    assert found.events[-1].time - found.events[0].time > 25e9
    later = [time for time in admitted if time > 30_000_000_000]
    assert 400 < len(later) < 520  # evenly: 17 a second
    assert max(b - a for a, b in itertools.pairwise(later)) < 80_000_000
    skipped = {metric.name: metric.value for metric in found.metrics}[SKIPPED]
    assert abs(skipped + len(admitted) - 60_000) < 100

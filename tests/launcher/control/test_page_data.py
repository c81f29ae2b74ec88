"""Messages of the page: what a page keeps and what is new are together what there is."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from rlinf_async._recorder.state.event_ring import SKIPPED, EventKind, MetricKind
from rlinf_async._recorder.state.ring_contents import RingContents, RingMetric
from rlinf_launcher.control.page_data import FAILED, MAX_SPANS, PageData
from rlinf_launcher.control.recorded_run import RecordedRun
from tests._support.made_rings import operation, point, ring
from tests._support.made_run import EPOCH, HOSTILE, OFFSET, made_run

SECOND = 10**9


def run_of(*rings: RingContents, taken_at: float = EPOCH + 100.0, is_alive: bool = True) -> RecordedRun:
    return RecordedRun("0a0a0a0a", taken_at, is_alive, list(rings))


def kept(process: dict[str, Any], name: str, width: int, message: dict[str, Any]) -> list[list[float]]:
    """As ``joined`` in model.js: rows of what a page has and of what it is sent, in the order of their begins."""
    rows = [process[name][at : at + width] for at in range(0, len(process[name]), width)]
    new = [message[name][at : at + width] for at in range(0, len(message[name]), width)]
    since, first = message["since"], message["first"]
    old = [row for row in rows if since is not None and row[1] >= 0 and row[0] + row[1] < since and row[0] >= first]
    return sorted([*old, *new])


def test_times_are_microseconds_since_the_runs_first_second() -> None:
    made = ring("a:0", operation(EventKind.SERVE, "step", 1_500_000, 2_500_000, failed=True), wall_offset=OFFSET)
    message = PageData().snapshot(run_of(made)).message()
    (process,) = message["processes"].values()
    assert message["origin"] == EPOCH
    assert process["spans"] == [1500, 1000, 0, EventKind.SERVE + FAILED, 0, 0]
    assert message["names"] == ["step"]
    assert (message["begin"], message["end"]) == (1500, 100_000_000)


def test_what_is_new_and_what_a_page_keeps_are_what_there_is() -> None:
    whole = made_run(4000, is_stuck=False)
    data = PageData()
    parts = []
    for share in (0.4, 0.7, 1.0):
        rings = [dataclasses.replace(each, events=each.events[: int(len(each.events) * share)]) for each in whole.rings]
        parts.append(data.snapshot(dataclasses.replace(whole, rings=rings, is_alive=True)))
    before = None
    shown: dict[str, dict[str, Any]] = {}
    for part in parts:
        message = part.message(before)
        for key, told in message["processes"].items():
            known = shown.get(key, {"spans": [], "bubbles": []})
            for name, width in (("spans", 6), ("bubbles", 2)):
                rows = kept(known, name, width, told)
                everything = part.message()["processes"][key][name]
                assert rows == sorted(everything[at : at + width] for at in range(0, len(everything), width))
            shown[key] = part.message()["processes"][key]
        before = part
    assert len(json.dumps(parts[2].message(parts[1]))) < len(json.dumps(parts[2].message())) / 2


def test_a_second_look_at_a_run_that_stands_still_says_little() -> None:
    data, run = PageData(), made_run(4000)
    before = data.snapshot(run)
    message = data.snapshot(run).message(before)
    assert (message["names"], message["sections"], message["logs"]) == ([], {}, {})
    spans = sum(len(process["spans"]) // 6 for process in message["processes"].values())
    assert 0 < spans < 200, "those that are open or have just ended"


def test_of_a_run_that_is_too_large_each_process_has_its_latest_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_SPANS >= 100_000
    monkeypatch.setattr("rlinf_launcher.control.page_data.MAX_SPANS", 4)
    begins = [operation(EventKind.CALL, "f", number * 1000, number * 1000 + 500) for number in range(5)]
    rings = [ring(name, *each, wall_offset=OFFSET) for name, each in (("a:0", begins), ("a:1", begins[:1]))]
    message = PageData().snapshot(run_of(*rings)).message()
    first, other = message["processes"].values()
    assert first["spans"][::6] == [3, 4]
    assert (first["is_full"], first["first"]) == (True, 3)
    assert not other["is_full"]


def test_a_process_that_has_died_ends_there_and_its_bubbles_too() -> None:
    made = ring("a:0", operation(EventKind.SERVE, "f", 0, SECOND), operation(EventKind.SERVE, "g", 2 * SECOND, None))
    made = dataclasses.replace(made, wall_offset=OFFSET)
    death = {"time": EPOCH + 5.0, "process": "a:0", "pid": 100, "text": "was killed", "last_words": ["bye"]}
    message = PageData().snapshot(dataclasses.replace(run_of(made), deaths=[death])).message()
    (process,) = message["processes"].values()
    assert process["ended"] == 5_000_000
    assert process["bubbles"] == [1_000_000, 1_000_000]
    (trouble,) = message["sections"]["troubles"]
    assert (trouble["kind"], trouble["text"], trouble["more"]) == ("death", "was killed", "bye")
    assert {phase["name"]: phase["failed"] for phase in message["sections"]["phases"]} == {"f": 0, "g": 1}


def test_items_of_channels_are_unknown_where_operations_were_left_out() -> None:
    puts = ring("a:0", *(operation(EventKind.PUT, "obs", at, at + 1) for at in range(5)))
    gets = ring("b:0", operation(EventKind.GET, "obs", 0, 9))
    gets = dataclasses.replace(gets, metrics=[RingMetric(MetricKind.COUNTER, SKIPPED, 64.0)])
    (channel,) = PageData().snapshot(run_of(puts, gets)).message()["sections"]["channels"]
    assert channel == {"name": "obs", "is_exact": True, "left_out": 64, "now": None, "steps": []}
    told = dataclasses.replace(run_of(puts, gets), status={"queues": [{"name": "obs", "items": 3}]})
    (channel,) = PageData().snapshot(told).message()["sections"]["channels"]
    assert (channel["now"], channel["steps"]) == (3, [])
    (channel,) = PageData().snapshot(run_of(puts)).message()["sections"]["channels"]
    assert (channel["left_out"], channel["now"]) == (0, 5)


def test_texts_of_workers_lose_their_control_characters() -> None:
    word = point(EventKind.WORD, "\x1b[2Jwaits", 5)
    made = ring("a:0", operation(EventKind.SPAN, "\x1b[31mstep", 1, 2), word)
    run = dataclasses.replace(run_of(made), logs={"a/rank_0.out": "\x1b[31mred\x1b[0m\x07\nplain"})
    message = PageData().snapshot(run).message()
    assert message["names"] == ["step"]
    assert message["sections"]["troubles"][0]["text"] == "waits"
    assert message["logs"] == {"a/rank_0.out": "red\nplain"}


def test_all_sections_of_a_stuck_run_are_there_and_plain_values() -> None:
    message = json.loads(json.dumps(PageData().snapshot(made_run(4000)).message()))
    sections = message["sections"]
    assert sections["verdict"]["kind"] == "deadlock"
    assert {box["name"] for box in sections["picture"]["boxes"]} >= {
        "the driver",
        "actor:0",
        "rollout:1-5",
        "channel obs",
    }
    assert [channel["name"] for channel in sections["channels"]] == ["obs"]
    assert sections["channels"][0]["steps"][-1][1] == 3, "as its status says"
    assert sections["versions"][0]["model"] == "policy"
    assert {phase["name"] for phase in sections["phases"]} >= {"generate", "update", "forward_backward"}
    assert {trouble["kind"] for trouble in sections["troubles"]} == {"death", "failed", "wait"}
    assert any(HOSTILE in text for text in message["logs"].values())


def test_a_run_without_any_event_is_a_page() -> None:
    message = PageData().snapshot(run_of(ring("a:0"), is_alive=False)).message()
    assert message["begin"] == message["end"]
    assert PageData().snapshot(run_of()).message()["processes"] == {}

"""Picture of the waits: alike ranks are one box, things that are waited for too, and circles have a place for each."""

from __future__ import annotations

from typing import Any

from rlinf_async._inspection.state.run_report import ActivityState, to_data
from rlinf_launcher.control.wait_picture import MAX_BOXES, picture_of
from tests._support.made_reports import MadeRun, get


def picture(run: MadeRun) -> dict[str, Any]:
    return picture_of({"verdict": run.verdict().to_data(), "report": to_data(run.report())})


def arrows(drawn: dict[str, Any]) -> set[tuple[str, str, str]]:
    names = [box["name"] for box in drawn["boxes"]]
    return {(names[arrow["start"]], arrow["kind"], names[arrow["end"]]) for arrow in drawn["arrows"]}


def face_to_face(ranks: int) -> MadeRun:
    run = MadeRun(actor=1, rollout=ranks)
    names = [f"rollout:{rank}" for rank in range(ranks)]
    serves = run.driver_calls("step", "actor:0", *names)
    run.does("actor:0", ActivityState.WAITING, run.message("recv", "rollout:0"), serves=serves)
    for name in names:
        run.does(name, ActivityState.WAITING, run.message("recv", "actor:0"), serves=serves)
    return run


def test_alike_ranks_are_one_box_and_those_of_the_verdict_are_marked() -> None:
    drawn = picture(face_to_face(4))
    assert arrows(drawn) == {
        ("the driver", "call", "actor:0"),
        ("the driver", "call", "rollout:0"),
        ("the driver", "call", "rollout:1-3"),
        ("actor:0", "recv", "rollout:0"),
        ("rollout:0", "recv", "actor:0"),
        ("rollout:1-3", "recv", "actor:0"),
    }
    blamed = {box["name"] for box in drawn["boxes"] if box["is_blamed"]}
    assert blamed == {"actor:0", "rollout:0"}
    assert {box["state"] for box in drawn["boxes"]} == {"waits"}


def test_no_two_boxes_have_the_same_place_and_what_waits_is_left_of_what_it_waits_for() -> None:
    drawn = picture(face_to_face(4))
    places = [(box["column"], box["row"]) for box in drawn["boxes"]]
    assert len(set(places)) == len(places)
    columns = {box["name"]: box["column"] for box in drawn["boxes"]}
    assert columns["the driver"] == 0
    assert columns["actor:0"] == 1


def test_a_channel_is_a_box() -> None:
    run = MadeRun(rollout=2)
    serves = run.driver_calls("step", "rollout:0", "rollout:1")
    for rank in (0, 1):
        run.does(f"rollout:{rank}", ActivityState.WAITING, get(name="obs"), serves=serves)
    drawn = picture(run)
    assert arrows(drawn) == {("the driver", "call", "rollout:0-1"), ("rollout:0-1", "get", "channel obs")}
    assert drawn["boxes"][-1]["state"] == "thing"


def test_what_has_ended_stands_still_or_works_says_so() -> None:
    run = MadeRun(a=3)
    serves = run.driver_calls("step", "a:0", "a:1", "a:2")
    run.does("a:0", ActivityState.WAITING, run.message("recv", "a:1"), serves=serves)
    run.change("a:1", trouble="ended: exit code 1", calls=[])
    run.does("a:2", ActivityState.RUNNING, serves=serves)
    states = {box["name"]: box["state"] for box in picture(run)["boxes"]}
    assert (states["a:1"], states["a:2"]) == ("ended", "runs")
    run.change("a:2", trouble="stopped (T)")
    assert {box["name"]: box["state"] for box in picture(run)["boxes"]}["a:2"] == "stopped"


def test_of_a_run_that_goes_on_the_picture_says_what_works_beside_what_waits() -> None:
    run = MadeRun(a=1)
    serves = run.driver_calls("step", "a:0")
    run.does("a:0", ActivityState.WAITING, get(name="obs"), serves=serves, task="task one", age=9.0)
    run.does("a:0", ActivityState.RUNNING, serves=serves, age=1.0)
    box = next(box for box in picture(run)["boxes"] if box["name"] == "a:0")
    assert (box["state"], box["what"], box["is_blamed"]) == ("runs", "step()", True)


def test_more_boxes_than_one_can_look_at_are_counted() -> None:
    run = MadeRun(ring=MAX_BOXES + 10)
    names = [f"ring:{rank}" for rank in range(MAX_BOXES + 10)]
    serves = run.driver_calls("step", *names)
    for rank, name in enumerate(names):
        run.does(name, ActivityState.WAITING, run.message("recv", names[rank - 1]), serves=serves)
    drawn = picture(run)
    assert len(drawn["boxes"]) == MAX_BOXES
    assert drawn["left_out"] == 11, "and the driver"
    assert all(arrow["end"] < MAX_BOXES for arrow in drawn["arrows"])


def test_a_run_in_which_nothing_waits_is_an_empty_picture() -> None:
    assert picture(MadeRun(a=2)) == {"boxes": [], "arrows": [], "left_out": 0}

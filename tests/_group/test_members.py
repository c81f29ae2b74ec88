"""The members of a group, as its calls see them."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._core import codec, frames
from rlinf_async._core.frames import Status
from rlinf_async._group.members import Members
from rlinf_async.outcome import CallDeadline


@pytest.fixture
def members() -> Members:
    client: Any = SimpleNamespace(listen=lambda *_: None)
    members = Members(client, "ring", 2)
    members.endpoints, members.infos, members.logs = [10, 11], [None, None], ["", ""]  # type: ignore[list-item]
    return members


def test_calls_after_a_restart_go_to_the_process_that_is_there_now(members: Members) -> None:
    callee = members.callee([0, 1])
    assert callee.route == frames.route_to([10, 11])
    again = frames.endpoint(1, 5)
    members.replace(1, again, None, "")  # type: ignore[arg-type]
    assert callee.targets == [10, again]
    assert callee.route == frames.route_to([10, again])


@pytest.mark.parametrize("same", [True, False])
def test_a_call_of_no_stream_has_no_credit_so_that_its_answers_may_leave_together(members: Members, same: bool) -> None:
    sent: list[dict[str, Any]] = []
    client: Any = members.client
    client.call = lambda handler, route, method, body, fds, credit, held: sent.append({"credit": credit})
    client.call_each = lambda handler, method, bodies, credit, held: sent.append({"credit": credit})
    call: Any = SimpleNamespace()
    members._send(members.callee([0, 1]), call, "step", [(b"", ()), (b"", ())], same)
    assert sent == [{"credit": 0}]


@pytest.mark.parametrize(
    ("call", "is_dead", "expected"),
    [
        ({}, False, "sent"),
        ({"_method": "__init__"}, True, "sent"),
        ({"_method": "__init__"}, False, Status.OK),  # the supervisor has run it
        ({"_again": None}, False, Status.CANCELLED),
        ({"_cancelled": True}, False, Status.CANCELLED),
        ({"_cancel_sent": True}, True, Status.CANCELLED),
    ],
)
def test_a_call_of_a_rank_that_is_back_is_sent_again_or_answered(
    members: Members, monkeypatch: pytest.MonkeyPatch, call: dict[str, Any], is_dead: bool, expected: Any
) -> None:
    done: list[Any] = []
    client: Any = members.client
    client.answer_for = lambda number, slot, status, body: done.append((number, slot, status))
    monkeypatch.setattr(members, "_send_again", lambda callee, handler, slot, body, fds: done.append((7, slot, "sent")))
    facts = {"_call": 7, "_method": "step", "_again": [codec.encode(None)], "_cancelled": False, "_cancel_sent": False}
    handler: Any = SimpleNamespace(**{**facts, **call})
    members.deaths = {1: {}} if is_dead else {}
    members._repeat(members.callee([0, 1]), handler, 1)
    assert done == [(7, 1, expected)]


@pytest.mark.parametrize(
    ("deaths", "lost", "again"),
    [
        ({}, {3}, True),
        ({1: {"returns": True, "reason": "its node was lost"}}, {3}, True),
        ({1: {"returns": False, "reason": "died more than 3 times"}}, {3}, False),
        ({}, set(), False),
    ],
)
def test_a_call_that_a_lost_node_had_is_made_again_for_a_rank_that_comes_back_elsewhere(
    members: Members, deaths: dict[int, Any], lost: set[int], again: bool
) -> None:
    client: Any = members.client
    client.lost_nodes, client.closed = lost, None
    members.supervisor = SimpleNamespace()  # type: ignore[assignment]
    members.deaths, members._held = deaths, {1}  # type: ignore[assignment]
    handler: Any = SimpleNamespace(_again=[None], _note_death=lambda slot, facts: None)
    callee = members.callee([0, 1])
    report = frames.pack([3, "its node was lost"])
    for _ in range(2):  # it may be told twice
        assert members.repeats(callee, handler, 1, int(Status.LOST), report) == again
    assert members._repeats == ([(callee, handler, 1)] if again else [])


def test_one_timer_does_for_the_deadlines_of_all_calls_and_no_call_waits_for_it(members: Members) -> None:
    timers: list[float] = []
    client: Any = members.client
    client.later = lambda seconds, look: timers.append(seconds)
    members.deadline = CallDeadline(30.0, "here")
    members.watch_deadlines()
    second = threading.Thread(target=members.watch_deadlines, daemon=True)
    second.start()
    second.join(5)
    has_waited = second.is_alive()
    members._timer.release()
    assert (timers, has_waited) == ([30.0], False)

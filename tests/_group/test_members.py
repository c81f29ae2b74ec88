"""The members of a group, as its calls see them."""

from __future__ import annotations

import os
import tempfile
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._core import codec, frames
from rlinf_async._core.frames import Status
from rlinf_async._group import call_deadlines
from rlinf_async._group.members import Members, WaitingCall
from rlinf_async._recorder import recording
from rlinf_async.errors import LaunchError, NodeLost
from rlinf_async.outcome import CallDeadline


@pytest.fixture
def members() -> Members:
    client: Any = SimpleNamespace(listen=lambda *_: None)
    members = Members(client, "ring", 2)
    members.endpoints, members.infos, members.logs = [10, 11], [None, None], ["", ""]  # type: ignore[list-item]
    return members


def test_calls_after_a_restart_go_to_the_process_that_is_there_now(members: Members) -> None:
    callee = members.callee([0, 1])
    assert callee.route_to(callee.targets) == frames.route_to([10, 11])
    again = frames.endpoint(1, 5)
    members.replace(1, again, None, "")  # type: ignore[arg-type]
    assert callee.targets == [10, again]
    assert callee.route_to(callee.targets) == frames.route_to([10, again])


def test_a_call_that_waits_for_the_launch_is_at_what_the_launch_is_at(members: Members) -> None:
    members.endpoints = None
    callee = members.callee([0, 1])
    assert callee.peer_activity([0]) is None
    activity: Any = object()
    members.launching = SimpleNamespace(_peer_activity=lambda: activity)  # type: ignore[assignment]
    assert callee.peer_activity([0]) is activity


@pytest.mark.parametrize("same", [True, False])
def test_a_call_of_no_stream_has_no_credit_so_that_its_answers_may_leave_together(members: Members, same: bool) -> None:
    sent: list[dict[str, Any]] = []
    client: Any = members.client
    client.call = lambda handler, route, method, body, fds, credit, held: sent.append({"credit": credit})
    client.call_each = lambda handler, method, bodies, credit, held: sent.append({"credit": credit})
    call: Any = SimpleNamespace()
    members._send(members.callee([0, 1]), call, "step", [(b"", ()), (b"", ())], same)
    assert sent == [{"credit": 0}]


def test_a_call_cancelled_before_it_leaves_closes_its_descriptors(members: Members) -> None:
    with tempfile.TemporaryFile() as file:
        fds = [os.dup(file.fileno()) for _ in range(2)]
    handler: Any = SimpleNamespace(_cancel_wanted=True, _call=0)
    bodies = [(b"", fds[:1]), (b"", fds[1:])]
    assert members._leave(WaitingCall(members.callee([0, 1]), handler, "step", bodies, False, [0, 1]))
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


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


@pytest.mark.parametrize("error", [MemoryError("no memory"), OSError("no descriptor is left")], ids=repr)
def test_a_repeat_that_cannot_be_packed_fails_alone(
    members: Members, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    done: list[Any] = []
    client: Any = members.client
    client.answer_for = lambda number, slot, status, body: done.append((number, status, frames.unpack(body)))
    monkeypatch.setattr(members, "_send_again", lambda callee, handler, slot, body, fds: done.append(handler._call))

    def pack(value: Any) -> Any:
        if value == "large":
            raise error
        return b"", ()

    monkeypatch.setattr("rlinf_async._group.members.pack_body", pack)
    for call, value in ((7, "large"), (8, "small")):
        facts = {"_call": call, "_method": "step", "_again": [value], "_cancelled": False, "_cancel_sent": False}
        handler: Any = SimpleNamespace(**facts)
        members._repeats.append((members.callee([0, 1]), handler, 1))
    members._held.clear()
    members._repeat_now()
    assert done == [(7, Status.UNKNOWN, str(error)), 8]


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
    handler: Any = SimpleNamespace(_again=[None], _note_death=lambda slot, facts: True)
    callee = members.callee([0, 1])
    report = frames.pack([3, "its node was lost"])
    for _ in range(2):  # it may be told twice
        assert members.repeats(callee, handler, 1, int(Status.LOST), report) == again
    assert members._repeats == ([(callee, handler, 1)] if again else [])


def test_one_timer_does_for_the_deadlines_of_all_calls_and_no_call_waits_for_it(members: Members) -> None:
    timers: list[float] = []
    client: Any = members.client
    client.later = lambda seconds, look: timers.append(seconds)
    members.deadlines.limit = CallDeadline(30.0, "here")
    members.deadlines.watch()
    second = threading.Thread(target=members.deadlines.watch, daemon=True)
    second.start()
    second.join(5)
    has_waited = second.is_alive()
    members.deadlines._timer.release()
    assert (timers, has_waited) == ([30.0], False)


def test_the_next_deadline_is_the_earliest_where_a_call_has_waited_for_its_rank(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_deadlines, "clock", SimpleNamespace(monotonic=lambda: 100.0))
    client: Any = members.client
    client.events = SimpleNamespace(counts_from=lambda since: since)
    expired: list[float] = []

    def call(since: float) -> Any:
        return SimpleNamespace(
            _method="step", _since=since, _expired=False, done=lambda: False, _expire=lambda: expired.append(since)
        )  # fmt: skip

    members.deadlines.limit, members.by_rank = CallDeadline(30.0, "here"), True
    members.open.update({number: call(since) for number, since in enumerate([90.0, 75.0, 60.0, 85.0])})
    assert (members.deadlines._expire_calls(), expired) == (5.0, [60.0])


@pytest.mark.parametrize("is_supervised", [True, False])
@pytest.mark.parametrize("is_launched", [True, False])
def test_a_node_takes_its_ranks_with_it_and_no_others(
    members: Members, monkeypatch: pytest.MonkeyPatch, is_launched: bool, is_supervised: bool
) -> None:
    told: list[tuple[int, str]] = []
    unobserved: list[str] = []
    client: Any = members.client
    client.lost_nodes = {1: NodeLost("node 1 burnt")}
    client.unobserved = SimpleNamespace(arrived=lambda error: unobserved.append(error.of))
    members.infos = [SimpleNamespace(node_name=name, pid=7) for name in ("near", "far")]  # type: ignore[misc]
    members.endpoints = [frames.endpoint(0, 5), frames.endpoint(1, 5)] if is_launched else None
    note: Any = lambda rank, facts: told.append((rank, facts["node"]))  # noqa: E731
    if is_supervised:
        members.supervisor = SimpleNamespace(rank_died=note)  # type: ignore[assignment]
    monkeypatch.setattr(members, "report_death", note)
    members._on_node_lost({"node": 1})
    assert told == [(1, "far")] * is_launched
    assert unobserved == ["rank 1 of group 'ring'"] * (is_launched and not is_supervised)


def test_a_call_that_cannot_leave_has_an_end_in_the_recorder(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[tuple[int, str]] = []
    monkeypatch.setattr(recording, "end", lambda event, failed: ends.append((event, failed)))
    monkeypatch.setattr(members, "record", lambda handler, method, ranks: setattr(handler._ended, "_event", 7))
    monkeypatch.setattr(members, "admits", lambda handler, method: True)
    members._failure = LaunchError("no workers")
    client: Any = members.client
    client.unobserved = SimpleNamespace(observed=lambda cause: None)
    handler: Any = SimpleNamespace(_ended=SimpleNamespace(_event=0))
    with pytest.raises(LaunchError):
        members.call(members.callee([0]), handler, "step", [b""])
    assert ends == [(7, "LaunchError")]

"""Requests that end together with the way to their daemon."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rlinf_async import NodeLost
from rlinf_async._client.requests import DaemonRequest, Requests
from rlinf_async._core import frames, operations
from rlinf_async._inspection.state.run_report import Target, TargetKind


def test_an_error_of_several_requests_holds_the_frames_of_none() -> None:
    requests = Requests()
    refused, lost = made = [
        requests.begin(DaemonRequest(cast(Any, None), number, operations.CollectTrace(), 0)) for number in (1, 2)
    ]
    error = NodeLost("gone")
    requests.refuse(refused, error)
    requests.fail(error)
    for request in made:
        with pytest.raises(NodeLost, match="gone"):
            request.wait()
    assert lost.done()
    assert error.__traceback__ is None


def test_a_request_that_is_refused_while_all_fail_keeps_none_of_the_others_open() -> None:
    requests = Requests()
    first, refused, last = [
        requests.begin(DaemonRequest(cast(Any, None), number, operations.CollectTrace(), 0)) for number in (1, 2, 3)
    ]
    first._follow(lambda: requests.refuse(refused, NodeLost("gone")))
    requests.fail(NodeLost("gone"))
    assert last.done()


@pytest.mark.parametrize("undo", [operations.CancelFind("group", 1), operations.UnlockDevices(1)], ids=repr)
def test_a_request_that_was_undone_is_not_kept_for_an_answer_that_never_comes(
    undo: operations.Operation[Any],
) -> None:
    requests = Requests()
    undone = requests.begin(DaemonRequest(cast(Any, None), 1, operations.Find("group", "actors", None, 0), 0))
    requests.begin(DaemonRequest(cast(Any, None), 2, undo, 0))
    requests.answer(2, True, [])
    assert len(requests) == 0
    assert not undone.done()


@pytest.mark.parametrize(
    ("operation", "needed"),
    [
        (operations.Find("group", "actors", None, 0), Target(TargetKind.NAME, name="actors")),
        (operations.Find("channel", "buffer", None, 0), Target(TargetKind.NAME, name="buffer")),
        (operations.CollectTrace(), Target(TargetKind.DAEMON, frames.endpoint(7, 0), name="CollectTrace")),
    ],
    ids=repr,
)
def test_a_search_for_a_name_waits_for_the_name_and_every_other_request_for_its_daemon(
    operation: operations.Operation[Any], needed: Target
) -> None:
    assert DaemonRequest(cast(Any, None), 1, operation, 7)._needs() == ([needed], True)

"""The members of a group, as its calls see them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._core import frames
from rlinf_async._group.members import Members


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

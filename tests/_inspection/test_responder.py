"""A process answers each round with its activities, and says nothing where it cannot."""

from __future__ import annotations

import os
from typing import Any

import pytest

from rlinf_async._client.events import Events
from rlinf_async._core import operations
from rlinf_async._inspection import responder
from rlinf_async._inspection.served_calls import ServedCall
from rlinf_async._inspection.state.run_report import Activity, State, from_data


class Client:
    """Keeps what it is to send."""

    def __init__(self) -> None:
        self.events = Events()
        self.sent: list[operations.Inspected] = []

    def request(self, operation: operations.Inspected) -> None:
        self.sent.append(operation)


def test_each_round_is_answered_with_data_and_a_closed_client_has_no_pipe() -> None:
    client: Any = Client()
    facts = responder.attach(client, lambda: [ServedCall(3, 4, "step", None)])
    client.events.announce("inspect", {"round": 5})
    (answer,) = client.sent
    assert answer.round == 5
    (own,) = (from_data(Activity, each) for each in answer.activities if each["name"] == "thread MainThread")
    assert (own.state, own.method, own.source, own.number) == (State.RUNNING, "step", 3, 4)
    assert os.path.exists(f"/proc/self/fd/{facts['stacks']}")
    client.events.announce("closed", {})
    assert not os.path.exists(f"/proc/self/fd/{facts['stacks']}")


def test_a_process_that_cannot_tell_what_it_does_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = Client()
    responder.attach(client)

    def fail(*args: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(responder, "own_activities", fail)
    client.events.announce("inspect", {"round": 5})
    assert client.sent == []
    client.events.announce("closed", {})

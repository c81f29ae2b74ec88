"""A process answers each round with its activities, a thread for a loop that is blocked; nothing where it cannot."""

from __future__ import annotations

import asyncio
import os
import queue
from collections.abc import Callable
from typing import Any

import pytest

from rlinf_async._client.events import Events
from rlinf_async._core import operations
from rlinf_async._inspection import responder
from rlinf_async._inspection.served_calls import ServedCall
from rlinf_async._inspection.state.run_report import Activity, ActivityState, from_data


class Client:
    """Keeps what it is to send."""

    def __init__(self) -> None:
        self.events = Events()
        self.restarts: dict[str, Callable[[], Activity]] = {}
        self.sent: list[operations.Inspected] = []
        self.user_loop: asyncio.AbstractEventLoop | None = None
        self.flushed: queue.Queue[int] = queue.Queue()

    def request(self, operation: operations.Inspected) -> None:
        self.sent.append(operation)

    def flush(self) -> None:
        self.flushed.put(len(self.sent))


def test_each_round_is_answered_with_data_and_a_closed_client_has_no_pipe() -> None:
    client: Any = Client()
    facts = responder.attach(client, lambda: [ServedCall(3, 4, "step", None)])
    client.events.announce("inspect", {"round": 5})
    (answer,) = client.sent
    assert (answer.round, "witness" in facts) == (5, False)
    (own,) = (from_data(Activity, each) for each in answer.activities if each["name"] == "thread MainThread")
    assert (own.state, own.method, own.source, own.number) == (ActivityState.RUNNING, "step", 3, 4)
    assert os.path.exists(f"/proc/self/fd/{facts['stacks']}")
    client.events.announce("closed", {})
    assert not os.path.exists(f"/proc/self/fd/{facts['stacks']}")


def test_ranks_that_are_started_again_are_told_by_their_owner() -> None:
    client: Any = Client()
    responder.attach(client)
    client.restarts["env"] = lambda: Activity("supervision of 'env'", ActivityState.RUNNING, 3.0)
    client.events.announce("inspect", {"round": 5})
    *_, told = (from_data(Activity, each) for each in client.sent[0].activities)
    assert told == Activity("supervision of 'env'", ActivityState.RUNNING, 3.0)
    client.events.announce("closed", {})


def test_a_process_that_cannot_tell_what_it_does_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = Client()
    responder.attach(client)

    def fail(*args: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(responder, "own_activities", fail)
    client.events.announce("inspect", {"round": 5})
    assert client.sent == []
    client.events.announce("closed", {})


async def test_a_thread_answers_all_rounds_for_a_users_loop_that_is_blocked() -> None:
    client: Any = Client()
    client.user_loop = asyncio.get_running_loop()
    facts = responder.attach(client)
    try:
        for asked in range(1, 21):  # the thread may look before this one is in its wait
            os.write(facts["witness"], b"x")
            assert client.flushed.get(timeout=10) == asked  # this blocks the loop
            answer = client.sent[-1]
            assert answer.round == operations.ALL_ROUNDS
            (own,) = (from_data(Activity, each) for each in answer.activities if each["blocks"])
            if own.state == ActivityState.SLEEPING:
                break
        assert (own.state, own.name) == (ActivityState.SLEEPING, f"task {asyncio.current_task().get_name()}")  # type: ignore[union-attr]
    finally:
        client.events.announce("closed", {})
    assert not os.path.exists(f"/proc/self/fd/{facts['witness']}")

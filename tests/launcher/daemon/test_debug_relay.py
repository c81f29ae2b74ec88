"""Lines between operators and ranks, and events about ranks in the debugger; without a node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._core import frames, operations
from rlinf_async.errors import LaunchError
from rlinf_launcher.daemon.debug_relay import DebugRelay
from rlinf_launcher.daemon.endpoint import Endpoint
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.router import Router

OPERATOR = frames.endpoint(0, 99)


class Relay:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.router = Router(loop, 0, lambda source, ask, operation, arguments: None)
        self.told: list[tuple[int, str, dict[str, Any]]] = []
        self.router.send_event = lambda *event: self.told.append(event)  # type: ignore[method-assign]
        self.gone: set[int] = set()
        self.relay = DebugRelay(self.router, self.gone)
        self.rank = self.router.new_endpoint("worker")
        self.rank.process = SimpleNamespace()  # type: ignore[assignment]

    async def say(self, what: str, line: str = "", rank: Endpoint | None = None) -> None:
        number = (rank or self.rank).number
        await self.relay.debug_rank(Requester(OPERATOR, 1), operations.DebugRank(number, what, line))

    async def stop(self, where: str, source: int | None = None) -> None:
        source = self.rank.id if source is None else source
        operation = operations.RankStopped(self.rank.id, "rollout:0", where, False)
        await self.relay.rank_stopped(Requester(source, 1), operation)

    def heard(self) -> list[tuple[int, str, Any]]:
        """Return new events as target, name and word."""
        told = [
            (target, what, facts.get("what") or facts.get("state") or facts["where"])
            for target, what, facts in self.told
        ]
        self.told.clear()
        return told


@pytest.fixture
def relay() -> Iterator[Relay]:
    loop = asyncio.new_event_loop()
    yield Relay(loop)
    loop.close()


async def test_lines_and_answers_pass(relay: Relay) -> None:
    await relay.say("attach")
    await relay.say("line", "p x")
    answer = operations.DebugSaid(OPERATOR, "stopped", "5\n")
    await relay.relay.debug_said(Requester(relay.rank.id, 1), answer)
    assert relay.told[1][2] == {"operator": OPERATOR, "what": "line", "line": "p x"}
    assert relay.told[2] == (OPERATOR, "debug", {"rank": relay.rank.id, "state": "stopped", "text": "5\n"})


async def test_the_other_nodes_that_are_there_learn_of_a_stop(relay: Relay) -> None:
    asked: list[tuple[int, str]] = []
    relay.router.request = lambda node, op: asked.append((node, op.where))  # type: ignore[method-assign, assignment]
    relay.router.node_links = {  # type: ignore[assignment]
        node: SimpleNamespace(node=node, over=over) for node, over in ((1, None), (2, "it is lost"))
    }
    await relay.stop("train.py:3")
    await relay.stop("train.py:4", source=frames.endpoint(1, 0))  # by another node's daemon
    assert asked == [(1, "train.py:3")]


async def test_a_rank_goes_on_when_its_operator_is_gone(relay: Relay) -> None:
    await relay.say("attach")
    relay.heard()
    relay.relay.drop(OPERATOR)
    assert relay.heard() == [(relay.rank.id, "debug", "detach")]
    relay.relay.drop(relay.rank.id)
    assert relay.heard() == []


async def test_a_ranks_end_is_told_to_its_operator(relay: Relay) -> None:
    await relay.say("attach")
    await relay.stop("t.py:4 in f()")
    assert relay.relay.stopped == {relay.rank.id: "t.py:4 in f()"}
    relay.heard()
    relay.relay.drop(relay.rank.id)
    assert relay.heard() == [(OPERATOR, "debug", "ended"), (relay.rank.id, "debugger", "")]
    assert relay.relay.stopped == {}


async def test_ranks_of_a_lost_node_extend_no_deadline(relay: Relay) -> None:
    far = frames.endpoint(3, 7)
    other = operations.RankStopped(far, "rollout:1", "t.py:4 in f()", True)
    await relay.relay.rank_stopped(Requester(frames.endpoint(3, 0), 1), other)
    assert far in relay.relay.stopped
    relay.relay.drop_node(3)
    assert relay.relay.stopped == {}


@pytest.mark.parametrize("teller", ["itself", "its daemon"])
async def test_a_stop_reported_after_its_ranks_end_is_ignored(relay: Relay, teller: str) -> None:
    relay.gone.add(relay.rank.id)
    await relay.stop("t.py:4 in f()", None if teller == "itself" else frames.endpoint(3, 0))
    assert relay.relay.stopped == {}
    assert relay.heard() == []


async def test_an_unknown_rank_or_word_is_refused(relay: Relay) -> None:
    with pytest.raises(LaunchError, match="has ended"):
        await relay.say("attach", rank=relay.router.new_endpoint("driver"))
    relay.rank.exit_report = b"report"
    with pytest.raises(LaunchError, match="has ended"):
        await relay.say("attach")
    with pytest.raises(ValueError, match="what is one of attach, detach, line"):
        await relay.say("kill")

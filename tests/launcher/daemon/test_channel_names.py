"""Node 0's table of channels, with recording processes."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf_async._core import frames, operations
from rlinf_launcher.daemon.channel_names import ChannelNames
from rlinf_launcher.daemon.handlers import LATER, Requester

A, B = frames.endpoint(0, 1), frames.endpoint(1, 1)
DAEMON = frames.endpoint(1, 0)


class Node0:
    def __init__(self) -> None:
        self.gone: set[int] = set()
        self.lost: list[dict[str, Any]] = []
        self.told: list[tuple[int, int, Any]] = []
        self.names = ChannelNames(lambda who, value: self.told.append((*who, value)), self.gone, self.lost)

    async def ask(self, operation: str, source: int = A, number: int = 1, /, **fields: Any) -> Any:
        kind = "".join(map(str.capitalize, operation.split("_")))
        return await getattr(self.names, operation)(Requester(source, number), operations.read(kind, fields))

    async def make(self, name: str, *nodes: int, owner: int = A) -> dict[str, Any]:
        """A channel; what is known by its name."""
        number = await self.ask("number_channel", owner)
        known: dict[str, Any] = await self.ask("name_channel", owner, name=name, roster=roster(name, number, *nodes))
        return known

    def die(self, gone: int) -> None:
        self.gone.add(gone)
        self.names.drop_client(gone)


def roster(name: str, number: int, *nodes: int) -> dict[str, Any]:
    return {"name": name, "number": number, "nodes": list(nodes) or [1]}


@pytest.fixture
def node0() -> Node0:
    return Node0()


async def test_numbers_rise_by_one_whoever_asks_and_are_not_used_again(node0: Node0) -> None:
    numbers = []
    for _ in range(4):
        known = await node0.make("obs")
        numbers.append(known["number"])
        await node0.ask("unname_channel", number=known["number"])
    assert numbers == [1, 2, 3, 4]


async def test_a_name_is_the_firsts_and_is_freed_by_its_number_only(node0: Node0) -> None:
    first = await node0.make("obs")
    assert await node0.make("obs", owner=B) == first
    assert not await node0.ask("unname_channel", number=2)
    assert await node0.ask("find_channel", name="obs") == first
    assert await node0.ask("unname_channel", number=1)
    assert not await node0.ask("unname_channel", number=1)
    assert (await node0.make("obs", owner=B))["number"] == 3


async def test_whoever_looks_for_a_name_is_answered_when_it_comes(node0: Node0) -> None:
    for process, ask in ((A, 7), (B, 8)):
        assert await node0.ask("find_channel", process, ask, name="obs") is LATER
    assert await node0.ask("cancel_find_channel", B, 9, number=8) == []
    known = await node0.make("obs")
    assert node0.told == [(A, 7, known)]


async def test_a_closed_channel_is_known_by_its_number_until_nothing_is_left_of_it_anywhere(node0: Node0) -> None:
    await node0.make("obs", 0, 1)
    assert await node0.ask("pin_key", number=1, key=b"k", node=1) == 1
    await node0.ask("unname_channel", number=1)
    assert await node0.ask("pin_key", number=1, key=b"k", node=0) == 1, "what is there can be got"
    assert await node0.ask("pin_key", number=1, key=b"l", node=0) is None, "nothing can be there"
    await node0.ask("queue_ended", DAEMON, number=1)
    assert len(node0.names.table._entries) == 1
    await node0.ask("queue_ended", frames.endpoint(0, 0), number=1)
    assert await node0.ask("pin_key", number=1, key=b"k", node=0) is None
    assert not node0.names.table._entries


async def test_a_channel_whose_owner_is_gone_or_whose_queues_are_has_no_name_any_more(node0: Node0) -> None:
    for name, end in (
        ("owner", lambda: node0.names.drop_owner(A)),
        ("queues", lambda: node0.names.table.ended(2, 1)),
    ):
        await node0.make(name)
        end()
        assert node0.names.table.names() == []
    await node0.make("lost")
    node0.names.table.lose_node(1)
    assert node0.names.table.names() == ["lost"], "who connects hears there of the node"
    await node0.ask("unname_channel", number=3)
    node0.names.table.lose_node(1)
    assert not node0.names.table._entries


# -- what was passed on before it had a number ------------------------------------------------------------------------


async def test_a_promise_is_redeemed_when_it_is_kept(node0: Node0) -> None:
    assert await node0.ask("redeem_promise", B, 7, maker=A, promise=1) is LATER, "nobody has heard of it yet"
    await node0.ask("promise_channel", promise=1)
    assert await node0.ask("redeem_promise", B, 8, maker=A, promise=1) is LATER
    known = await node0.make("obs")
    await node0.ask("keep_promise", promise=1, number=known["number"], why="")
    assert node0.told == [(B, 7, known), (B, 8, known)]
    assert await node0.ask("redeem_promise", B, 9, maker=A, promise=1) == known


async def test_a_promise_of_a_channel_that_has_ended_is_none_of_another_one_of_its_name(node0: Node0) -> None:
    await node0.ask("promise_channel", promise=1)
    await node0.make("obs")
    await node0.ask("keep_promise", promise=1, number=1, why="")
    await node0.ask("unname_channel", number=1)
    assert (await node0.ask("redeem_promise", B, maker=A, promise=1))["number"] == 1, "it may have something yet"
    await node0.ask("queue_ended", DAEMON, number=1)
    await node0.make("obs")
    assert await node0.ask("redeem_promise", B, maker=A, promise=1) is None
    assert not node0.names.table._kept


async def test_a_promise_that_comes_to_nothing_is_told(node0: Node0) -> None:
    await node0.ask("promise_channel", promise=1)
    assert await node0.ask("redeem_promise", B, 7, maker=A, promise=1) is LATER
    await node0.ask("keep_promise", promise=1, number=None, why="")
    await node0.ask("promise_channel", promise=2)
    assert await node0.ask("redeem_promise", B, 8, maker=A, promise=2) is LATER
    await node0.ask("keep_promise", promise=2, number=77, why="")  # which has ended meanwhile
    assert node0.told == [(B, 7, None), (B, 8, None)]


async def test_why_a_promised_channel_could_not_be_made_is_told_early_and_late(node0: Node0) -> None:
    await node0.ask("promise_channel", promise=1)
    assert await node0.ask("redeem_promise", B, 7, maker=A, promise=1) is LATER
    await node0.ask("keep_promise", promise=1, number=None, why="node 1 is lost")
    assert node0.told == [(B, 7, "node 1 is lost")]
    assert await node0.ask("redeem_promise", B, 8, maker=A, promise=1) == "node 1 is lost"
    node0.die(A)
    assert await node0.ask("redeem_promise", B, 9, maker=A, promise=1) is None
    assert not node0.names.table._failed


async def test_the_promises_of_a_process_that_is_gone_are_broken_but_for_those_that_were_kept(node0: Node0) -> None:
    for promise in (1, 2):
        await node0.ask("promise_channel", promise=promise)
    known = await node0.make("obs", owner=B)
    await node0.ask("keep_promise", promise=1, number=1, why="")
    for ask, promise in ((7, 2), (8, 3)):
        assert await node0.ask("redeem_promise", B, ask, maker=A, promise=promise) is LATER
    node0.die(A)
    assert node0.told == [(B, 7, None), (B, 8, None)]
    assert await node0.ask("redeem_promise", B, maker=A, promise=1) == known
    assert await node0.ask("redeem_promise", B, maker=A, promise=4) is None
    node0.lost.append({"node": 1})
    assert await node0.ask("redeem_promise", A, maker=B, promise=1) is None


async def test_nothing_is_kept_for_who_is_gone(node0: Node0) -> None:
    await node0.ask("promise_channel", B, promise=1)
    await node0.ask("redeem_promise", B, 7, maker=A, promise=1)
    await node0.ask("find_channel", B, 8, name="obs")
    assert node0.names.table.clients() == {A, B}
    node0.die(B)
    assert node0.names.table.clients() == set()

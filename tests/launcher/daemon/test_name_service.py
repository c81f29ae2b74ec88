"""Handlers of names on node 0, with recording processes; the table itself: tests/_core/test_name_table.py."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf_async._core import frames, operations
from rlinf_launcher.daemon.handlers import LATER, Requester
from rlinf_launcher.daemon.name_service import NameService

A, B = frames.endpoint(0, 1), frames.endpoint(1, 1)
DAEMON = frames.endpoint(1, 0)


class Node0:
    def __init__(self) -> None:
        self.gone: set[int] = set()
        self.lost: list[dict[str, Any]] = []
        self.told: list[tuple[int, int, Any, bool]] = []
        self.names = NameService(self._answer, self.gone, self.lost)

    def _answer(self, who: Requester, value: Any, *, ok: bool = True) -> None:
        self.told.append((*who, value, ok))

    async def ask(self, operation: operations.Operation[Any], source: int = A, number: int = 1) -> Any:
        name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in type(operation).__name__)[1:]
        return await getattr(self.names, name)(Requester(source, number), operation)

    async def make(self, kind: str, name: str, roster: Any, owner: int = A) -> int:
        number: int = await self.ask(operations.Reserve(kind, name), owner)
        assert await self.ask(operations.Publish(kind, name, number, roster), owner) is None
        return number

    def die(self, gone: int) -> None:
        self.gone.add(gone)
        self.names.drop_client(gone)


@pytest.fixture
def node0() -> Node0:
    return Node0()


ROSTERS: dict[str, Any] = {"group": [{"endpoint": B, "supervised": True}], "channel": {"nodes": [1]}}


@pytest.mark.parametrize("kind", ROSTERS)
async def test_whoever_looks_for_a_name_is_answered_when_it_comes(node0: Node0, kind: str) -> None:
    for process, number in ((A, 7), (B, 8)):
        assert await node0.ask(operations.Find(kind, "x", None, 0), process, number) is LATER
    assert node0.names.progress(operations.Find(kind, "x", None, 0)) == f"{kind} 'x' is not there; there are: none"
    assert await node0.ask(operations.CancelFind(kind, 8), B, 9) == []
    assert node0.names.clients() == {A}
    number = await node0.make(kind, "x", ROSTERS[kind])
    assert node0.told == [(A, 7, ROSTERS[kind], True)]
    assert await node0.ask(operations.CancelFind(kind, 9), B, 10) == ["x"]
    assert await node0.ask(operations.Release(kind, number))


async def test_a_name_that_is_reserved_is_being_started(node0: Node0) -> None:
    await node0.ask(operations.Reserve("group", "x"))
    assert node0.names.progress(operations.Find("group", "x", None, 0)) == "group 'x' is being started"


@pytest.mark.parametrize("end", ["it is released", "its owner dies"])
async def test_a_lookup_that_waits_for_a_rank_to_come_back_is_refused_when_its_group_ends(
    node0: Node0, end: str
) -> None:
    number = await node0.make("group", "actor", ROSTERS["group"])
    assert await node0.ask(operations.IsAlive("actor", 0))
    assert await node0.ask(operations.ComesBack(B))
    node0.gone.add(B)
    assert not await node0.ask(operations.IsAlive("actor", 0))
    assert not await node0.ask(operations.IsAlive("actor", 1))
    assert await node0.ask(operations.Find("group", "actor", 0, B), B, 5) is LATER
    if end == "its owner dies":
        node0.die(A)
    else:
        await node0.ask(operations.Release("group", number))
    text = "group 'actor' is closed; a new one of that name is found once it is there"
    assert node0.told == [(B, 5, ["ClosedError", text], False)]


async def test_a_member_that_joins_and_a_rank_that_is_back_are_told(node0: Node0) -> None:
    assert await node0.ask(operations.Find("group", "a:0", 0, 0), B, 5) is LATER
    await node0.ask(operations.JoinGroup("a:0", 0, 1, {"endpoint": A}))
    assert node0.told == [(B, 5, [{"endpoint": A}], True)]
    number = await node0.make("group", "actor", ROSTERS["group"])
    assert await node0.ask(operations.Find("group", "actor", 0, B), B, 6) is LATER
    entry = {"endpoint": A, "supervised": True}
    node0.names.rank_returned(Requester(A, 3), operations.RankReturned("actor", number, 0, B, entry, {}))
    assert node0.told[1:] == [(B, 6, [entry], True)]


async def test_only_a_daemon_tells_of_the_end_of_its_queue(node0: Node0) -> None:
    number = await node0.make("channel", "obs", {"nodes": [1]})
    with pytest.raises(ValueError, match="only a daemon knows that"):
        await node0.ask(operations.QueueEnded(number), B)
    assert await node0.ask(operations.PinKey(number, b"k", 1)) == 1
    await node0.ask(operations.QueueEnded(number), DAEMON)
    assert await node0.ask(operations.PinKey(number, b"k", 1)) is None


async def test_the_channels_of_a_worker_that_is_gone_live_on_until_its_group_is_closed(node0: Node0) -> None:
    await node0.make("channel", "obs", {"nodes": [1]})
    node0.die(A)
    assert node0.names.channels.names() == ["obs"]
    node0.names.drop_owner(A)
    assert node0.names.clients() == set()


async def test_the_promises_of_a_process_of_a_lost_node_are_broken(node0: Node0) -> None:
    find = operations.Find("promise", f"{B}.1", None, 0)
    assert await node0.ask(find, A, 7) is LATER
    assert node0.names.progress(find) == "the process that has passed it on is still making it"
    assert node0.names.clients() == {A, B}
    node0.lost.append({"node": 1})
    node0.names.drop_client(B)
    assert node0.told == [(A, 7, None, True)]


async def test_there_are_three_kinds_of_names(node0: Node0) -> None:
    with pytest.raises(ValueError, match="names of kind group, channel, promise, and none of kind 'lock'"):
        await node0.ask(operations.Reserve("lock", "x"))

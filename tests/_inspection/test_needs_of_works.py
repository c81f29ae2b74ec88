"""Each kind of work says who has to act for it to end."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

from rlinf_async import settings
from rlinf_async._client import peer_activity
from rlinf_async._client.requests import OWN_NODE, DaemonRequest
from rlinf_async._client.tasks import Tasks
from rlinf_async._core import operations
from rlinf_async._core.frames import Status
from rlinf_async._group.wait_all import _All
from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._messaging.group_rosters import GroupSearch
from rlinf_async._messaging.operation import Member, ReceiveWork, SendWork
from rlinf_async._messaging.peer import Peer
from rlinf_async._messaging.route_work import AsyncRouteWork
from rlinf_async._waits import slow_waits
from rlinf_async.channel import Channel
from rlinf_async.handle import Handle
from rlinf_async.stream import StreamCall
from rlinf_async.work import Part, Work, needs_of


class Needing(Work[None]):
    def __init__(self, *endpoints: int, every: bool = True) -> None:
        super().__init__()
        self._targets = [Target(TargetKind.MESSAGE, endpoint) for endpoint in endpoints]
        self._every = every

    def _needs(self) -> slow_waits.Needs:
        return self._targets, self._every


def endpoints_of(needs: slow_waits.Needs) -> list[int]:
    return [target.endpoint for target in needs[0]]


def callee(*targets: int) -> Any:
    client = SimpleNamespace(user_loop=None, cancel=lambda *args: None)
    return SimpleNamespace(
        name="rollout", ranks=range(len(targets)), targets=list(targets), client=client, deadline=None,
        call_finished=lambda *args, **kwargs: None, describe_slot=str, holds=lambda call, slot: False,
    )  # fmt: skip


def test_a_daemon_that_does_not_answer_holds_up_no_words_about_a_wait() -> None:
    silent: Work[Any] = Work()
    timers: list[tuple[float, Any]] = []
    client: Any = SimpleNamespace(request=lambda *_, **__: silent, later=lambda *timer: timers.append(timer))
    words = peer_activity.queue(client, 3, 7, b"key")
    ((seconds, finish),) = timers
    assert (seconds, words.done()) == (settings.WAIT_ANSWER_S(), False)
    finish()
    assert words.wait(0) == f"the daemon of node 3 has not answered within {seconds:g} s"


def test_of_several_works_all_are_needed_unless_one_of_them_needs_one_of_several() -> None:
    assert needs_of([Needing(1, 2), Needing(2, 3)]) == ([Target(TargetKind.MESSAGE, each) for each in (1, 2, 3)], True)
    assert needs_of([Needing(1), Needing(2, every=False)])[1]
    assert not needs_of([Needing(1), Needing(2, 3, every=False)])[1]
    assert needs_of([]) == ([], True)


def test_views_and_followers_need_what_the_work_does() -> None:
    work = Needing(1)
    assert Part(work)._needs() == work._needs()
    following = work.then(lambda: None)
    assert following._needs() == work._needs()
    work._settle()
    assert following._needs() == ([], True)


def test_a_wait_for_several_needs_those_that_are_not_done() -> None:
    works = [Needing(1), Needing(2), Needing(3)]
    every, routed = _All(works), AsyncRouteWork("send_to()")
    every.begin()
    routed.begin(works)
    works[1]._settle()
    assert endpoints_of(every._needs()) == endpoints_of(routed._needs()) == [1, 3]


async def test_a_call_needs_the_ranks_that_have_not_answered() -> None:
    handle = Handle(callee(11, 12, 13), "step")
    assert handle._needs() == ([], True)
    handle._begin(5)
    handle._answer(1, Status.OK, b"")
    assert handle._needs() == ([Target(TargetKind.CALL, 11, 5), Target(TargetKind.CALL, 13, 5)], True)
    assert handle[2]._needs() == ([Target(TargetKind.CALL, 13, 5)], True)
    assert handle.outcomes()._needs() == handle._needs()
    waiting = asyncio.ensure_future(handle._next_slot(1))
    await asyncio.sleep(0)
    assert handle._tick is not None
    assert handle._tick._needs() == (handle._needs()[0], False)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting


def test_a_call_that_leaves_after_a_restart_needs_that() -> None:
    whom = callee(11, 12)
    handle = Handle(whom, "step")
    whom.holds = lambda call, slot: not call._call or slot == 1
    restart = Target(TargetKind.RESTART, name="rollout")
    assert handle._needs() == ([restart], True)
    handle._begin(5)
    assert handle._needs() == ([Target(TargetKind.CALL, 11, 5), restart], True)
    assert handle[1]._needs() == ([restart], True)


def test_the_next_item_of_a_stream_needs_one_of_the_ranks_that_go_on() -> None:
    stream = StreamCall(callee(11, 12, 13), "rollout")
    stream._begin(5)
    stream._answer(1, Status.END, b"")
    tick = stream._next()
    assert isinstance(tick, Work)
    assert tick._needs() == ([Target(TargetKind.CALL, 11, 5), Target(TargetKind.CALL, 13, 5)], False)


def test_a_message_needs_its_peers_or_the_name_of_a_group_that_is_looked_for() -> None:
    payload: Any = None
    sending = SendWork("broadcast() to", "others", None, payload)
    assert sending._needs() == ([], True)
    sending.others = [Peer(7), Peer(8)]
    assert endpoints_of(sending._needs()) == [7, 8]
    receiving: ReceiveWork[Any] = ReceiveWork("recv() from", Member("actor", 0), None, payload)
    receiving.missing = Member("actor", 0)
    assert receiving._needs() == ([Target(TargetKind.NAME, name="actor")], True)
    receiving.is_away = True
    assert receiving._needs() == ([Target(TargetKind.RESTART, name="actor")], True)
    receiving.missing, receiving.peer = None, Peer(9)
    assert receiving._needs() == ([Target(TargetKind.MESSAGE, 9)], True)


def test_a_search_for_a_group_names_and_needs_it() -> None:
    nothing: Any = None
    search = GroupSearch(nothing, "actor", nothing)
    assert repr(search).startswith("<a group named 'actor' [not done: ")
    assert search._needs() == ([Target(TargetKind.NAME, name="actor")], True)


def test_a_request_needs_a_lock_a_name_or_the_daemon() -> None:
    client: Any = SimpleNamespace(user_loop=None)

    def needed(operation: operations.MessageOperation[Any]) -> Target:
        ((target,), _) = DaemonRequest(client, 1, operation, OWN_NODE + 3)._needs()
        return target

    assert needed(operations.LockDevices("actor:0", [0, 1])) == Target(TargetKind.LOCK, name="devices 0, 1")
    assert needed(operations.Find("group", "actor", None, 0)) == Target(TargetKind.NAME, name="actor")
    assert needed(operations.Find("channel", "obs", None, 0)) == Target(TargetKind.NAME, name="obs")
    spawned = needed(operations.FreePort())
    assert (spawned.kind, spawned.name) == (TargetKind.DAEMON, "FreePort")


def test_a_get_from_a_channel_of_this_process_needs_somebody_here() -> None:
    getting = Channel.create("here", local=True).get(async_op=True)
    assert getting._needs() == ([Target(TargetKind.LOCAL)], False)
    getting._abandon()


async def test_a_coroutine_of_the_framework_needs_what_it_awaits_or_is_worked_on() -> None:
    loop = asyncio.get_running_loop()
    tasks = Tasks(loop, loop.call_soon_threadsafe)

    async def ask() -> None:
        async with asyncio.timeout(60):
            await Needing(4)

    async def work() -> None:
        await asyncio.Event().wait()

    asking, working = tasks.run(ask(), "asking", True), tasks.run(work(), "working", True)
    for _ in range(3):
        await asyncio.sleep(0)
    assert endpoints_of(asking._needs()) == [4]
    left = asking._time_left()
    assert left is not None
    assert 50 < left <= 60
    assert working._needs() == ([Target(TargetKind.DAEMON, name="working")], True)
    assert working._time_left() is None
    await tasks.settle()

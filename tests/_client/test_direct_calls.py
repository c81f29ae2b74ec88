"""Direct calls within a node: order among direct and relayed calls, deaths, reports to the daemon."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from rlinf_async import ClosedError, Cluster, NodePlacementStrategy, WorkerDied
from rlinf_async._client import direct_calls
from rlinf_async._core import frames
from rlinf_async._wire.socket_writer import MAX_FRAME_BYTES
from tests._support.workers import Plain

pytestmark = [pytest.mark.shared_cluster, pytest.mark.asyncio(loop_scope="module")]

LARGE = bytes(100_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def pair(cluster: Cluster) -> AsyncIterator[Any]:
    """Two workers that have been called before, so that they can be called directly."""
    group = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0]), name="pair")
    await group.hello()
    async with group:
        yield group


@pytest.fixture
def relayed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kinds of the frames that this process sends to its daemon from now on."""
    kinds: list[int] = []
    connection = cluster._client._connection
    assert connection is not None
    send = connection.send

    def noticed(frame: frames.Frame, *args: Any, **kwargs: Any) -> None:
        kinds.append(frame[0])
        send(frame, *args, **kwargs)

    monkeypatch.setattr(connection, "send", noticed)
    return kinds


async def test_the_daemon_hears_nothing_of_calls_that_are_answered_at_once(pair: Any, relayed: list[int]) -> None:
    for _ in range(20):
        assert await pair[1].hello() == [1]
        assert await pair.hello() == [0, 1]
    assert frames.CALL not in relayed


async def test_a_large_argument_goes_directly_too(pair: Any, relayed: list[int]) -> None:
    assert await pair.echo(LARGE) == [((LARGE,), {})] * 2
    assert frames.CALL not in relayed


async def test_calls_run_in_their_order_whichever_way_they_take(
    pair: Any, relayed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_calls, "MAX_TARGETS", 1)
    one = pair[1]
    handles = []
    for index in range(400):
        handles.append((pair if index % 7 == 3 else one).note(LARGE if index % 11 == 5 else index))
        if index % 50 == 49:
            await handles[-1]
    for handle in handles:
        await handle
    (noted,) = await one.noted()
    assert noted == [LARGE if index % 11 == 5 else index for index in range(400)]
    assert 0 < relayed.count(frames.CALL) < len(handles)


async def test_order_holds_where_the_direct_way_is_full(
    pair: Any, relayed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_calls, "MAX_TARGETS", 1)
    (pid, _) = [info.worker.pid for info in pair.worker_info_list]
    os.kill(pid, signal.SIGSTOP)
    try:
        handles = [pair[0].note((index, bytes(20_000))) for index in range(100)]
        handles.append(pair.note((100, b"")))
    finally:
        os.kill(pid, signal.SIGCONT)
    for handle in handles:
        await handle
    assert [index for index, _ in (await pair[0].noted())[0]] == list(range(101))


async def test_the_daemon_knows_of_a_call_that_takes_long(pair: Any, cluster: Cluster) -> None:
    handle = pair[0].sleep(60)
    async with asyncio.timeout(2):
        while not any(line.startswith("sleep (") for line in (await cluster.status())["busy"].get("pair:0", ())):
            pass
    await pair[0].hello()  # the daemon may know of a call that has not begun
    handle.cancel()
    with pytest.raises(ClosedError, match="cancelled"):
        await handle
    async with asyncio.timeout(2):
        while (await cluster.status())["busy"]:
            pass
    assert await pair[0].was_cancelled() == [True]


async def test_the_daemon_is_told_of_the_answer_to_a_call_that_it_knows(
    pair: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, loop, connection = asyncio.Event(), asyncio.get_running_loop(), cluster._client._connection
    assert connection is not None
    send = connection.send

    def noticed(frame: frames.Frame, *args: Any, **kwargs: Any) -> None:
        if frame[0] == frames.PENDING and frame[4]:
            loop.call_soon_threadsafe(told.set)
        send(frame, *args, **kwargs)

    monkeypatch.setattr(connection, "send", noticed)
    await pair[0].sleep(10 * direct_calls.REPORT_DELAY_S)
    async with asyncio.timeout(5):
        await told.wait()


async def test_a_death_in_the_middle_of_a_direct_call_names_its_method(pair: Any, relayed: list[int]) -> None:
    with pytest.raises(WorkerDied) as caught:
        await pair.die([1], "SIGKILL")
    assert caught.value.rank == 1
    assert caught.value.methods[-1].startswith("die (")
    assert frames.CALL not in relayed


async def test_a_death_before_the_daemon_has_heard_of_the_call_is_told_too(
    pair: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_calls, "REPORT_DELAY_S", 0.5)
    pid = pair.worker_info_list[1].worker.pid
    handle = pair[1].sleep(60)
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        with pytest.raises(WorkerDied) as caught:
            await handle
    assert caught.value.methods[-1].startswith("sleep (")
    assert (await cluster.status())["busy"] == {}


async def test_a_call_with_an_argument_for_every_rank_goes_directly_too(pair: Any, relayed: list[int]) -> None:
    from rlinf_async import each

    assert await pair.echo(each(["a", "b"])) == [(("a",), {}), (("b",), {})]
    assert frames.CALL not in relayed


async def test_the_items_of_a_stream_that_was_called_directly_come_with_credit(pair: Any, relayed: list[int]) -> None:
    items = [item async for item in pair[0].count(100)]
    assert items == [(0, index) for index in range(100)]
    assert not {frames.CALL, frames.CREDIT} & set(relayed)


class Way:
    """A socket to a worker that has broken, and is not handed over yet."""

    is_closed = True

    def is_behind(self) -> bool:
        return True


class Table:
    def __init__(self, way: Way) -> None:
        self._way = way

    def find(self, worker: int) -> Way:
        return self._way


async def test_the_daemon_is_told_of_an_answer_to_a_call_that_it_knows_though_no_call_follows() -> None:
    sent: list[Any] = []
    timers: list[Any] = []
    open_calls: Any = {2: SimpleNamespace(_targets=[7], _unanswered=lambda: [0])}
    table: Any = Table(Way())
    calls = direct_calls.DirectCalls(table, open_calls, threading.RLock(), sent.append, lambda _, at: timers.append(at))
    calls.open(2, [7], "note")
    timers.pop()()
    calls.answered(2, 7)
    calls.ended(2)
    timers.pop()()
    assert sent == [(frames.PENDING, 0, 0, [(7, 0, 2, "note")], []), (frames.PENDING, 0, 0, [], [7, 2])]
    assert not timers


async def test_a_report_of_more_calls_than_a_frame_holds_is_told_in_parts() -> None:
    sent: list[Any] = []
    timers: list[Any] = []
    handler = SimpleNamespace(_targets=[7], _method="m" * 1000, _unanswered=lambda: [0])
    open_calls: Any = dict.fromkeys(range(10_000), handler)
    table: Any = Table(Way())
    calls = direct_calls.DirectCalls(table, open_calls, threading.RLock(), sent.append, lambda _, at: timers.append(at))
    for call in open_calls:
        calls.open(call, [7], handler._method)
    for report in (timers.pop(), lambda: calls.report_all(7)):
        report()
        assert [row[2] for frame in sent for row in frame[3]] == list(open_calls)
        assert max(len(frames.pack(frame)) for frame in sent) <= MAX_FRAME_BYTES
        sent.clear()


async def test_the_daemon_is_not_told_of_a_call_that_was_given_up_while_the_report_was_due() -> None:
    sent: list[Any] = []
    timers: list[Any] = []
    table: Any = Table(Way())
    calls = direct_calls.DirectCalls(table, {}, threading.RLock(), sent.append, lambda _, at: timers.append(at))
    calls.open(2, [7], "note")
    timers.pop()()
    assert sent == []


async def test_a_call_follows_those_that_a_broken_socket_still_owes() -> None:
    """Another thread relays these one by one; a call that went by way of the daemon at once would overtake some."""
    way, open_calls = Way(), {1: object()}
    calls = direct_calls.DirectCalls(Table(way), open_calls, threading.RLock(), print, lambda *later: None)  # type: ignore[arg-type]
    calls.relays(7, 1)
    assert calls.open(2, [7], "note") == ([(0, way)], [])
    way.is_closed = False
    way.is_behind = lambda: False  # type: ignore[method-assign]
    assert calls.open(3, [7], "note") == ([], [0])


async def test_an_ended_call_frees_its_signalled_workers_only() -> None:
    way, open_calls = Way(), {1: object(), 2: object()}
    way.is_closed = False
    calls = direct_calls.DirectCalls(Table(way), open_calls, threading.RLock(), print, lambda *later: None)  # type: ignore[arg-type]
    calls.note_signal(1, [7])
    calls.note_signal(2, [8])
    del open_calls[1]
    calls.ended(1)
    assert calls.open(3, [7, 8], "note") == ([(0, way)], [1])


async def test_a_call_without_descriptors_for_all_its_ranks_reaches_none(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    dup = os.dup

    def dup_once(fd: int) -> int:
        if copied:
            raise OSError(errno.EMFILE, "Too many open files")
        copied.append(fd)
        return dup(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", dup_once)
        with pytest.raises(OSError, match="no descriptor is left"):
            await pair.note(LARGE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(copied[0])
    assert await pair.noted() == [[], []]

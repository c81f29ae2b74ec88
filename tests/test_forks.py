"""Forked children of a driver and of workers: refused, and harmless to the parent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.utils.data

from rlinf_async import Channel, Cluster, ForkedProcessError, NodePlacementStrategy, Worker, WorkerGroup
from tests._support.workers import Plain

AT_ONCE = 0.1
"""Seconds within which a child is to hear."""

PATIENCE = 5
"""Seconds after which a child that waits is ended."""

Attempts = dict[str, Callable[[], Any]]


def in_child(attempts: Attempts) -> dict[str, list[Any]]:
    """Tries each of these in a forked child: ``[error's type, its text, seconds]`` by name."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)
        found = {}
        for name, attempt in attempts.items():
            since = time.monotonic()
            try:
                outcome = ["no error", repr(attempt())]
            except BaseException as error:
                outcome = [type(error).__name__, str(error)]
            found[name] = [*outcome, time.monotonic() - since]
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    with open(read) as reader:
        said = reader.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return dict(json.loads(said))


def check(found: dict[str, list[Any]], owner: int) -> None:
    """All were told at once whose the thing is, and what to do."""
    for name, (kind, text, seconds) in found.items():
        assert kind == "ForkedProcessError", (name, text)
        assert f"belongs to process {owner}" in text, (name, text)
        assert "spawn" in text, name
        assert seconds < AT_ONCE, (name, seconds)


class Forker(Worker):
    """Forks, in all ways that there are."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Any = None

    def keep(self, channel: Channel) -> None:
        """Has received from a channel, sent a call and begun to receive when it forks."""
        assert channel.get() == 0
        group = WorkerGroup.from_group_name(Forker, "forker")
        receiving = self.recv("other", 0, async_op=True)
        self.kept = channel, group, group.linger(), receiving

    def pid(self) -> int:
        return os.getpid()

    async def linger(self) -> str:
        await asyncio.sleep(0.5)
        return "done"

    def try_in_child(self) -> dict[str, list[Any]]:
        channel, group, call, receiving = self.kept
        return in_child(
            {
                "recv that was open": receiving.wait,
                "call that was open": call.wait,
                "send": lambda: self.send(1, "other", 0),
                "recv": lambda: self.recv("other", 0, timeout=1),
                "broadcast": lambda: self.broadcast(1, groups=[("forker", 0), ("other", 0)]),
                "call": group.pid,
                "get": channel.get,
                "put": lambda: channel.put(1),
                "async_get": lambda: asyncio.run(wait_for(lambda: channel.get())),
                "connect": lambda: self.connect_channel("other"),
                "find": lambda: WorkerGroup.from_group_name(Forker, "forker"),
                "port": self.acquire_free_port,
                "group.close": group.close,
            }
        )

    async def receive_what_was_open(self) -> Any:
        return await self.kept[3], await self.kept[2]

    def tell(self, what: Any) -> None:
        self.send(what, "forker", 0)

    def load(self, channel: Channel) -> list[Any]:
        return load(channel)

    def return_twice(self, how: str) -> int:
        """The child leaves the method as well."""
        child = os.fork()
        if child == 0:
            signal.alarm(PATIENCE)
            if how == "raise":
                raise ValueError("in the child")
            if how == "exit":
                sys.exit(3)
            return 0
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    async def return_twice_from_coroutine(self, how: str) -> int:
        await asyncio.sleep(0)
        return self.return_twice(how)

    def loop_in_child(self) -> int:
        """A child that runs the loop which the parent's thread has, and closes it; its pid."""
        child = os.fork()
        if child == 0:
            signal.alarm(PATIENCE)
            loop = asyncio.get_event_loop()
            loop.run_until_complete(asyncio.sleep(0.5))
            loop.close()
            os._exit(0)
        return child

    async def await_child(self, child: int) -> Any:
        """Holds up the loop meanwhile, so that calls are read by the socket thread, which rings the loop's alarm."""
        yield "begun"
        yield os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def wait_for(start: Callable[[], Any]) -> Any:
    return await start()


class Items(torch.utils.data.Dataset[Any]):
    """A dataset that reads a channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.channel.get()


def load(channel: Channel) -> list[Any]:
    loader = iter(torch.utils.data.DataLoader(Items(channel), num_workers=1, timeout=PATIENCE))
    try:
        return list(loader)
    finally:
        loader._shutdown_workers()  # type: ignore[attr-defined]  # not at some later time, by the garbage collector


@pytest.fixture(scope="module")
def plain(cluster: Cluster) -> Iterator[Any]:
    with contextlib.closing(Plain.create_group().launch(cluster, name="plain").wait_ready()) as group:
        yield group


@pytest.fixture(scope="module")
def forker(cluster: Cluster) -> Iterator[Any]:
    placement = NodePlacementStrategy([0])
    with (
        contextlib.closing(Forker.create_group().launch(cluster, placement=placement, name="forker")) as group,
        contextlib.closing(Forker.create_group().launch(cluster, placement=placement, name="other")) as other,
    ):
        group.other = other
        yield group


@pytest.fixture
def channel(cluster: Cluster) -> Iterator[Channel]:
    with Channel.create("items", cluster=cluster) as channel:
        yield channel


pytestmark = pytest.mark.shared_cluster


def test_a_drivers_child_is_told_at_once_whose_things_it_uses(cluster: Cluster, plain: Any, channel: Channel) -> None:
    async def as_completed(call: Any) -> Any:
        return [item async for item in call.as_completed()]

    call = plain.sleep(0.5)
    done = plain.hello()
    assert done.wait() == [0]
    stream = iter(plain.count(1_000_000))
    assert next(stream) == (0, 0)
    other = Channel.create("other", cluster=cluster)
    getting = other.get(async_op=True)
    found = in_child(
        {
            "wait": call.wait,
            "wait with a deadline": lambda: call.wait(1),
            "part": lambda: call[0].wait(),
            "outcomes": lambda: call.outcomes().wait(),
            "then": lambda: call.then(print).wait(),
            "await": lambda: asyncio.run(wait_for(lambda: call)),
            "async_wait": lambda: asyncio.run(wait_for(lambda: call.async_wait(1))),
            "as_completed": lambda: asyncio.run(as_completed(call)),
            "cancel": call.cancel,
            "durations": call.consume_durations,
            "next": lambda: [next(stream) for _ in range(1000)],
            "call": plain.hello,
            "get that was open": getting.wait,
            "get": channel.get,
            "get_nowait": channel.get_nowait,
            "get with a deadline": lambda: channel.get(timeout=1),
            "get_batch": lambda: channel.get_batch(1),
            "put": lambda: channel.put(1),
            "put_nowait": lambda: channel.put_nowait(1),
            "qsize": channel.qsize,
            "peek_all": channel.peek_all,
            "channel.close": channel.close,
            "create": lambda: Channel.create("third"),
            "connect": lambda: Channel.connect("third"),
            "find_group": lambda: cluster.find_group(Plain, "plain"),
            "status": cluster.status,
            "launch": lambda: Plain.create_group().launch(cluster, name="more"),
            "group.close": plain.close,
        }
    )
    check(found, os.getpid())
    assert in_child({"a call that was done": done.wait, "cluster.close": cluster.close}) == {
        "a call that was done": ["no error", "[0]", pytest.approx(0, abs=AT_ONCE)],
        "cluster.close": ["no error", "None", pytest.approx(0, abs=AT_ONCE)],
    }
    assert call.wait(5) == [0.5]
    assert [next(stream) for _ in range(50)] == [(0, item) for item in range(1, 51)]
    other.put("for the parent")
    assert getting.wait(5) == "for the parent"
    other.close()


def test_a_workers_child_is_told_at_once_whose_things_it_uses(forker: Any, channel: Channel) -> None:
    channel.put(0)
    forker.keep(channel).wait(10)
    pid = forker.pid().wait()[0]
    check(forker.try_in_child().wait(10)[0], pid)
    told = forker.other.tell("for the parent")
    assert forker.receive_what_was_open().wait(10) == [("for the parent", ["done"])]
    told.wait(5)
    channel.put("later")
    assert channel.get() == "later"


def test_what_a_loop_has_asked_for_is_not_handed_out_in_its_child_too(channel: Channel) -> None:
    for item in range(200):
        channel.put(item)
    items = iter(channel)
    assert [next(items) for _ in range(3)] == list(range(3))
    attempts = {"get": channel.get, "put": lambda: channel.put(-1), "loop": lambda: list(channel)}
    check(in_child({**attempts, "the loop that has begun": lambda: next(items)}), os.getpid())
    assert [next(items) for _ in range(197)] == list(range(3, 200))


def test_a_stream_that_a_child_drops_goes_on_in_its_parent(plain: Any) -> None:
    streams = [plain.count(3)]
    in_child({"drop": streams.clear})
    assert list(streams[0]) == [(0, 0), (0, 1), (0, 2)]


def test_a_channel_of_one_process_does_not_pass_for_one_of_two() -> None:
    channel = Channel.create("local", local=True)
    channel.put(1)
    check(in_child({"get": channel.get, "put": lambda: channel.put(2), "size": channel.qsize}), os.getpid())
    assert channel.get() == 1


def test_locks_that_other_threads_held_at_the_fork_hold_up_no_child(cluster: Cluster, plain: Any) -> None:
    call = plain.sleep(0.3)
    stream = plain.count(10)
    held = threading.Event()
    leave = threading.Event()

    def hold() -> None:
        with cluster._client._arbiter.lock, call._lock, stream._streaming._lock:  # as frames are handled
            held.set()
            leave.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(PATIENCE)
    try:
        found = in_child(
            {
                "wait": call.wait,
                "part": lambda: call[0].wait(),
                "next": lambda: next(iter(stream)),
                "call": plain.hello,
                "close": plain.close,
            }
        )
    finally:
        leave.set()
        thread.join()
    check(found, os.getpid())
    assert call.wait(5) == [0.3]


@pytest.mark.parametrize("where", ["driver", "worker"])
def test_a_dataloader_whose_dataset_reads_a_channel_says_why_it_cannot(
    forker: Any, channel: Channel, where: str
) -> None:
    channel.put("item")
    expected = r"(?s)channel 'items' belongs to process \d+.*multiprocessing_context="
    with pytest.raises(ForkedProcessError, match=expected):
        load(channel) if where == "driver" else forker.load(channel).wait(15)
    assert channel.get(timeout=5) == "item"


@pytest.mark.parametrize(("how", "code"), [("return", 0), ("raise", 1), ("exit", 3)])
def test_a_child_that_leaves_the_method_as_well_ends_there(forker: Any, how: str, code: int) -> None:
    assert forker.return_twice(how).wait(10) == [code]
    assert forker.return_twice_from_coroutine(how).wait(10) == [code]
    pids = [forker.pid() for _ in range(100)]
    assert len({call.wait(10)[0] for call in pids}) == 1


def test_a_loop_that_runs_in_a_workers_child_takes_no_wake_up_from_its_parents(forker: Any) -> None:
    child = forker.loop_in_child().wait(10)[0]
    waiting = iter(forker.await_child(child))
    assert next(waiting) == (0, "begun")
    call = forker.pid()
    assert next(waiting) == (0, 0)
    assert call.wait(5) != [child]

"""Channels: between a driver and workers, on one node and on two."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rlinf_async import (
    Channel,
    ClosedError,
    Cluster,
    ConfigError,
    DeadlineExceeded,
    EndOfChannel,
    NodeLost,
    NodePlacementStrategy,
    SerializationError,
    WeightedItem,
    Work,
    WorkerDied,
    queues,
)
from tests.channel_workers import User

pytestmark = pytest.mark.shared_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def users(cluster: Cluster) -> Iterator[Any]:
    """Two on node 0, one on node 1."""
    group = User.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0, 1]), name="users")
    yield group.wait_ready()
    group.close()


@pytest.fixture(params=[0, 1], ids=["near", "far"])
def channel(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Channel]:
    """On the driver's node, and on the other one."""
    with Channel.create(f"channel-{request.param}", node_rank=request.param) as channel:
        yield channel


@pytest.fixture
def one(cluster: Cluster) -> Iterator[Channel]:
    """A channel that holds one item per key."""
    with Channel.create("one", maxsize=1) as channel:
        yield channel


def launch_mortal(cluster: Cluster, ranks: list[int], name: str = "mortal") -> Any:
    return User.create_group().launch(cluster, placement=NodePlacementStrategy(ranks), name=name).wait_ready()


# -- what it does -----------------------------------------------------------------------------------------------------


def test_items_come_out_in_order_wherever_producer_and_consumer_are(channel: Channel, users: Any) -> None:
    for producer in range(3):
        for consumer in range(3):
            items = [(producer, consumer, number) for number in range(20)]
            put = users[producer].put_all(channel, items)
            assert users[consumer].get_all(channel, 20).wait() == [items]
            put.wait()


def test_the_driver_puts_and_gets_too(channel: Channel, users: Any) -> None:
    got = users[2].get_all(channel, 2)
    channel.put("a")
    channel.put({"b": torch.ones(3)})
    assert str(got.wait()) == str([["a", {"b": torch.ones(3)}]])
    users[1].put_all(channel, ["c"]).wait()
    assert channel.get() == "c"


def test_every_way_of_calling_gives_the_same(channel: Channel, users: Any) -> None:
    for way in ("call", "acall", "later"):
        for user in users[0], users[2]:
            assert getattr(user, way)(channel, "put", way).wait() == [None]
            assert getattr(user, way)(channel, "get").wait() == [way]
            assert getattr(user, way)(channel, "put", way, 3, "key").wait() == [None]
            assert getattr(user, way)(channel, "get_batch", 3, "key").wait() == [[way]]


async def test_in_a_coroutine_of_the_driver_everything_is_a_work() -> None:
    async with (
        Cluster(num_nodes=1, log_to_driver=False) as cluster,
        Channel.create("obs", maxsize=1, cluster=cluster) as channel,
    ):
        work = channel.put("a")
        assert isinstance(work, Work)
        assert await work is None
        assert await channel.qsize() == 1
        assert await channel.full()
        with pytest.raises(asyncio.QueueFull):
            await channel.put_nowait("b")
        assert await channel.peek_all() == [WeightedItem(0, "a")]
        assert await channel.get() == "a"
        assert await channel.empty()
        with pytest.raises(asyncio.QueueEmpty):
            await channel.get_nowait()
        async with asyncio.TaskGroup() as tasks:
            got = tasks.create_task(channel.get_batch(2))
            tasks.create_task(channel.put("c", weight=1))
            tasks.create_task(channel.put("d", weight=1))
        assert got.result() == ["c", "d"]


def test_the_truth_of_an_unfinished_work_is_an_error(channel: Channel) -> None:
    work = channel.get(async_op=True)
    with pytest.raises(TypeError, match=r"get\(\) from channel 'channel-\d' .* is not done: `await` it"):
        bool(work)
    channel.put("x")
    assert work.wait() == "x"


def test_questions_are_answered_with_what_has_been_put_before(channel: Channel, users: Any) -> None:
    assert (channel.qsize(), channel.empty(), channel.full()) == (0, True, False)
    channel.put("a", weight=2)
    channel.put(torch.ones(100_000))
    assert (channel.qsize(), channel.empty(), channel.full()) == (2, False, False)
    assert (channel.qsize("other"), channel.empty("other")) == (0, True)
    first, second = channel.peek_all()
    assert first == WeightedItem(2, "a")
    assert torch.equal(second.item, torch.ones(100_000))
    assert str(channel).startswith("[WeightedItem(weight=2, item='a'), WeightedItem(")
    assert users[1].acall(channel, "qsize").wait() == [2]
    assert users[2].call(channel, "peek_all").wait()[0][0] == first
    assert channel.qsize() == 2
    channel.get()
    channel.get()


def test_keys_are_what_a_dict_takes_them_for(channel: Channel) -> None:
    for key, same in ((1, True), (("a", 1), ("a", 1.0)), (None, None), (frozenset("ab"), frozenset("ba"))):
        channel.put(repr(key), key=key)
        assert channel.qsize(same) == 1
        assert channel.get(key=same) == repr(key)
    with pytest.raises(TypeError, match="unhashable"):
        channel.put("x", key=["a"])


def test_a_full_key_holds_up_its_own_producers_only(one: Channel, users: Any) -> None:
    one.put("a", key="full")
    waiting = users[0].acall(one, "put", "b", key="full")
    users[0].acall(one, "put", "c", key="other").wait()
    assert one.get("other") == "c"
    assert not waiting.done()
    assert one.full("full")
    assert [one.get("full"), one.get("full")] == ["a", "b"]
    waiting.wait()


@pytest.mark.parametrize("way", ["call", "acall"])
def test_nowait_raises_what_asyncio_raises(one: Channel, users: Any, way: str) -> None:
    one.put_nowait("a")
    for user in users[0], users[2]:
        with pytest.raises(asyncio.QueueFull):
            getattr(user, way)(one, "put_nowait", "b").wait()
    with pytest.raises(asyncio.QueueFull):
        one.put_nowait("b")
    assert one.get_nowait() == "a"
    for user in users[0], users[2]:
        with pytest.raises(asyncio.QueueEmpty):
            getattr(user, way)(one, "get_nowait").wait()
    with pytest.raises(asyncio.QueueEmpty):
        one.get_nowait()


def test_batches_follow_their_weights(channel: Channel) -> None:
    for weight in (1, 2, 3, 4):
        channel.put(weight, weight)
    assert channel.get_batch(3) == [1, 2]
    assert channel.get_batch(6) == [3]
    with pytest.raises(ValueError, match=r"weighs 4, which is more than get_batch's target_weight 3"):
        channel.get_batch(3)
    assert channel.get() == 4
    with pytest.raises(ValueError, match="must not be negative"):
        channel.get_batch(-1)


def test_large_items_arrive_whole_and_belong_to_the_consumer(channel: Channel, users: Any) -> None:
    tensor = torch.arange(1 << 20)
    channel.put([tensor, tensor[:10].clone(), "small"], weight=1)
    channel.put(torch.zeros(1 << 18), weight=1)
    (whole, _, small), zeros = channel.get_batch(2)
    assert torch.equal(whole, tensor)
    assert small == "small"
    zeros += 1
    users[2].call(channel, "put", tensor).wait()
    assert torch.equal(users[0].call(channel, "get").wait()[0], tensor)


# -- time -------------------------------------------------------------------------------------------------------------


def test_a_deadline_says_what_was_awaited_and_takes_nothing(channel: Channel, users: Any) -> None:
    for user in users[0], users[2]:
        for way in ("call", "acall", "later"):
            with pytest.raises(DeadlineExceeded, match=r"get\(\) from channel 'channel-\d' on node \d .*'k'.* 0.01 s"):
                getattr(user, way)(channel, "get", "k", timeout=0.01).wait()
    channel.put("later", key="k")
    assert channel.get("k", timeout=5) == "later"


def test_a_put_that_is_too_late_leaves_nothing(one: Channel) -> None:
    one.put("a")
    with pytest.raises(DeadlineExceeded, match=r"put\(\) to channel 'one' on node 0 .* was not done within 0.01 s"):
        one.put("b", timeout=0.01)
    work = one.put("c", async_op=True, timeout=0)
    assert work.done()
    assert one.get() == "a"
    assert one.empty()


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_name_is_taken_until_the_channel_is_closed(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    first = Channel.create("taken", maxsize=7)
    first.put("here")
    with caplog.at_level(logging.WARNING):
        second = Channel.Create("taken", maxsize=3)
    assert "there is a channel named 'taken' already: connected to it" in caplog.text
    assert (second.get(), second.maxsize) == ("here", 7)
    second.close()
    with pytest.raises(ClosedError, match="channel 'taken' is closed"):
        first.put("x")
    with Channel.create("taken", maxsize=3) as third:
        assert third.maxsize == 3
    assert cluster.status()["channels"] == {}


def test_connecting_waits_for_the_name(cluster: Cluster, users: Any) -> None:
    got = users.connect("to-be")
    with Channel.create("to-be", node_rank=1) as channel:
        for item in range(3):
            channel.put(item)
        assert sorted(got.wait()) == [0, 1, 2]
        assert users[0].connect(name="to-be", timeout=5).cancel() is None
    with pytest.raises(DeadlineExceeded, match=r"no channel named 'never' within 0.05 s; there are: none"):
        Channel.connect("never", timeout=0.05)


def test_a_worker_makes_a_channel_and_passes_it_on(users: Any) -> None:
    channel = users[2].create(name="made", node_id=1, maxsize=2).wait()[0]
    assert repr(channel) == "<Channel made [node 1 | maxsize 2]>"
    users[0].call(channel, "put", "x").wait()
    assert users[1].call(channel, "get").wait() == ["x"]
    assert channel.empty()
    again = users[1].create_in_a_coroutine("made-2").wait()[0]
    assert again.get() == "at once"
    again.close()
    channel.close()


def test_a_workers_channel_outlives_it_and_ends_with_its_group(cluster: Cluster, users: Any) -> None:
    group = launch_mortal(cluster, [1, 1])
    channel = group[0].create("heirloom").wait()[0]
    channel.put("kept")
    os.kill(group[0].pid().wait()[0], signal.SIGKILL)
    assert group[1].call(channel, "get").wait() == ["kept"]
    channel.put("lost")
    group.close()
    with pytest.raises(ClosedError, match="the process that had created it is gone, or its group is closed"):
        channel.get(timeout=5)
    with Channel.create("heirloom") as another:
        another.put("x")


def test_no_such_node_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match=r"channel 'x': there is no node 7, the run has nodes \[0, 1\]"):
        Channel.create("x", node_rank=7)


def test_several_open_clusters_have_to_be_told_apart(cluster: Cluster) -> None:
    with Cluster(num_nodes=1, log_to_driver=False) as other:
        with pytest.raises(RuntimeError, match=r"2 clusters are open in this process: .*cluster="):
            Channel.create("x")
        with Channel.create("x", cluster=other) as there, Channel.create("x", cluster=cluster) as here:
            there.put("there")
            here.put("here")
            travelled = pickle.loads(pickle.dumps(there))
            assert (travelled.get(), here.get()) == ("there", "here")


# -- the end ----------------------------------------------------------------------------------------------------------


def test_a_closed_channel_gives_what_it_has_and_then_ends(cluster: Cluster, users: Any) -> None:
    channel = Channel.create("closing", node_rank=1)
    seen = users.iterate(channel)
    for item in range(30):
        channel.put(item)
    channel.close()
    channel.close()
    assert sorted(item for items in seen.wait() for item in items) == list(range(30))
    for user in users[0], users[2]:
        with pytest.raises(EndOfChannel, match="channel 'closing' is closed"):
            user.call(channel, "get").wait()
        with pytest.raises(ClosedError, match="channel 'closing' is closed"):
            user.call(channel, "put", "x").wait()
    assert (channel.qsize(), channel.peek_all()) == (0, [])


def test_an_open_batch_gets_what_there_is_at_the_end(cluster: Cluster, users: Any) -> None:
    channel = Channel.create("ending")
    batch = users[0].acall(channel, "get_batch", 10)
    channel.put("a", weight=1)
    channel.close()
    assert batch.wait() == [["a"]]


async def test_closing_the_cluster_ends_what_waits() -> None:
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        channel = await Channel.create("open", cluster=cluster)
        work = channel.get()
    with pytest.raises(ClosedError):
        await work
    with pytest.raises(ClosedError):
        await channel.put("x")


def test_what_a_coroutine_has_put_does_not_wait_for_a_blocking_method(channel: Channel, users: Any) -> None:
    put = users[0].put_in_a_crowd(channel, "kept back")
    blocked = users[0].call(channel, "get", "gate")
    assert channel.get(timeout=10) == "kept back"
    channel.put("open", key="gate")
    assert blocked.wait() == ["open"]
    put.wait()
    assert users[0].take().wait() == [[None]]


def test_a_put_that_fails_unheard_is_logged(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with Channel.create("unheard", max_bytes=1000) as channel:
        channel.put(bytes(2000), async_op=True)
        channel.qsize()  # its answer comes behind that of the put
        gc.collect()
    assert (
        "put() to channel 'unheard' on node 0 (key 'default_queue') failed, and nobody asked: ValueError" in caplog.text
    )


# -- those who give up, or die ----------------------------------------------------------------------------------------


def test_whoever_gives_up_leaves_the_item(channel: Channel, users: Any) -> None:
    for user in users[0], users[2]:
        assert user.wait_and_give_up(channel, 0.01).wait() == ["gave up"]
    channel.put("a")
    assert channel.get() == "a"


def test_an_item_whose_consumer_is_cancelled_before_it_resumes_goes_back(channel: Channel, users: Any) -> None:
    for user in users[0], users[2]:
        waiting = user.cancelled_before_it_resumes(channel)
        user.turn().wait()
        channel.put("a")
        assert waiting.wait() == ["cancelled"]
        work = channel.get(async_op=True)
        assert work.wait() == "a"
        assert work.redelivered


def test_an_item_that_everybody_has_forgotten_goes_back(channel: Channel, users: Any) -> None:
    users[1].ask(channel, "get").wait()
    channel.put(torch.ones(20_000))
    users[1].arrived().wait()
    users[1].forget().wait()
    assert torch.equal(channel.get(timeout=5), torch.ones(20_000))


def test_a_forgotten_get_in_the_driver_gives_back_too(channel: Channel) -> None:
    channel.put("a")
    work = channel.get(async_op=True)
    gate = threading.Event()
    work._follow(gate.set)
    assert gate.wait(5)
    del work
    gc.collect()
    assert channel.get(timeout=5) == "a"


def test_what_a_killed_consumer_had_not_taken_goes_to_the_next_at_its_place(
    channel: Channel, cluster: Cluster, users: Any
) -> None:
    mortal = launch_mortal(cluster, [1])
    for item in range(4):
        channel.put(item if item % 2 else torch.full((20_000,), item))
    for _ in range(6):
        mortal.ask(channel, "get").wait()
    channel.put("last")
    mortal.arrived  # noqa: B018
    assert len(mortal.call(channel, "peek_all").wait()[0]) == 0
    os.kill(mortal.pid().wait()[0], signal.SIGKILL)
    seen = [users[0].redelivered(channel).wait()[0] for _ in range(5)]
    assert [int(item[0]) if isinstance(item, torch.Tensor) else item for item, _ in seen] == [0, 1, 2, 3, "last"]
    assert [flag for _, flag in seen] == [True] * 5
    mortal.close()


def test_what_was_accepted_outlives_its_producer_and_what_waited_does_not(one: Channel, cluster: Cluster) -> None:
    mortal = launch_mortal(cluster, [1, 0])
    for rank in (0, 1):
        mortal[rank].call(one, "put", torch.arange(1 << 18), key=rank).wait()
        mortal[rank].ask(one, "put", "waits", key=rank).wait()
        assert cluster.status()["channels"]["one"]["parties"] == 1
        os.kill(mortal[rank].pid().wait()[0], signal.SIGKILL)
        deadline = time.monotonic() + 5
        while cluster.status()["channels"]["one"]["parties"]:
            assert time.monotonic() < deadline
    for rank in (0, 1):
        assert torch.equal(one.get(rank), torch.arange(1 << 18))
        with pytest.raises(asyncio.QueueEmpty):
            one.get_nowait(rank)
    mortal.close()


# -- credit -----------------------------------------------------------------------------------------------------------


def test_what_was_put_on_credit_outlives_a_producer_that_is_killed_at_once(cluster: Cluster) -> None:
    items = [torch.full((20_000,), number % 251, dtype=torch.uint8) if number % 3 else number for number in range(60)]
    for attempt in range(5):
        with Channel.create("credited", cluster=cluster) as channel:
            group = launch_mortal(cluster, [0], f"hasty-{attempt}")
            with pytest.raises(WorkerDied):
                group.put_on_credit_and_die(channel, items).wait()
            assert channel.qsize() == 1 + len(items)
            assert channel.get() == "first"
            for item in items:
                got = channel.get()
                assert got == item if isinstance(item, int) else torch.equal(got, item)
            group.close()


@pytest.mark.parametrize("nbytes", [10, 100_000])
def test_a_close_in_the_midst_of_puts_loses_none_that_returned_and_refuses_the_others(
    cluster: Cluster, users: Any, nbytes: int
) -> None:
    for _ in range(3):
        with Channel.create("closing", max_bytes=256 << 20) as channel:
            putting = users.put_until_closed(channel, 4, nbytes)
            while channel.qsize() < 30:
                pass
            began = time.monotonic()
            channel.close()
            assert time.monotonic() - began < 1.5, "everybody answers"
            found: dict[tuple[int, int], int] = {}
            for rank, index, number, _ in channel_rest(channel):
                assert number == found.get((rank, index), 0), "in order, and none is missing"
                found[rank, index] = number + 1
            for rank, (counts, refused) in enumerate(putting.wait()):
                assert refused
                for index, count in enumerate(counts):
                    # One more may be in: its put was given up for the channel's end before it heard that it was.
                    assert found.get((rank, index), 0) - count in (0, 1)


def channel_rest(channel: Channel) -> Iterator[Any]:
    """What is in a closed channel."""
    while True:
        try:
            yield channel.get()
        except EndOfChannel:
            return


def test_a_close_does_not_wait_for_a_stopped_process_for_more_than_moments(cluster: Cluster) -> None:
    group = launch_mortal(cluster, [0], "stopped")
    (pid,) = group.pid().wait()
    with Channel.create("stopped", cluster=cluster) as channel:
        group.put_on_credit(channel, ["second"]).wait()
        os.kill(pid, signal.SIGSTOP)
        try:
            while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
                pass
            began = time.monotonic()
            channel.close()
            took = time.monotonic() - began
        finally:
            os.kill(pid, signal.SIGCONT)
        assert 1.5 < took < 4
        assert list(channel_rest(channel)) == ["first", "second"]
        with pytest.raises(ClosedError):
            group.call(channel, "put", "third").wait()
    group.close()


def test_a_put_on_credit_is_done_when_the_kernel_has_it(cluster: Cluster, users: Any) -> None:
    with Channel.create("stalled", cluster=cluster) as channel:
        (done,) = users.execute_on(0).put_past_a_stopped_daemon(channel, cluster.status()["pid"], 100, 30_000).wait()
        assert 0 < done < 100
        assert channel.qsize() == 101


def test_who_has_heard_that_something_was_put_finds_it(cluster: Cluster, users: Any) -> None:
    with Channel.create("heard", cluster=cluster) as channel:
        users[0].put_on_credit(channel, []).wait()
        for count in range(2, 200):
            users[0].call(channel, "put", count).wait()
            assert channel.qsize() == count
        for _ in range(200):
            users[0].call(channel, "put", "x", 0, "other").wait()
            assert channel.get_nowait("other") == "x"


async def test_puts_on_credit_of_a_driver_come_in_order() -> None:
    async with (
        Cluster(num_nodes=1, log_to_driver=False) as cluster,
        Channel.create("driver", cluster=cluster) as channel,
    ):
        for number in range(3000):
            await channel.put(number)
        assert await channel.qsize() == 3000
        assert [await channel.get() for _ in range(3000)] == list(range(3000))
        async with asyncio.TaskGroup() as tasks:
            for number in range(300):
                tasks.create_task(channel.put(number, key=number % 3))
        await channel.close()
        assert [await channel.get(key=1) for _ in range(100)] == list(range(1, 300, 3))


def test_a_lost_node_fails_what_waits_for_its_channels_with_counts() -> None:
    with Cluster(local_nodes=2, log_to_driver=False) as cluster:
        channel = Channel.create("doomed", node_rank=1, cluster=cluster)
        works = [channel.get(async_op=True, key=key) for key in range(100)]
        channel.put("x")
        os.kill(cluster.status(1)["pid"], signal.SIGKILL)
        since = time.monotonic()
        for work in works:
            with pytest.raises(
                NodeLost, match=r"channel 'doomed' lived there, .*: 100 gets of this process waited, 0 pu"
            ):
                work.wait(5)
        assert time.monotonic() - since < 2
        with pytest.raises(NodeLost):
            channel.put("y")
        channel.close()
        with Channel.create("doomed", cluster=cluster) as another:
            another.put("z")
            assert another.get() == "z"


def test_what_cannot_travel_is_named_and_nothing_is_put(channel: Channel) -> None:
    with pytest.raises(SerializationError, match=r"an item for channel 'channel-\d'.*item\['bad'\]"):
        channel.put({"bad": threading.Lock()})
    assert channel.empty()


# -- many, and much ---------------------------------------------------------------------------------------------------


def test_a_thousand_gets_on_a_thousand_keys_take_no_threads(channel: Channel, users: Any) -> None:
    waiting = users[1].get_on_many_keys(channel, 1000)
    assert channel.get("ready") == "waiting"
    for key in reversed(range(1000)):
        channel.put(key, key=key)
    ((order, threads),) = waiting.wait()
    assert order == list(reversed(range(1000)))
    assert threads <= 4


def test_a_fast_producer_is_held_to_max_bytes(cluster: Cluster, users: Any) -> None:
    limit = 48 << 20
    daemon = psutil.Process(cluster.status()["pid"])
    with Channel.create("bounded", max_bytes=limit) as channel:
        warming = users[0].produce(channel, 20, 1 << 20, 20)
        for _ in range(20):  # what the daemon needs once, it has from now on
            channel.get()
        warming.wait()
        before = held_by(daemon)
        works = [users[rank].produce(channel, 60, 1 << 20, 20) for rank in range(3)]
        most, seen = 0, []
        for _ in range(180):
            number, tensor = channel.get()
            seen.append(number)
            assert int(tensor[0]) == number % 251
            most = max(most, held_by(daemon))
        for work in works:
            work.wait()
        assert sorted(seen) == sorted(list(range(60)) * 3)
    assert most - before <= 1.2 * limit


def held_by(process: psutil.Process) -> int:
    """Bytes of a process's own memory and of the segments that it holds."""
    segments = {}
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            if "memfd:rlinf" in os.readlink(entry):
                status = entry.stat()
                segments[status.st_ino] = status.st_blocks * 512
        except FileNotFoundError:
            continue
    return int(process.memory_info().rss) + sum(segments.values())


def test_an_item_that_can_never_enter_is_an_error(cluster: Cluster, users: Any) -> None:
    with Channel.create("small", max_bytes=1000) as channel:
        with pytest.raises(ValueError, match=r"can never enter channel 'small', whose items may have 1000 bytes"):
            users[2].call(channel, "put", bytes(1001)).wait()
        channel.put(bytes(500))
        assert len(channel.get()) == 500


# -- distributed, and local -------------------------------------------------------------------------------------------


def test_a_key_of_a_distributed_channel_lives_where_it_was_first_touched(cluster: Cluster, users: Any) -> None:
    with Channel.create("spread", distributed=True) as channel:
        assert repr(channel) == "<Channel spread [2 nodes]>"
        users[2].put_all(channel, [1, 2, 3], key="far").wait()
        users[1].put_all(channel, [4, 5, 6], key="near").wait()
        assert cluster.status(0)["channels"]["spread"]["keys"] == 1
        assert cluster.status(1)["channels"]["spread"]["keys"] == 1
        assert users[0].get_all(channel, 3, key="far").wait() == [[1, 2, 3]]
        assert [channel.get("near") for _ in range(3)] == [4, 5, 6]
    with pytest.raises(ClosedError):
        channel.put("x", key="far")


def test_a_local_channel_is_a_queue_of_each_process(users: Any) -> None:
    channel = Channel.create("local", maxsize=1, local=True)
    assert channel.is_local
    item = object()
    channel.put(item)
    with pytest.raises(asyncio.QueueFull):
        channel.put_nowait(item)
    assert str(channel) == f"[WeightedItem(weight=0, item={item!r})]"
    assert channel.get() is item
    with pytest.raises(asyncio.QueueEmpty):
        channel.get_nowait()
    with pytest.raises(DeadlineExceeded, match="channel 'local' on this process"):
        channel.get(timeout=0.01)
    users[0].call(channel, "put", "there").wait()
    assert users[0].call(channel, "get").wait() == ["there"]
    assert users[1].call(channel, "empty").wait() == [True]
    channel.close()
    with pytest.raises(EndOfChannel):
        channel.get()
    with pytest.raises(ClosedError):
        channel.put("x")


async def test_a_local_channel_between_coroutines() -> None:
    channel = Channel.create("pipe", maxsize=2, local=True)

    async def produce() -> None:
        async with channel:
            for item in range(100):
                await channel.put(item, weight=1)

    async def consume() -> list[Any]:
        return [item async for item in channel]

    _, seen = await asyncio.gather(produce(), consume())
    assert seen == list(range(100))


async def test_a_local_get_that_is_cancelled_leaves_the_item() -> None:
    channel = Channel.create("given-back", local=True)
    task = asyncio.create_task(channel.get())
    await asyncio.sleep(0)
    channel.put("a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await channel.get(timeout=1) == "a"


async def test_a_coroutine_that_waits_for_long_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "SLOW", 0.05)
    async with (
        Cluster(num_nodes=1, log_to_driver=False) as cluster,
        Channel.create("slow", cluster=cluster) as channel,
    ):
        for _ in range(2):
            with pytest.raises(DeadlineExceeded):
                await channel.get(timeout=0.3)
    assert [record.getMessage() for record in caplog.records if "still waiting" in record.getMessage()] == [
        "still waiting after 0 s for get() from channel 'slow' on node 0 (key 'default_queue')"
    ]

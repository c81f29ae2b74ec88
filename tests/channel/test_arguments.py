"""Arguments: what a channel takes for a weight and for a timeout, and what it refuses before anything is asked."""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from rlinf_async import Channel, Cluster, DeadlineExceeded, WeightedItem
from rlinf_async.worker import Worker

pytestmark = pytest.mark.shared_cluster

WAYS = {"near": {}, "far": {"node_rank": 1}, "distributed": {"distributed": True}, "local": {"local": True}}


@pytest.fixture(params=list(WAYS.values()), ids=list(WAYS))
def anywhere(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Channel]:
    with Channel.create("anywhere", **request.param) as channel:
        yield channel


class Size(enum.IntEnum):
    LARGE = 3


WHOLE = {
    "numpy": np.int64(3),
    "numpy array": np.array(3),
    "tensor": torch.tensor(3),
    "enum": Size.LARGE,
    "bool": True,
    "most": 2**63 - 1,
}
NO_WEIGHTS = {"1.5": 1.5, "'a'": "a", "None": None, "tensor(1.5000)": torch.tensor(1.5)}
NO_AMOUNTS = {"-1": -1, "9223372036854775808": 2**63, str(2**70): 2**70, "-3": np.int64(-3)}
NO_SECONDS = {"-1": -1, "-0.001": -0.001, "nan": math.nan, "-inf": -math.inf}


# ---- weights


@pytest.mark.parametrize("weight", WHOLE.values(), ids=WHOLE)
def test_whatever_is_a_whole_number_is_a_weight(anywhere: Channel, weight: Any) -> None:
    anywhere.put("item", weight=weight)
    anywhere.put_nowait("other", weight, "key")
    assert anywhere.peek_all() == [WeightedItem(int(weight), "item")]
    assert type(anywhere.peek_all()[0].weight) is int
    assert anywhere.get_batch(weight) == ["item"]
    assert anywhere.get_batch(weight, "key", timeout=0) == ["other"]


def refusals(error: type[Exception], numbers: dict[str, Any]) -> list[Any]:
    return [pytest.param(error, said, number, id=said) for said, number in numbers.items()]


@pytest.mark.parametrize(
    ("error", "said", "weight"), refusals(TypeError, NO_WEIGHTS) + refusals(ValueError, NO_AMOUNTS)
)
def test_what_is_no_weight_is_refused_and_nothing_has_been_asked(
    anywhere: Channel, error: type[Exception], said: str, weight: Any
) -> None:
    takes = r"takes a whole number.*, got "
    for put in anywhere.put, anywhere.put_nowait:
        with pytest.raises(error) as caught:
            put("item", weight=weight)
        assert caught.match(rf"put\(\) to channel 'anywhere': weight= {takes}")
        assert str(caught.value).endswith(f"got {said}") or isinstance(weight, np.generic)
    with pytest.raises(error, match=rf"get_batch\(\) from channel 'anywhere': target_weight= {takes}"):
        anywhere.get_batch(weight)
    anywhere.put("next", weight=1, timeout=30)
    assert anywhere.qsize() == 1
    assert anywhere.get_batch(1, timeout=30) == ["next"]


@pytest.mark.parametrize("way", ["call", "acall", "later"])
def test_a_worker_that_puts_no_weight_hears_so_and_goes_on(channel: Channel, users: Any, way: str) -> None:
    for user in users[0], users[2]:
        do = getattr(user, way)
        for weight in (1.5, "a", None):
            with pytest.raises(TypeError, match=r"weight= takes a whole number, got"):
                do(channel, "put", "item", weight).wait(timeout=30)
            with pytest.raises(TypeError, match=r"target_weight= takes a whole number, got"):
                do(channel, "get_batch", weight).wait(timeout=30)
        assert do(channel, "put", "next", np.int64(2)).wait(timeout=30) == [None]
        assert do(channel, "get_batch", 2).wait(timeout=30) == [["next"]]


async def test_in_a_coroutine_the_call_itself_refuses_and_what_else_is_asked_in_that_turn_is_done(
    cluster: Cluster,
) -> None:
    async with Channel.create("turn", cluster=cluster) as channel:
        await channel.put("first")
        three: Any = np.int64(3)
        one: Any = torch.tensor(1)
        half: Any = 1.5
        works = [channel.put("before", weight=three), channel.get()]
        wrongs: list[Callable[[], Any]] = [
            lambda: channel.put("item", weight=half),
            lambda: channel.get_batch(2**70),
            lambda: channel.put("item", timeout=-1),
            lambda: channel.put("item", key=[]),
        ]
        for wrong in wrongs:
            with pytest.raises((TypeError, ValueError)):
                wrong()
        works += [channel.put("after", weight=one), channel.get_batch(4)]
        async with asyncio.timeout(30):
            assert [await work for work in works] == [None, "first", None, ["before", "after"]]


@pytest.mark.parametrize("node", [0, 1], ids=["near", "far"])
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_a_worker_whose_put_a_daemon_can_make_nothing_of_is_told(users: Any, node: int, together: bool) -> None:
    # Where there is no bound, a put may have been promised room: it is accepted before the daemon has looked at it.
    with Channel.create("bounded", maxsize=8, node_rank=node) as channel:
        for user in users[0], users[2]:
            put = user.put_unchecked_together if together else user.put_unchecked
            ((first, refused, also_refused, last),) = put(channel, "x", [1, 1.5, -1, 2]).wait(timeout=60)
            assert (first, last) == ("accepted", "accepted")
            assert refused.startswith("ValueError: channel 'bounded' can make nothing of a put")
            assert "weight 1.5" in refused
            assert "weight -1" in also_refused
            assert user.call(channel, "get_batch", 3).wait(timeout=30) == [["x", "x"]]


# ---- timeouts


def test_with_a_timeout_of_0_what_is_there_is_had_wherever_the_channel_is(anywhere: Channel) -> None:
    assert anywhere.put("a", timeout=0) is None
    assert anywhere.get(timeout=0) == "a"
    with pytest.raises(DeadlineExceeded, match=r"get\(\) from channel 'anywhere' .* was not done within 0 s"):
        anywhere.get(timeout=0)
    for weight in (1, 2):
        anywhere.put(weight, weight=weight)
    with pytest.raises(DeadlineExceeded, match=r"get_batch\(\) from channel 'anywhere' .* was not done within 0 s"):
        anywhere.get_batch(4, timeout=0)
    assert anywhere.get_batch(3, timeout=0.0) == [1, 2]
    assert anywhere.empty()


@pytest.mark.parametrize("way", [{}, {"node_rank": 1}, {"local": True}], ids=["near", "far", "local"])
def test_with_a_timeout_of_0_a_put_waits_for_no_room(cluster: Cluster, way: dict[str, Any]) -> None:
    with Channel.create("full", maxsize=1, **way) as channel:
        channel.put("a", timeout=0)
        with pytest.raises(DeadlineExceeded, match=r"put\(\) to channel 'full' .* was not done within 0 s"):
            channel.put("b", timeout=0)
        assert channel.get_batch(0, timeout=0) == ["a"]
        assert channel.empty()


async def test_a_channel_that_opens_takes_its_time_with_a_timeout_of_0_too(cluster: Cluster) -> None:
    channel = Channel.create("opening", cluster=cluster)
    put, got = channel.put("a", timeout=0), channel.get(timeout=0)
    assert await put is None
    assert await got == "a"
    assert (await Channel.connect("opening", cluster=cluster, timeout=0)).name == "opening"
    await channel.close()


def test_a_channel_that_exists_is_found_with_a_timeout_of_0(channel: Channel, cluster: Cluster) -> None:
    assert Channel.connect(channel.name, timeout=0).name == channel.name
    with pytest.raises(DeadlineExceeded, match=rf"no channel named 'never' within 0 s; there are: .*{channel.name}"):
        Channel.connect("never", timeout=0)


@pytest.mark.parametrize(("said", "timeout"), NO_SECONDS.items(), ids=NO_SECONDS)
def test_a_timeout_that_is_negative_or_no_number_is_refused_at_once(
    anywhere: Channel, said: str, timeout: float
) -> None:
    for method in (anywhere.get, anywhere.get_batch, lambda **timeout: anywhere.put("item", **timeout)):
        with pytest.raises(ValueError, match=rf"channel 'anywhere': timeout= takes seconds, got {said}$"):
            method(timeout=timeout)
    with pytest.raises(ValueError, match=rf"channel 'anywhere': timeout= takes seconds, got {said}$"):
        Channel.connect("anywhere", timeout=timeout)
    assert anywhere.empty()


def test_a_timeout_is_any_real_number_and_no_text(anywhere: Channel) -> None:
    timeouts: list[Any] = [5, np.float32(5), torch.tensor(5.0), math.inf]
    for timeout in timeouts:
        anywhere.put("item", timeout=timeout)
        assert anywhere.get(timeout=timeout) == "item"
    with pytest.raises(TypeError, match=r"get\(\) from channel 'anywhere': timeout= takes seconds, got '5'"):
        anywhere.get(timeout="5")  # type: ignore[arg-type]


# ---- sizes


def test_sizes_are_whole_numbers(cluster: Cluster) -> None:
    two: Any = np.int64(2)
    mega: Any = np.int64(1 << 20)
    with Channel.create("sized", two, max_bytes=mega) as channel:
        assert channel.maxsize == 2
        assert type(channel.maxsize) is int
    for wrong in (1.5, "3", None):
        with pytest.raises(TypeError, match=r"channel 'sized': maxsize= takes a whole number, got"):
            Channel.create("sized", wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"channel 'sized': max_bytes= takes a whole number, got"):
            Channel.create("sized", max_bytes=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"channel 'sized': max_bytes= takes a whole number from 0 .*, got -1"):
        Channel.create("sized", max_bytes=-1)


# ---- what stands in the place of something else


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("odd", 0, 4), r"distributed= takes True or False, got 4 \(for node_rank= write its name\)"),
        (("odd", 0, False, "0"), "node_rank= takes a whole number, got '0'"),
        (("odd", 0, False, -1), "node_rank= takes a whole number from 0"),
        (("odd", 0, False, 0, 1 << 20), r"local= takes True or False, got 1048576 \(for max_bytes= write its name\)"),
    ],
)
def test_an_argument_in_the_place_of_another_is_refused(cluster: Cluster, arguments: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"channel 'odd': {text}"):
        Channel.create(*arguments)
    with pytest.raises((TypeError, ValueError), match=f"channel 'odd': {text}"):
        object.__new__(Worker).create_channel(*arguments)
    with pytest.raises(DeadlineExceeded):
        Channel.connect("odd", timeout=0).qsize()


def test_one_node_is_not_two(cluster: Cluster) -> None:
    with pytest.raises(TypeError, match="a channel has one node: node_rank=1 or node_id=0"):
        object.__new__(Worker).create_channel("odd", node_rank=1, node_id=0)


def test_a_timeout_in_the_place_of_a_worker_is_refused(cluster: Cluster) -> None:
    with pytest.raises(TypeError, match=r"channel 'odd': current_worker is 0\.5: write timeout="):
        Channel.connect("odd", 0.5)

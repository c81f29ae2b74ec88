"""Batches between real groups of two and three ranks: planned, from worker to worker, and without fixed partners."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker
from tests._support.exchanges import Talker

pytestmark = pytest.mark.shared_cluster
LOCAL_NODES = 2

ROWS = 12


class Router(Talker):
    """Has rows of a batch, and of a tag maybe."""

    def __init__(self, serves: str | None = None) -> None:
        super().__init__()
        self.batch_router: dict[str, list[str]] = {} if serves is None else {serves: []}


@pytest.fixture(scope="module")
def env(cluster: Cluster) -> Iterator[Any]:
    group = Router.create_group().launch(cluster, placement=NodePlacementStrategy([0, 1]), name="env")
    yield group
    group.close()


@pytest.fixture(scope="module")
def rollout(cluster: Cluster) -> Iterator[Any]:
    group = Router.create_group("step").launch(cluster, placement=NodePlacementStrategy([0, 1, 1]), name="rollout")
    yield group
    group.close()


@pytest.fixture
def channel(cluster: Cluster) -> Iterator[Channel]:
    with Channel.create("routes", cluster=cluster) as channel:
        yield channel


def rows_of(worker: Worker, world_size: int) -> torch.Tensor:
    return torch.arange(ROWS).chunk(world_size)[worker._rank]


def send_rows(worker: Router, channel: Channel | None, options: dict[str, Any]) -> None:
    rows = rows_of(worker, 2)
    worker.send_to("rollout", channel, {"obs": rows, "text": [str(int(row)) for row in rows], "step": 7}, **options)


def recv_rows(worker: Router, channel: Channel | None, options: dict[str, Any]) -> Any:
    batch = worker.recv_from("env", channel, batch_size=ROWS, **options)
    return batch["obs"].tolist(), batch["text"], batch["step"]


async def send_rows_in_a_coroutine(worker: Router, channel: Channel | None, options: dict[str, Any]) -> None:
    rows = rows_of(worker, 2)
    await worker.send_to("rollout", channel, {"obs": rows, "text": list(map(str, rows.tolist())), "step": 7}, **options)


async def recv_rows_in_a_coroutine(worker: Router, channel: Channel | None, options: dict[str, Any]) -> Any:
    batch = await worker.recv_from("env", channel, batch_size=ROWS, **options)
    return batch["obs"].tolist(), batch["text"], batch["step"]


EXPECTED = [
    (list(range(first, first + 4)), [str(row) for row in range(first, first + 4)], 7) for first in range(0, ROWS, 4)
]


@pytest.mark.parametrize("p2p", [False, True], ids=["channel", "p2p"])
@pytest.mark.parametrize("given", [None, ROWS], ids=["inferred", "given"])
def test_a_batch_arrives_spread_evenly_in_the_order_of_its_rows(
    env: Any, rollout: Any, channel: Channel, p2p: bool, given: int | None
) -> None:
    options = {"enable_p2p": p2p, "tag": "obs", "route_key": ("stage", 1)}
    way = None if p2p else channel
    received = rollout.do(recv_rows, way, options)
    env.do(send_rows, way, {**options, "batch_size": given}).wait(20)
    assert received.wait(20) == EXPECTED
    received = rollout.ado(recv_rows_in_a_coroutine, way, options)
    env.ado(send_rows_in_a_coroutine, way, {**options, "batch_size": given}).wait(20)
    assert received.wait(20) == EXPECTED


async def ask_and_wait(worker: Router, channel: Channel, rounds: int) -> list[list[int]]:
    answers = []
    for number in range(rounds):
        rows = rows_of(worker, 2) + 100 * number
        await worker.send_to("rollout", channel, rows, tag="step", mode="train", decoupled_mode=True)
        answer = await worker.recv_from("rollout", channel, tag="step", decoupled_mode=True)
        answers.append(answer.tolist())
    return answers


async def serve(worker: Router, channel: Channel) -> int:
    served = 0
    while True:
        work = worker.recv_from("env", channel, tag="step", decoupled_mode=True)
        try:
            rows = await work
        except asyncio.CancelledError:
            return served
        assert len(rows) == 2, "one shard"
        served += len(rows)
        await asyncio.sleep(0.001 * worker._rank)
        await worker.send_to("env", channel, rows * 2, tag="step", decoupled_mode=True)


def test_without_fixed_partners_every_answer_goes_back_to_where_the_question_came_from(
    env: Any, rollout: Any, channel: Channel
) -> None:
    serving = rollout.ado(serve, channel)
    answers = env.ado(ask_and_wait, channel, 5).wait(30)
    assert answers == [
        [[2 * (row + 100 * number) for row in range(first, first + 6)] for number in range(5)] for first in (0, 6)
    ]
    serving.cancel()
    assert rollout.do(open_questions).wait() == [[], [], []]


def open_questions(worker: Router) -> list[str]:
    return worker.batch_router["step"]


def recv_shards(worker: Router, channel: Channel) -> tuple[int, list[str]]:
    rows = worker.recv_from("env", channel, tag="step", decoupled_mode=True, batch_size=ROWS, recv_queue_size=1)
    return len(rows), worker.batch_router["step"]


def answer_shards(worker: Router, channel: Channel) -> None:
    worker.send_to("env", channel, [0] * 4, tag="step", decoupled_mode=True)


def ask_in_shards(worker: Router, channel: Channel) -> None:
    worker.send_to("rollout", channel, rows_of(worker, 2), tag="step", mode="eval", decoupled_mode=True)


def recv_answers(worker: Router, channel: Channel) -> list[int]:
    answers: list[int] = worker.recv_from("rollout", channel, tag="step", decoupled_mode=True)
    return answers


def test_a_queue_size_says_how_many_shards_are_taken_at_once(env: Any, rollout: Any, channel: Channel) -> None:
    env.do(ask_in_shards, channel).wait(20)
    first = rollout.do(recv_shards, channel).wait(20)
    rest = rollout.do(recv_shards, channel).wait(20)
    assert [rows for rows, _ in first + rest] == [2] * 6
    assert sorted(index for _, indices in rest for index in indices) == [
        f"{rank}_{number}_eval_step" for rank in (0, 1) for number in (0, 1, 2)
    ]
    rollout.do(answer_shards, channel).wait(20)
    assert env.do(recv_answers, channel).wait(20) == [[0] * 6] * 2


def send_wrongly(worker: Router, channel: Channel | None, options: dict[str, Any]) -> None:
    worker.send_to("rollout", channel, torch.zeros(3), **options)


def test_what_cannot_be_meant_is_an_error_before_anything_is_sent(env: Any, channel: Channel) -> None:
    first = env.execute_on(0)
    with pytest.raises(ValueError, match="a channel is needed for what goes to or comes from 'rollout'"):
        first.do(send_wrongly, None, {}).wait()
    with pytest.raises(AssertionError, match="enable_p2p is not supported in decoupled_mode"):
        first.do(send_wrongly, None, {"enable_p2p": True, "decoupled_mode": True}).wait()
    with pytest.raises(ValueError, match=r"the batch has 3 rows, and the parts .* have 6 together"):
        first.do(send_wrongly, channel, {"batch_size": ROWS}).wait()
    with pytest.raises(ValueError, match="a batch of 7 cannot be split evenly into 2 parts"):
        first.do(send_wrongly, channel, {"batch_size": 7}).wait()
    with pytest.raises(ValueError, match="split_fn has made 1 parts of the batch, and 2 are needed"):
        first.do(send_wrongly, channel, {"batch_size": ROWS, "split_fn": one_part}).wait()


def one_part(data: Any, sizes: Any) -> list[Any]:
    return [data]

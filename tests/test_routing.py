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

ROWS = 12


class Router(Talker):
    """Has rows of a batch, and of a tag maybe."""

    def __init__(self, serves: str | None = None) -> None:
        super().__init__()
        self.batch_router: dict[str, list[str]] = {} if serves is None else {serves: []}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
        yield cluster


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


async def send_many(worker: Router, channel: Channel, count: int) -> None:
    works = [worker.send_to("latecomer", channel, torch.full((1,), number)) for number in range(count)]
    for work in works:
        await work


def recv_many(worker: Router, channel: Channel, count: int) -> list[int]:
    return [int(worker.recv_from("env", channel, batch_size=2)[0]) for _ in range(count)]


def test_what_is_sent_to_a_group_that_does_not_exist_yet_follows_in_order(
    cluster: Cluster, env: Any, channel: Channel
) -> None:
    sending = env.ado(send_many, channel, 10)
    for size in (1, 2):  # and that again, when another one of the name is of another size
        late = Router.create_group().launch(cluster, placement=NodePlacementStrategy([0] * size), name="latecomer")
        if size == 2:  # that name was closed: who looks for it before it is there again is told so
            late.wait_ready()
            sending = env.ado(send_many, channel, 10)
        assert late.do(recv_many, channel, 10).wait(20) == [list(range(10))] * size
        sending.wait(20)
        late.close()


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


def send_in_mode(worker: Router, channel: Channel) -> None:
    worker.send_to("rollout", channel, rows_of(worker, 2), mode="train", tag="obs")


def recv_in_mode(worker: Router, channel: Channel) -> list[int]:
    rows: list[int] = worker.recv_from("env", channel, tag="train_obs")
    return rows


def test_a_mode_and_a_tag_are_met_by_both_in_one_tag(env: Any, rollout: Any, channel: Channel) -> None:
    env.do(send_in_mode, channel).wait(20)
    assert list(map(len, rollout.do(recv_in_mode, channel).wait(20))) == [4, 4, 4]


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


def recv_wrong_rows(worker: Router, channel: Channel) -> None:
    worker.recv_from("env", channel, batch_size=2 * ROWS)


def test_rows_that_are_not_as_many_as_expected_are_an_error(env: Any, rollout: Any, channel: Channel) -> None:
    env.do(send_rows, channel, {}).wait(20)
    # Of whichever rank fails first: what each gets from one rank is all of that one's, or half of it.
    sent = r"what rank \d of 'env' has sent has (4 rows, and 8|2 rows, and 4) are expected"
    with pytest.raises(ValueError, match=sent):
        rollout.do(recv_wrong_rows, channel).wait(20)


async def cancel_a_reception(worker: Router, channel: Channel) -> Any:
    task = asyncio.create_task(_receive(worker, channel))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


async def _receive(worker: Router, channel: Channel) -> Any:
    return await worker.recv_from("env", channel, batch_size=ROWS)


def test_a_reception_that_is_cancelled_takes_nothing(env: Any, rollout: Any, channel: Channel) -> None:
    for _ in range(2):  # before it is known how large the other group is, perhaps, and after
        assert rollout.ado(cancel_a_reception, channel).wait(20) == [True] * 3
    env.do(send_rows, channel, {}).wait(20)
    assert rollout.do(recv_rows, channel, {}).wait(20) == EXPECTED

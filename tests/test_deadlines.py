"""Deadlines of composed operations: whoever waits for the whole sees to the deadlines of its parts."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rlinf_async import Channel, Cluster, DeadlineExceeded, NodePlacementStrategy, Worker, follow, wait_all
from rlinf_async._core import clock
from rlinf_async._group.wait_all import _All
from rlinf_async.testing import SimCluster, monotonic
from rlinf_async.work import Work

SLACK_S = 0.1
NAME_TIMEOUT_S = 120
"""After which a name is not waited for any more, whatever the deadline: ``RLINF_NAME_TIMEOUT_S``."""
ROWS = {"obs": torch.zeros(2, 3)}
KEY_OF_ROWS = ("scheduler_route", "rollout", "env", "default", "", 0, 0)

Operation = Callable[[Any, Any, Any], Any]

OPERATIONS: dict[str, Operation] = {
    "get": lambda _, some, options: some["empty"].get(**options),
    "put": lambda _, some, options: some["full"].put(1, **options),
    "get_batch": lambda _, some, options: some["empty"].get_batch(5, **options),
    "get_many": lambda _, some, options: some["empty"].get_many(5, **options),
    "recv": lambda worker, _, options: worker.recv("env", 0, **options),
    "recv_tensor": lambda worker, _, options: worker.recv_tensor(torch.zeros(1), "env", 0, **options),
    "recv, nobody": lambda worker, _, options: worker.recv("nobody", 0, **options),
    "send": lambda worker, _, options: worker.send(b"x" * (80 << 20), "env", 1, **options),
    "send, nobody": lambda worker, _, options: worker.send(1, "nobody", 0, **options),
    "broadcast": lambda worker, _, options: worker.broadcast(
        None, groups=[("env", [0]), ("rollout", [0])], src=("env", 0), **options
    ),
    "broadcast, nobody": lambda worker, _, options: worker.broadcast(
        1, groups=[("rollout", [0]), ("nobody", [0])], src=("rollout", 0), **options
    ),
    "recv_from": lambda worker, some, options: worker.recv_from("env", some["empty"], tag="x", **options),
    "recv_from, p2p": lambda worker, _, options: worker.recv_from("env", None, enable_p2p=True, **options),
    "recv_from, decoupled": lambda worker, some, options: worker.recv_from(
        "env", some["empty"], batch_size=2, decoupled_mode=True, **options
    ),
    "recv_from, nobody": lambda worker, some, options: worker.recv_from("nobody", some["empty"], **options),
    "send_to": lambda worker, some, options: worker.send_to("env", some["full"], ROWS, **options),
    "send_to, nobody": lambda worker, some, options: worker.send_to("nobody", some["empty"], ROWS, **options),
    "send_to, nobody, p2p": lambda worker, _, options: worker.send_to(
        "nobody", None, ROWS, enable_p2p=True, **options
    ),
    "wait_version": lambda worker, _, options: worker.following.wait_version(1, options["timeout"]),
}  # fmt: skip

WAYS = ("itself", "then", "all", "nested")


def compose(work: Work[Any], way: str, some: Any) -> Any:
    if way == "then":
        return work.then(lambda value: value)
    if way == "itself":
        return work
    others = [some["other"].get(async_op=True), some["soon"].get(async_op=True, timeout=0.01)]
    return wait_all(others[0], work, others[1]) if way == "all" else wait_all(others[0].then(str), work.then(str))


class Env(Worker):
    pass


class Rollout(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.batch_router: dict[str, Any] = {}

    def enter(self) -> None:
        model = {"w": torch.zeros(2)}
        self.following = follow(model, of="env", name="followed")

    def plain(self, some: Any, name: str, way: str, timeout: float) -> tuple[float, str]:
        began = monotonic()
        options = {"timeout": timeout} if way == "itself" else {"timeout": timeout, "async_op": True}
        try:
            work = OPERATIONS[name](self, some, options)
            if way != "itself":
                work = compose(work, way, some)
                work.wait()
        except DeadlineExceeded as error:
            return monotonic() - began, str(error)
        return -1.0, "it has ended"

    async def coroutine(self, some: Any, name: str, way: str, timeout: float) -> tuple[float, str]:
        began = monotonic()
        try:
            await compose(OPERATIONS[name](self, some, {"timeout": timeout}), way, some)
        except DeadlineExceeded as error:
            return monotonic() - began, str(error)
        return -1.0, "it has ended"


@pytest.mark.parametrize("seed", range(4))
def test_every_composed_operation_keeps_its_deadline(seed: int) -> None:
    draws = random.Random(seed)

    async def main() -> list[Any]:
        async with Cluster(log_to_driver=False) as cluster:
            some = {name: await Channel.create(name) for name in ("empty", "other", "soon")}
            some["full"] = await Channel.create("full", maxsize=1)
            await some["full"].put(0)
            await some["full"].put(0, key=KEY_OF_ROWS)
            Env.create_group().launch(cluster, NodePlacementStrategy([0, 1]), name="env")
            group: Any = Rollout.create_group().launch(cluster, NodePlacementStrategy([1]), name="rollout")
            await group.enter()
            found = []
            for name in OPERATIONS:
                for form in ("plain", "coroutine"):
                    way = draws.choice(WAYS)
                    if name.startswith(("send_to", "recv_from")) and way in ("then", "nested"):
                        way = "all"
                    if name == "wait_version" and form == "plain":
                        way = "itself"
                    if way in ("all", "nested"):
                        await some["soon"].put(1)
                    timeout = draws.choice([0, 0.3, 7, 61, 400, 5000])
                    async with asyncio.timeout(timeout + 600):
                        (result,) = await getattr(group, form)(some, name, way, timeout)
                    found.append((name, form, way, timeout, *result))
            return found

    for name, form, way, timeout, seconds, error in SimCluster(nodes=2, seed=seed).run(main):
        case = f"{name}, {form}, {way}, {timeout} s: {error}, after {seconds} s"
        if "nobody" in name:
            assert 0 <= seconds <= min(timeout, NAME_TIMEOUT_S) + SLACK_S, case
        else:
            assert timeout - SLACK_S <= seconds <= timeout + SLACK_S, case
            assert f"was not done within {timeout} s" in error, case


def test_a_send_whose_time_is_over_is_not_made_once_its_group_is_there() -> None:
    async def main() -> list[Any]:
        async with Cluster(log_to_driver=False) as cluster:
            channel = await Channel.create("late", maxsize=1)
            group: Any = Rollout.create_group().launch(cluster, NodePlacementStrategy([0]), name="rollout")
            some = {"empty": channel, "full": channel}
            (first,) = await group.coroutine(some, "send_to", "itself", 2)
            Env.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="env")
            (again,) = await group.coroutine(some, "recv_from", "itself", 3)
            return [first, again, await channel.qsize(KEY_OF_ROWS)]

    (seconds, error), (again, _), size = SimCluster(seed=1).run(main)
    assert seconds == pytest.approx(2, abs=SLACK_S)
    assert "there was no group named 'env' within 2 s" in error
    assert again == pytest.approx(3, abs=SLACK_S)
    assert size == 0


# -- the wait itself --------------------------------------------------------------------------------------------------


def limited(timeout: float | None) -> Work[Any]:
    work: Work[Any] = Work()
    work._limit(timeout)
    return work


def late_whole(timeouts: tuple[float | None, ...], in_time: int) -> tuple[Work[Any], Work[Any]]:
    """A whole, of whose parts the first ones end in time; and the next part."""
    parts = [limited(timeout) for timeout in timeouts]
    whole = _All(parts)
    whole.begin()
    for part in parts[:in_time]:
        timer = threading.Timer(0.02, part._settle)
        timer.daemon = True
        timer.start()
    return whole, parts[in_time]


@pytest.mark.parametrize(
    ("timeouts", "timeout", "ends"),
    [((0.06, 0.4), None, 0.4), ((0.06, 0.3, 0.4), 5, 0.4), ((0.06, None), 0.4, 0.4), ((0.06, 0.5), 0.3, 0.3)],
)
@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_deadline_that_a_part_has_kept_leaves_those_of_the_others_and_of_the_caller(
    timeouts: tuple[float | None, ...], timeout: float | None, ends: float, in_thread: bool
) -> None:
    began = clock.monotonic()
    whole, last = late_whole(timeouts, len(timeouts) - 1)
    try:
        with pytest.raises(DeadlineExceeded):
            async with asyncio.timeout(3):
                await (asyncio.to_thread(whole.wait, timeout) if in_thread else whole.async_wait(timeout))
        assert ends - 0.01 <= clock.monotonic() - began < ends + 0.25
        assert last.done() is (timeouts[-1] == ends)
    finally:
        last._settle()

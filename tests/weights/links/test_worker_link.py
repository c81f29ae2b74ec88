"""Weights from a worker to workers of its own machine and of another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlinf_async import Cluster
from tests.weights.weight_workers import Launch, Rollout, Trainer, begin

pytestmark = pytest.mark.shared_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
        yield cluster


def test_what_comes_from_another_machine_comes_straight_to_its_place(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 1, 1)
    begin(trainer, rollout, 2)
    rollout.count_copies().wait(10)
    for version in (1, 2, 3):
        assert trainer.publish(version).wait(60) == [{0: "applied", 1: "applied"}]
        assert rollout.values().wait(60) == [(version, [version])] * 2
    assert rollout.copies().wait(10) == [0, 0]
    trainer.end().wait(10)
    rollout.end().wait(10)


@pytest.mark.parametrize("node", [0, 1])
def test_a_worker_that_holds_something_else_than_was_sent_is_named(launch: Launch, node: int) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", node)
    begin(trainer, rollout, 1, apply="copy" if node else "map", verify="sha256")
    assert trainer.publish(1).wait(60) == [{0: "applied"}]
    rollout.spoil("b.c").wait(10)
    ((found,),) = (outcome.values() for outcome in trainer.publish(2).wait(60))
    assert found.startswith("WeightMismatch: 'b.c' of version 2 is not what was sent")
    assert trainer.publish(3).wait(60) == [{0: "applied"}]
    assert rollout.values().wait(60) == [(3, [3])]
    trainer.end().wait(10)
    rollout.end().wait(10)


def test_what_the_workers_send_each_other_besides_is_not_disturbed(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 1)
    begin(trainer, rollout, 1)
    words = ["one", {"two": 2}, b"three" * 1000]
    hearing = rollout.on_message("trainer", 6)
    trainer.talk("rollout", words).wait(10)
    trainer.publish(1).wait(60)
    trainer.talk("rollout", words).wait(10)
    assert hearing.wait(30) == [words * 2]
    assert rollout.values().wait(10) == [(1, [1])]
    trainer.end().wait(10)
    rollout.end().wait(10)

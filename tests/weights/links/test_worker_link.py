"""Weights from a worker to workers of its own machine and of another one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from rlinf_async import Cluster
from tests.weights.weight_workers import Launch, Rollout, Trainer, begin

pytestmark = pytest.mark.shared_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
        yield cluster


@pytest.mark.parametrize("apply", ["copy", "map"])
def test_all_workers_have_each_version_and_one_of_each_machine_has_received_it(launch: Launch, apply: str) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 0, 0, 1, 1)
    begin(trainer, rollout, 4, apply=apply)
    for version in range(1, 6):
        assert trainer.publish(version).wait(60) == [dict.fromkeys(range(4), "applied")]
        assert rollout.values().wait(60) == [(version, [version])] * 4
    assert rollout.is_host().wait(10) == [False, False, True, False]
    trainer.end().wait(10)
    rollout.end().wait(10)


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


def test_what_has_left_and_is_not_published_is_seen_nowhere(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 0, 1, 1)
    begin(trainer, rollout, 3)
    for version, value in ((1, 1), (2, 2), (3, 3)):
        assert trainer.publish(value).wait(60) == [dict.fromkeys(range(3), "applied")]
        assert rollout.values().wait(60) == [(version, [value])] * 3
        trainer.cancel_when_packed(-7).wait(30)
        assert rollout.values().wait(60) == [(version, [value])] * 3
    trainer.end().wait(10)
    rollout.end().wait(10)


def test_what_the_workers_send_each_other_besides_is_not_disturbed(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 1)
    begin(trainer, rollout, 1)
    words = ["one", {"two": 2}, b"three" * 1000]
    hearing = rollout.hear("trainer", 6)
    trainer.talk("rollout", words).wait(10)
    trainer.publish(1).wait(60)
    trainer.talk("rollout", words).wait(10)
    assert hearing.wait(30) == [words * 2]
    assert rollout.values().wait(10) == [(1, [1])]
    trainer.end().wait(10)
    rollout.end().wait(10)


@pytest.mark.parametrize("first", ["trainer", "rollout", "both"])
def test_both_ends_are_closed_and_opened_again_under_the_same_name(launch: Launch, first: str) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 0, 1)
    for round in (1, 2, 3):
        begin(trainer, rollout, 2)
        assert trainer.publish(round).wait(60) == [{0: "applied", 1: "applied"}]
        assert [values[1] for values in rollout.values().wait(60)] == [[round]] * 2
        if first == "rollout":
            rollout.end().wait(10)
        ending = trainer.end()
        if first == "trainer":
            ending.wait(10)
        if first != "rollout":
            rollout.end().wait(10)
        ending.wait(10)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_worker_that_dies_fails_with_the_frameworks_word_and_the_others_go_on(launch: Launch, victim: int) -> None:
    """The first of two on the trainer's machine; the one that receives for its machine."""
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 0, 0, 1, 1)
    begin(trainer, rollout, 4)
    trainer.publish(1).wait(60)
    os.kill(rollout.pid().wait(10)[victim], signal.SIGKILL)
    (said,) = trainer.publish(2).wait(60)
    assert said.pop(victim).startswith(f"WorkerDied: rank {victim} of group 'rollout'")
    assert set(said.values()) == {"applied"}
    others = [rank for rank in range(4) if rank != victim]
    assert rollout.execute_on(*others).values().wait(60) == [(2, [2])] * 3
    trainer.end().wait(10)


def test_if_the_one_that_receives_for_its_machine_dies_half_way_another_one_receives(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 1, 1, 1)
    begin(trainer, rollout, 3)
    trainer.publish(1).wait(60)
    rollout.execute_on(0).die_when_something_comes().wait(10)
    (said,) = trainer.publish(2).wait(60)
    assert said.pop(0).startswith("WorkerDied: rank 0 of group 'rollout'")
    assert said == {1: "applied", 2: "applied"}
    assert rollout.execute_on(1, 2).values().wait(60) == [(2, [2])] * 2
    trainer.end().wait(10)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_of_another_machine_that_is_stopped_is_named_and_whole_again_later(
    launch: Launch, victim: int
) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 1, 1)
    begin(trainer, rollout, 2)
    trainer.publish(1).wait(60)
    pid = rollout.pid().wait(10)[victim]
    other = 1 - victim
    os.kill(pid, signal.SIGSTOP)
    try:
        (said,) = trainer.publish(2, timeout=2).wait(60)
        assert said[victim].startswith("DeadlineExceeded: receiver")
        (said,) = trainer.publish(3, timeout=2).wait(60)
        assert said[victim].startswith("DeadlineExceeded: receiver")
        assert said[other] == "applied", "if it was the one that receives, the other has taken its place"
        assert rollout.execute_on(other).values().wait(60) == [(3, [3])]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert trainer.publish(4).wait(60) == [{0: "applied", 1: "applied"}]
    assert rollout.values().wait(60) == [(4, [4])] * 2
    trainer.end().wait(10)
    rollout.end().wait(10)


@pytest.mark.parametrize("node", [0, 1])
def test_a_late_worker_gets_the_latest_version_at_once(launch: Launch, node: int) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", node)
    begin(trainer, rollout, 1)
    for version in (1, 2):
        trainer.publish(version).wait(60)
    late = launch(Rollout, "late", node)
    beginning = late.begin("trainer")
    trainer.add(1, "late", 0).wait(60)
    beginning.wait(60)
    assert late.wait_version(2).wait(60) == [(2, [2])]
    assert trainer.publish(3).wait(60) == [{0: "applied", 1: "applied"}]
    trainer.end().wait(10)
    rollout.end().wait(10)
    late.end().wait(10)

"""Chains of four nodes, played by this machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from rlinf_async import Cluster
from tests.weights.weight_workers import Launch, Rollout, Trainer, begin as begin_weights

pytestmark = [pytest.mark.shared_cluster, pytest.mark.slow]

NBYTES = 36_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(num_nodes=4, local_nodes=4, log_to_driver=False) as cluster:
        yield cluster


def begin(trainer: Any, rollout: Any, size: int, **options: Any) -> None:
    trainer.make_chains().wait(10)
    begin_weights(trainer, rollout, size, **options)


def wait_stopped(pid: int) -> None:
    """It stops itself; a SIGCONT that came before would be lost."""
    deadline = time.monotonic() + 60
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.01)  # nobody is told but its parent


@pytest.mark.parametrize("apply", ["copy", "map"])
def test_every_machine_has_every_byte_of_each_version_and_the_sender_has_sent_it_once(
    launch: Launch, apply: str
) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 0, 1, 1, 2, 2, 3)
    begin(trainer, rollout, 6, apply=apply)
    for seed in range(1, 8):
        ((checksum, sent),) = trainer.publish_pattern(seed).wait(60)
        assert rollout.checksum().wait(60) == [checksum] * 6
        assert sum(sent) == sent[1] >= NBYTES, "the first machine's host gets it"
    assert rollout.is_host().wait(10) == [False, True, False, True, False, True]
    trainer.end().wait(10)
    rollout.end().wait(10)


def test_what_is_passed_on_comes_straight_to_its_place(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 1, 2, 3)
    begin(trainer, rollout, 3)
    rollout.count_copies().wait(10)
    for version in (1, 2, 3):
        assert trainer.publish(version).wait(60) == [dict.fromkeys(range(3), "applied")]
    assert rollout.values().wait(60) == [(3, [3])] * 3
    assert rollout.copies().wait(10) == [0, 0, 0]
    trainer.end().wait(10)
    rollout.end().wait(10)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_machine_that_dies_half_way_is_named_and_the_others_have_the_version(launch: Launch, victim: int) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 1, 2, 3)
    begin(trainer, rollout, 3)
    trainer.publish(1).wait(60)
    rollout.execute_on(victim).die_when_something_comes().wait(10)
    (said,) = trainer.publish(2).wait(60)
    assert said.pop(victim).startswith(f"WorkerDied: rank {victim} of group 'rollout'")
    assert set(said.values()) == {"applied"}
    others = rollout.execute_on(*said)
    assert others.values().wait(60) == [(2, [2])] * 2
    (said,) = trainer.publish(3).wait(60)
    assert [said[rank] for rank in range(3) if rank != victim] == ["applied"] * 2
    assert others.values().wait(60) == [(3, [3])] * 2
    trainer.end().wait(10)
    others.end().wait(10)


def test_if_the_one_that_receives_for_its_machine_dies_another_one_receives_and_nobody_else_fails(
    launch: Launch,
) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 1, 2, 2, 3)
    begin(trainer, rollout, 4)
    trainer.publish(1).wait(60)
    rollout.execute_on(1).die_when_something_comes().wait(10)
    (said,) = trainer.publish(2).wait(60)
    assert said.pop(1).startswith("WorkerDied: rank 1 of group 'rollout'")
    assert said == {0: "applied", 2: "applied", 3: "applied"}
    assert rollout.execute_on(0, 2, 3).values().wait(60) == [(2, [2])] * 3
    trainer.end().wait(10)


@pytest.mark.parametrize("victim", [1])
def test_a_machine_that_stops_half_way_is_named_alone_and_whole_again_later(launch: Launch, victim: int) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 1, 2, 3)
    begin(trainer, rollout, 3)
    trainer.publish(1).wait(60)
    pid = rollout.pid().wait(10)[victim]
    rollout.execute_on(victim).stop_when_something_comes().wait(10)
    others = [rank for rank in range(3) if rank != victim]
    try:
        (said,) = trainer.publish(2, timeout=4).wait(60)
        assert said.pop(victim).startswith(f"DeadlineExceeded: receiver {victim} ")
        assert said == dict.fromkeys(others, "applied")
        assert rollout.execute_on(*others).values().wait(60) == [(2, [2])] * 2
        (said,) = trainer.publish(3, timeout=2).wait(60)
        assert said.pop(victim).startswith(f"DeadlineExceeded: receiver {victim} ")
        assert said == dict.fromkeys(others, "applied"), "nobody waits for it"
    finally:
        os.kill(pid, signal.SIGCONT)
    for version in (4, 5):
        assert trainer.publish(version).wait(60) == [dict.fromkeys(range(3), "applied")]
        assert rollout.values().wait(60) == [(version, [version])] * 3
    trainer.end().wait(10)
    rollout.end().wait(10)


def test_if_there_is_no_way_from_one_machine_to_the_next_the_sender_sends_it(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 1, 2, 3)
    begin(trainer, rollout, 3)
    rollout.execute_on(0).pass_nothing_on().wait(10)
    for seed in (1, 2):
        ((checksum, sent),) = trainer.publish_pattern(seed).wait(60)
        assert rollout.checksum().wait(60) == [checksum] * 3
        if seed == 1:
            assert min(sent[:2]) >= NBYTES
            assert sent[2] == 0, "those behind are a chain of their own"
    trainer.end().wait(10)
    rollout.end().wait(10)


def test_what_has_been_passed_on_and_is_not_published_is_seen_nowhere(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 1, 2, 3)
    begin(trainer, rollout, 3)
    for version, value in ((1, 1), (2, 2), (3, 3)):
        assert trainer.publish(value).wait(60) == [dict.fromkeys(range(3), "applied")]
        trainer.cancel_when_packed(-7).wait(30)
        assert rollout.values().wait(60) == [(version, [value])] * 3
    trainer.end().wait(10)
    rollout.end().wait(10)


@pytest.mark.parametrize("first", ["trainer", "rollout"])
def test_both_ends_are_closed_while_a_version_is_half_way(launch: Launch, first: str) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 1, 2, 3)
    begin(trainer, rollout, 3)
    trainer.publish(1).wait(60)
    pid = rollout.pid().wait(10)[1]
    rollout.execute_on(1).stop_when_something_comes().wait(10)
    trainer.publish_and_stop_waiting(2).wait(60)
    wait_stopped(pid)
    try:
        if first == "trainer":
            trainer.end().wait(10)
        rollout.execute_on(0, 2).end().wait(10)
    finally:
        os.kill(pid, signal.SIGCONT)
    rollout.execute_on(1).end().wait(10)
    if first == "rollout":
        trainer.end().wait(10)
    begin(trainer, rollout, 3)
    assert trainer.publish(3).wait(60) == [dict.fromkeys(range(3), "applied")]
    assert rollout.values().wait(60) == [(1, [3])] * 3
    trainer.end().wait(10)
    rollout.end().wait(10)

"""Schemes between worker groups: on one node and on two, by shared memory and by calls."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlinf_async import Cluster, NodePlacementStrategy, Worker, WorkerWeightSyncScheme
from rlinf_async.errors import DeadlineExceeded, WorkerDied
from tests._support.dying_model import Fragile
from tests.weights.ends import Tied
from tests.weights.scheme_workers import CALLS, Rollout, Trainer

pytestmark = [pytest.mark.shared_cluster, pytest.mark.slow]

Launch = Callable[..., Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
        yield cluster


@pytest.fixture
def launch(cluster: Cluster) -> Iterator[Launch]:
    groups: list[Any] = []

    def launch(kind: type[Worker], name: str, *nodes: int) -> Any:
        placement = NodePlacementStrategy(list(nodes))
        group = kind.create_group().launch(cluster, name=name, placement=placement).wait_ready()
        groups.append(group)
        return group

    yield launch
    for group in groups:
        group.close()


def begin(scheme: Any, trainer: Any, rollout: Any, name: str = "policy") -> None:
    calls = trainer.begin(scheme, "rollout", name), rollout.begin(scheme, ("trainer", 0), name)
    for call in calls:
        call.wait(20)


BOTH = ("state_dict", "tensordict")


# Importing tensordict costs each worker a second, and it is the ends' affair, wherever these are.
@pytest.mark.parametrize(("nodes", "strategies"), [((0, 0), BOTH[:1]), ((0, 1), BOTH), ((1, 1), BOTH[:1])])
def test_a_group_has_what_the_trainer_sends_whole_and_before_the_send_is_over(
    launch: Launch, nodes: tuple[int, int], strategies: tuple[str, ...]
) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", *nodes)
    for apply, strategy in itertools.product(("copy", "map"), strategies):
        scheme = WorkerWeightSyncScheme(strategy=strategy, apply=apply)
        trainer.fill(7.0).wait(20)
        begin(scheme, trainer, rollout, f"{apply} {strategy}")
        assert rollout.look().wait(20) == [(1, {7.0})] * 2, "who is connected has the trainer's weights"
        for version in range(2, 5):
            assert trainer.send(float(version)).wait(20) == [(version, [0, 1])]
            assert rollout.look().wait(20) == [(version, {float(version)})] * 2
        assert trainer.send_and_go_on(9.0).wait(20) == [5]
        assert rollout.look().wait(20) == [(5, {9.0})] * 2
        rollout.finish().wait(20)
        trainer.finish().wait(20)


def test_a_group_that_does_not_come_is_named_when_its_time_is_over(launch: Launch) -> None:
    trainer = launch(Trainer, "trainer", 0)
    with pytest.raises(DeadlineExceeded, match="a group named 'nobody'"):
        trainer.begin(WorkerWeightSyncScheme(), "nobody", timeout=0.2).wait(20)
    launch(Rollout, "rollout", 0)
    with pytest.raises(DeadlineExceeded, match="rank 0 of group 'rollout'"):
        trainer.begin(WorkerWeightSyncScheme(), "rollout", timeout=0.2).wait(20)
    trainer.finish().wait(20)


def test_methods_without_a_loop_block(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 0)
    scheme = WorkerWeightSyncScheme()
    received = rollout.receive_blocking(("trainer", 0), scheme, 2)
    trainer.begin(scheme, [("rollout", 0)]).wait(20)
    assert trainer.send_blocking(3.0).wait(20) == [2]
    (had,) = received.wait(20)
    assert had[-1] == (2, {3.0})
    assert had[:-1] in ([], [(1, {0.0})])  # the first receive may have taken both


def test_some_workers_get_it_and_the_others_catch_up_with_the_next(launch: Launch) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 0, 1)
    begin(WorkerWeightSyncScheme(), trainer, rollout)
    trainer.send(1.0).wait(20)
    assert trainer.send(2.0, worker_ids=[1]).wait(20) == [(3, [1])]
    assert rollout.look().wait(20) == [(2, {1.0}), (3, {2.0})]
    trainer.send(3.0).wait(20)
    assert rollout.look().wait(20) == [(4, {3.0})] * 2


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_fails_half_way_in_an_update_is_named_and_the_others_have_it(
    launch: Launch, how: signal.Signals
) -> None:
    trainer, rollout = launch(Trainer, "trainer", 0), launch(Rollout, "rollout", 0, 0)
    begin(WorkerWeightSyncScheme(ack_timeout=30.0), trainer, rollout)
    with pytest.raises(WorkerDied if how == signal.SIGKILL else DeadlineExceeded, match="rank 1 of group 'rollout'"):
        trainer.send(2.0, {"victim": 1, "signal": how}, timeout=2.0).wait(60)
    assert rollout[0].look().wait(20) == [(2, {2.0})]
    if how == signal.SIGSTOP:
        os.kill(rollout.worker_info_list[1].worker.pid, signal.SIGCONT)
        assert trainer.send(3.0).wait(40) == [(3, [0, 1])]
        assert rollout.look().wait(20) == [(3, {3.0})] * 2
        return
    trainer.finish().wait(20)
    again = launch(Rollout, "again", 0)
    calls = trainer.begin(WorkerWeightSyncScheme(), "again"), again.begin(WorkerWeightSyncScheme(), ("trainer", 0))
    for call in calls:
        call.wait(40)
    assert again.look().wait(20) == [(1, {2.0})], "whole after its restart"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("kind", CALLS)
def test_a_called_worker_that_fails_half_way_is_named_and_the_others_have_it(
    launch: Launch, kind: str, how: signal.Signals
) -> None:
    is_alone = kind == "module transform"
    rollout = launch(Rollout, "rollout", *([0] if is_alone else [0, 0]))
    victim = len(rollout) - 1
    scheme_class, handles = CALLS[kind]
    scheme = scheme_class(strategy="state_dict")
    rollout.begin_called(scheme).wait(20)
    source = Fragile(1.0, width=3)
    scheme.init_on_sender("policy", **{handles: rollout}, source_model=source)
    sender = scheme.get_sender()
    sender.send(timeout=30)
    source.fill(2.0)
    source.order = {"victim": victim, "signal": how}
    with pytest.raises(WorkerDied if how == signal.SIGKILL else DeadlineExceeded) as raised:
        sender.send(timeout=2)
    assert f"worker {victim} does not have version 2" in str(raised.value.__notes__)
    if not is_alone:
        assert rollout[0].look().wait(20) == [(2, {2.0})]
    if how == signal.SIGSTOP:
        os.kill(rollout.worker_info_list[victim].worker.pid, signal.SIGCONT)
        source.fill(3.0)
        source.order = None
        sender.send(timeout=30)
        assert {tuple(values) for _, values in rollout.look().wait(20)} == {(3.0,)}
    scheme.close()


@pytest.mark.parametrize(("kind", "strategy"), [*((kind, "state_dict") for kind in CALLS), ("rpc", "tensordict")])
def test_the_driver_sends_by_calling_every_rank(launch: Launch, kind: str, strategy: str) -> None:
    rollout = launch(Rollout, "rollout", 0, 1)
    scheme_class, handles = CALLS[kind]
    scheme = scheme_class(strategy=strategy)
    workers = rollout[0:1] if kind == "module transform" else rollout
    workers.begin_called(scheme).wait(20)
    source = Tied(4.0)
    scheme.init_on_sender("policy", **{handles: workers}, source_model=source)
    sender = scheme.get_sender()
    assert sender.send().per_worker.keys() == set(range(len(workers)))
    assert workers.look().wait(20) == [(1, {4.0})] * len(workers)
    source.fill(5.0)
    sender.send_async()
    source.fill(99.0)
    sender.wait_async()
    assert workers.look().wait(20) == [(2, {5.0})] * len(workers)
    scheme.close()

"""Large broadcasts to several nodes: each node gets the message once, whatever breaks."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from rlinf_async import Cluster, NodePlacementStrategy
from tests._support import relayed_broadcasts as acts
from tests._support.exchanges import Talker
from tests._support.relayed_broadcasts import NBYTES

pytestmark = pytest.mark.shared_cluster

NODES = [0, 0, 1, 1, 2, 3]
"""Of the ranks: the first is the source; ranks 2, 4 and 5 are hosts."""
HOSTS = [2, 4, 5]
RANKS = range(len(NODES))
HAD_IT = "nothing was refused"
"""Words of a receiver that got the message before somebody died."""

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(num_nodes=4, local_nodes=4, log_to_driver=False) as cluster:
        yield cluster


class Group:
    """Workers of four nodes, which broadcast among themselves."""

    def __init__(self, cluster: Cluster, **options: float) -> None:
        self.name = f"talkers {next(_numbers)}"
        group = Talker.create_group().launch(cluster, name=self.name, placement=NodePlacementStrategy(NODES))
        self.workers: Any = group.wait_ready()
        self.workers.do(acts.prepare, *options.values()).wait(20)

    def do(self, ranks: Any, function: Any, *args: Any) -> Any:
        return self.workers.execute_on(*ranks).do(function, *args)

    def facts(self, ranks: Any = RANKS) -> tuple[Any, Any]:
        return [(self.name, list(ranks))], (self.name, 0)

    def broadcast(self, seed: int, shape: str = "tensor", ranks: Any = RANKS) -> tuple[list[int], list[int]]:
        """All get it; returns the bytes that have left the source for each host, and each receiver in all."""
        taking = self.do([rank for rank in ranks if rank], acts.take, *self.facts(ranks))
        ((checksum, sent),) = self.do([0], acts.give, *self.facts(ranks), seed, shape).wait(60)
        taken = taking.wait(60)
        assert [taken_checksum for taken_checksum, _ in taken] == [checksum] * len(taken)
        return sent, [passed for _, passed in taken]

    def wait_for_nothing(self, ranks: Any = RANKS) -> None:
        """Nobody keeps anything of a broadcast that is over."""
        deadline = time.monotonic() + 9
        while any(self.do(ranks, acts.kept_here).wait(20)):
            assert time.monotonic() < deadline
            time.sleep(0.01)  # they hear of it a moment later

    def pid(self, rank: int) -> int:
        return int(self.do([rank], acts.pid).wait(20)[0])


@pytest.fixture
def group(cluster: Cluster) -> Iterator[Group]:
    group = Group(cluster)
    yield group
    group.workers.close()


def wait_stopped(pid: int) -> None:
    deadline = time.monotonic() + 60
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.01)  # only its parent is told


@pytest.mark.parametrize("shape", ["tensor", "dict"])
def test_the_source_sends_it_once_and_each_node_passes_it_on(group: Group, shape: str) -> None:
    for seed in (1, 2):
        sent, passed = group.broadcast(seed, shape)
        assert len(sent) == 1
        assert NBYTES <= sent[0] <= NBYTES + (1 << 20)
    assert group.do(RANKS[1:], acts.is_still_its_own).wait(20) == [True] * 5
    assert sorted(sum(passed) for passed in zip(passed, strict=True))[-2:] == [2 * sent[0]] * 2
    assert passed[0] == passed[2] == 0, "only hosts pass it on"
    group.wait_for_nothing()


@pytest.mark.parametrize(("shape", "ranks"), [("little", RANKS), ("tensor", [0, 1, 2, 3])])
def test_less_and_what_goes_to_one_other_node_goes_as_ever(group: Group, shape: str, ranks: Any) -> None:
    sent, _ = group.broadcast(1, shape, ranks)
    assert sent == []


@pytest.mark.parametrize("victim", HOSTS)
def test_a_host_that_dies_half_way_is_named_to_all_and_nothing_is_kept(group: Group, victim: int) -> None:
    group.do([victim], acts.end_at_the_first_piece).wait(20)
    taking = {rank: group.do([rank], acts.take_in_vain, *group.facts()) for rank in RANKS[1:] if rank != victim}
    group.do([victim], acts.take_in_vain, *group.facts())
    (said,) = group.do([0], acts.give_in_vain, *group.facts()).wait(60)
    assert "WorkerDied" in said
    assert f"rank {victim} of group '{group.name}'" in said
    for rank, work in taking.items():
        (heard,) = work.wait(60)
        assert "WorkerDied" in heard or (NODES[rank] != NODES[victim] and heard == HAD_IT)
    group.wait_for_nothing(taking)
    others = [0, *taking]
    group.broadcast(2, ranks=others)


def test_if_the_source_dies_half_way_all_hear_of_it_and_nothing_is_kept(group: Group) -> None:
    group.do([0], acts.end_when_one_has_left).wait(20)
    taking = group.do(RANKS[1:], acts.take_in_vain, *group.facts())
    group.do([0], acts.give_in_vain, *group.facts())
    for rank, heard in zip(RANKS[1:], taking.wait(60), strict=True):
        assert f"WorkerDied: rank 0 of group '{group.name}'" in heard or (NODES[rank] == 0 and heard == HAD_IT)
    group.wait_for_nothing(RANKS[1:])


@pytest.mark.parametrize("victim", [2, 4])
def test_a_host_that_stops_half_way_keeps_it_from_nobody_and_has_it_later(cluster: Cluster, victim: int) -> None:
    group = Group(cluster, seconds=4.0, stall=4.0 - NBYTES / (4 << 20))
    pid = group.pid(victim)
    group.do([victim], acts.end_at_the_first_piece, signal.SIGSTOP).wait(20)
    late = group.do([victim], acts.take, *group.facts())
    others = [rank for rank in RANKS[1:] if rank != victim]
    taking = group.do(others, acts.take, *group.facts())
    giving = group.do([0], acts.give, *group.facts(), 1)
    wait_stopped(pid)
    try:
        ((checksum, _),) = giving.wait(60)
        assert [taken for taken, _ in taking.wait(60)] == [checksum] * 4
    finally:
        os.kill(pid, signal.SIGCONT)
    ((taken, _),) = late.wait(60)
    assert taken == checksum
    group.wait_for_nothing()
    group.broadcast(2)
    group.workers.close()


def test_a_broadcast_that_is_given_up_half_way_is_taken_back_and_the_next_one_comes(cluster: Cluster) -> None:
    group = Group(cluster, seconds=400.0, stall=60.0)
    pid = group.pid(4)
    group.do([4], acts.end_at_the_first_piece, signal.SIGSTOP).wait(20)
    had, lack = ([rank for rank in RANKS[1:] if (rank > 3) is is_behind] for is_behind in (False, True))
    taking = group.do(had, acts.take, *group.facts())
    waiting = group.do(lack, acts.take, *group.facts())
    giving = group.do([0], acts.give_in_vain, *group.facts(), 5.0)
    wait_stopped(pid)
    try:
        first = {str(checksum) for checksum, _ in taking.wait(60)}
        assert "DeadlineExceeded" in giving.wait(60)[0]
    finally:
        os.kill(pid, signal.SIGCONT)
    taking = group.do(had, acts.take, *group.facts())
    ((checksum, _),) = group.do([0], acts.give, *group.facts(), 2).wait(60)
    assert [taken for taken, _ in (*taking.wait(60), *waiting.wait(60))] == [checksum] * 5
    assert len(first) == 1
    assert str(checksum) not in first
    group.wait_for_nothing()
    group.workers.close()


def test_if_there_is_no_way_from_one_node_to_the_next_the_source_sends_it(group: Group) -> None:
    group.do([2], acts.pass_nothing_on).wait(20)
    sent, _ = group.broadcast(1)
    assert len(sent) == 2
    assert min(sent) >= NBYTES
    group.wait_for_nothing()


def test_a_node_without_room_has_it_from_the_daemons_and_the_others_by_the_relay(group: Group) -> None:
    group.do([4], acts.have_no_room).wait(20)
    sent, _ = group.broadcast(1)
    assert sum(sent) >= NBYTES
    group.wait_for_nothing()


def test_receivers_that_cannot_open_their_nodes_memory_have_it_from_the_daemons(group: Group) -> None:
    group.do([2, 3, 5], acts.open_nothing).wait(20)
    group.broadcast(1)
    group.wait_for_nothing()

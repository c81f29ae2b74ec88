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
LOCAL_NODES = 4

NODES = [0, 0, 1, 1, 2, 3]
"""Of the ranks: the first is the source; ranks 2, 4 and 5 are hosts."""
RANKS = range(len(NODES))

_numbers = itertools.count()


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


@pytest.mark.parametrize("victim", [2, pytest.param(4, marks=pytest.mark.slow)])
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


def test_if_there_is_no_way_from_one_node_to_the_next_the_source_sends_it(group: Group) -> None:
    group.do([2], acts.pass_nothing_on).wait(20)
    sent, _ = group.broadcast(1)
    assert len(sent) == 2
    assert min(sent) >= NBYTES
    group.wait_for_nothing()

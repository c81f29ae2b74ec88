"""Calls that any rank takes, of real workers: large arguments in line, plain scripts, a kill and a stopped process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlinf_async import Cluster, DeadlineExceeded, NodePlacementStrategy, Worker, idempotent, wait_all

pytestmark = pytest.mark.shared_cluster


class Rollout(Worker):
    def pid(self) -> int:
        return os.getpid()

    def total(self, numbers: Any) -> int:
        time.sleep(0.05)
        return int(numbers.sum())

    @idempotent
    def slow(self, seconds: float) -> int:
        time.sleep(seconds)
        return self._rank

    @idempotent
    async def count(self, count: int, *, resume: Any = ()) -> Any:
        for number in range(len(resume), count):
            yield number


@pytest.fixture
def group(cluster: Cluster) -> Iterator[Any]:
    group = Rollout.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="r").wait_ready()
    yield group
    group.close()


def test_what_a_call_in_line_carries_is_fixed_when_it_is_made(group: Any) -> None:
    numbers = np.ones(1 << 19)
    handles = []
    for _ in range(6):
        handles.append(group.any(in_flight=1).total(numbers))
        numbers += 1
    assert wait_all(*handles) == [(1 << 19) * number for number in range(1, 7)]


def test_a_script_without_a_loop_has_results_and_items(group: Any) -> None:
    assert group.any().slow(0.0).wait() in (0, 1)
    assert list(group.any().count(3)) == [0, 1, 2]
    assert group.any().slow(0.2).cancel() is None


def test_a_killed_and_a_stopped_process_lose_their_calls_to_the_other(group: Any) -> None:
    pids = group.pid().wait()
    handles = [group.any(stall_timeout=0.5).slow(0.2) for _ in range(2)]
    os.kill(pids[1], signal.SIGSTOP)
    assert wait_all(*handles) == [0, 0]
    with pytest.raises(DeadlineExceeded, match=r"rank 1 of 'r' had given no answer and no item for 0\.5 s"):
        group[1].any(stall_timeout=0.5).total(np.ones(1)).wait()
    os.kill(pids[1], signal.SIGCONT)
    handles = [group.any().slow(0.3) for _ in range(4)]
    os.kill(pids[1], signal.SIGKILL)
    assert wait_all(*handles) == [0] * 4

"""Failures within a collective of torch: the waiting ranks are freed, with the cause."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from rlinf_async import Cluster, NodePlacementStrategy, WorkerDied, settings
from tests._support.collective_workers import Collective

pytestmark = pytest.mark.shared_cluster

TIMEOUT = 0.4
GRACE = 0.8
ROOT = "rank 2 of group 'ring' failed in {}() (ValueError: not this time)"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.COLLECTIVE_TIMEOUT_S.variable, str(TIMEOUT))
        patch.setenv(settings.ABORT_GRACE_S.variable, str(GRACE))
        with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
            yield cluster


@pytest.fixture
def bare(cluster: Cluster) -> Iterator[Any]:
    group = Collective.create_group().launch(cluster, placement=NodePlacementStrategy([0] * 3), name="ring")
    yield group.wait_ready()
    group.close()


@pytest.fixture
def ring(bare: Any) -> Any:
    assert bare.initialize().wait(10) == [3, 3, 3]
    return bare


def notes_of(error: BaseException | None) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


def test_ranks_that_wait_in_a_collective_for_one_that_has_raised_are_freed(ring: Any) -> None:
    pids = ring.pid().wait(10)
    with pytest.raises(ValueError, match="not this time"):
        ring.meet(absent=2).wait(10)
    assert ring.pid().wait(10) == pids


@pytest.mark.parametrize("how", ["all_reduce", "wait", "recv", "monitored_barrier", "object"])
def test_their_errors_are_torchs_and_name_who_failed_first_and_why(ring: Any, how: str) -> None:
    outcomes = ring.meet(how, absent=2).outcomes().wait(10)
    assert isinstance(outcomes[2].error, ValueError)
    for outcome in outcomes[:2]:
        assert isinstance(outcome.error, RuntimeError)
        assert ROOT.format("meet") in notes_of(outcome.error)
        assert "destroy_process_group" in notes_of(outcome.error)


def test_ranks_that_wait_in_init_process_group_are_freed(bare: Any) -> None:
    outcomes = bare.initialize(absent=2).outcomes().wait(10)
    assert isinstance(outcomes[2].error, ValueError)
    for outcome in outcomes[:2]:
        assert isinstance(outcome.error, RuntimeError)
        assert ROOT.format("initialize") in notes_of(outcome.error)


def test_a_call_that_nobody_awaits_frees_its_ranks_too(ring: Any) -> None:
    call = ring.meet(absent=2)
    assert ring.hello().wait(10) == [0, 1, 2]
    with pytest.raises(ValueError, match="not this time"):
        call.wait(10)


def test_ranks_of_another_call_are_freed_and_told_which_rank_failed(ring: Any) -> None:
    waiting = ring.execute_on(0, 1).meet()
    with pytest.raises(ValueError, match="not this time"):
        ring[2].meet(absent=2).wait(10)
    with pytest.raises(RuntimeError) as caught:
        waiting.wait(10)
    assert ROOT.format("meet") in notes_of(caught.value)


def test_ranks_of_another_call_wait_for_a_failed_rank_that_has_been_called_again(ring: Any) -> None:
    waiting = ring.execute_on(0, 1).meet()
    with pytest.raises(ValueError, match="not this time"):
        ring[2].meet(absent=2).wait(10)
    assert ring[2].meet(absent=2, late=3 * TIMEOUT).wait(10) == [3.0]
    assert waiting.wait(10) == [3.0, 3.0]


@pytest.mark.slow
def test_a_call_after_the_failure_in_which_ranks_are_out_of_step_does_not_hang(ring: Any) -> None:
    with pytest.raises(ValueError, match="not this time"):
        ring.meet(absent=2, after=0.5).wait(10)  # the others have begun
    next_call = ring.meet()  # its rank 2 meets the others of the call before
    with pytest.raises(RuntimeError) as caught:
        next_call.wait(10)
    assert ROOT.format("meet") in notes_of(caught.value)


@pytest.mark.slow
def test_a_collective_that_takes_long_is_left_alone_where_no_rank_has_failed(ring: Any) -> None:
    assert ring.meet(absent=2, late=4 * TIMEOUT).wait(10) == [3.0] * 3


@pytest.mark.slow
def test_a_collective_that_takes_long_is_left_alone_where_the_failed_rank_is_in_it_too(ring: Any) -> None:
    failing = ring[2].fail(TIMEOUT / 2)
    healthy = ring.meet(absent=2, late=3 * TIMEOUT)
    with pytest.raises(ValueError, match="not this time"):
        failing.wait(10)
    assert healthy.wait(10) == [3.0] * 3


def test_a_rank_that_computes_is_not_killed_for_anothers_failure(ring: Any) -> None:
    pids = ring.pid().wait(10)
    outcomes = ring.compute(2 * (TIMEOUT + GRACE), absent=2).outcomes().wait(10)
    assert [outcome.value for outcome in outcomes[:2]] == pids[:2]
    assert ring.meet().wait(10) == [3.0] * 3


@pytest.mark.slow
def test_a_rank_that_computes_once_it_is_freed_is_not_killed(ring: Any) -> None:
    pids = ring.pid().wait(10)
    outcomes = ring.meet_and_compute(2 * GRACE, absent=2).outcomes().wait(10)
    assert [outcome.value for outcome in outcomes[:2]] == pids[:2]


@pytest.mark.slow
def test_a_rank_that_a_peers_abort_has_freed_and_that_computes_is_not_killed(ring: Any) -> None:
    pid = ring.execute_on(0).pid().wait(10)
    outcomes = ring.be_freed_by_a_peer_and_compute(2 * GRACE).outcomes().wait(10)
    assert [outcomes[0].value] == pid


def test_a_rank_that_an_abort_does_not_free_is_killed_and_named(ring: Any) -> None:
    outcomes = ring.meet_again_and_again(absent=2).outcomes().wait(10)
    for outcome in outcomes[:2]:
        died = outcome.error
        assert isinstance(died, WorkerDied)
        assert died.signal == "SIGKILL"
        assert "was killed because it was still inside meet_again_and_again(), in " in str(died)
        assert f" s after {ROOT.format('meet_again_and_again')}" in died.verdict
    assert ring[2].hello().wait(10) == [2]


async def test_a_stopped_rank_is_named_and_lives(ring: Any) -> None:
    pids = await ring.pid()
    os.kill(pids[1], signal.SIGSTOP)
    while psutil.Process(pids[1]).status() != psutil.STATUS_STOPPED:  # until then it may answer
        os.sched_yield()
    try:
        with pytest.raises(ValueError, match="not this time") as caught:
            await ring.meet(absent=2)
        async with asyncio.timeout(10):
            while "rank" not in notes_of(caught.value).rpartition("stopped")[0]:
                await ring[2].hello()
    finally:
        os.kill(pids[1], signal.SIGCONT)
    assert "rank 1 of 'ring' is stopped (state T" in notes_of(caught.value)
    assert await ring.pid() == pids


def test_after_an_abort_process_groups_can_be_made_anew(ring: Any) -> None:
    with pytest.raises(ValueError, match="not this time"):
        ring.meet(absent=2).wait(10)
    ring.destroy().wait(10)
    assert ring.initialize("second attempt").wait(10) == [3, 3, 3]
    assert ring.meet().wait(10) == [3.0] * 3


def test_a_failure_that_leaves_no_call_open_is_told_to_nobody(ring: Any) -> None:
    since = time.monotonic()
    for _ in range(20):
        with pytest.raises(ValueError, match="not this time"):
            ring.compute(0.0, absent=2).wait(10)
    assert time.monotonic() - since < 3
    assert ring.meet(absent=2, late=2 * TIMEOUT).wait(10) == [3.0] * 3


def test_ranks_of_another_node_are_freed_and_told_too(cluster: Cluster) -> None:
    ring = Collective.create_group().launch(cluster, placement=NodePlacementStrategy([0, 1, 1]), name="ring")
    assert ring.initialize().wait(10) == [3, 3, 3]
    waiting = ring.execute_on(0, 1).meet()
    with pytest.raises(ValueError, match="not this time"):
        ring[2].meet(absent=2).wait(10)
    for outcome in waiting.outcomes().wait(10):
        assert isinstance(outcome.error, RuntimeError)
        assert ROOT.format("meet") in notes_of(outcome.error)
    ring.close()

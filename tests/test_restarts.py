"""Ranks that die are started again: calls, messages, channels, weights and process groups of what comes back."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from rlinf_async import (
    Channel,
    Cluster,
    ConfigError,
    NodePlacementStrategy,
    Restart,
    WorkerDied,
)
from tests._support.mortal_workers import Mortal, Pupil, Teacher, Together

pytestmark = pytest.mark.shared_cluster
LOCAL_NODES = 2

ONE = NodePlacementStrategy([0])
TWO = NodePlacementStrategy([0, 0])
THREE = NodePlacementStrategy([0, 0, 1])


def started(cluster: Cluster, *args: Any, cls: Any = Mortal, placement: Any = THREE, **options: Any) -> Any:
    options = {"name": "mortals", "restart": "rank", "env": {"MINE": "kept"}, **options}
    return cls.create_group(*args).launch(cluster, placement, **options).wait_ready()


def kill(group: Any, rank: int) -> int:
    """Ends a rank between calls; its pid."""
    pid: int = group[rank].who().wait()[0][2]
    os.kill(pid, signal.SIGKILL)
    return pid


# -- a rank comes back ------------------------------------------------------------------------------------------------


def test_a_rank_comes_back_under_its_address_with_what_it_was_made_of(cluster: Cluster) -> None:
    token = [1, 2]
    with started(cluster, token) as group:
        before = group.facts().wait()
        token.append(3)  # what it was launched with is kept as it was
        for rank in (0, 2):
            with pytest.raises(WorkerDied) as died:
                group[rank].die().wait()
            assert died.value.returns
            assert "it is started again under its rank" in str(died.value)
        assert group.facts().wait() == before
        assert before[0]["token"] == [1, 2]
        assert [restarts for _, restarts, _ in group.who().wait()] == [1, 0, 1]


def _who(group: Any, rank: int) -> int:
    try:
        return int(group[rank].who().wait()[0][2])
    except WorkerDied as error:  # it was called before its end was told
        return error.pid


def test_a_death_in_the_first_constructor_is_made_good_as_well(cluster: Cluster, tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    deaths.write_text("die die")
    with started(cluster, 7, str(deaths), True) as group:
        assert sum(restarts for _, restarts, _ in group.who().wait()) == 2
    deaths.write_text("die die die")
    group = Mortal.create_group(7, str(deaths), True).launch(cluster, ONE, "lost", restart="rank", max_restarts=0)
    with pytest.raises(WorkerDied, match="died more than 0 times within 600 s, and is not started again"):
        group.wait_ready()
    group.close()


# -- how often --------------------------------------------------------------------------------------------------------


def test_a_crash_loop_ends_as_one_error_with_the_last_deaths(cluster: Cluster, tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    deaths.write_text("die raise die")
    with started(cluster, 7, str(deaths), max_restarts=2) as group:
        with pytest.raises(WorkerDied):
            group[1].die().wait()
        with pytest.raises(WorkerDied, match="died more than 2 times within 600 s, and is not started again") as lost:
            group.who().wait()
        text = str(lost.value)
        assert re.search(r"rank 1 \(pid \d+\) was killed by SIGKILL", text)
        assert "the constructor of rank 1 failed: ValueError: not yet" in text
        assert not lost.value.returns
        assert [rank for rank, _, _ in group.execute_on(0, 2).who().wait()] == [0, 2]
        deaths.write_text("")
        group.restart(1)
        assert group[1].who().wait()[0][0] == 1
        cluster._client.unobserved.observed(f"death of pid {lost.value.pid} on {lost.value.node}")


# -- what it has to do with others ------------------------------------------------------------------------------------


def test_what_a_dead_consumer_held_goes_to_its_next_incarnation(cluster: Cluster) -> None:
    with started(cluster) as group:
        channel = Channel.create("leases")
        channel.put("item")
        with pytest.raises(WorkerDied):
            group[1].hold(channel).wait()
        assert group[1].get(channel).wait(20) == ["item"]
        channel.close()


def test_who_comes_back_follows_and_has_the_current_weights(cluster: Cluster) -> None:
    with (
        started(cluster, cls=Pupil, name="pupils") as pupils,
        Teacher.create_group().launch(cluster, NodePlacementStrategy([0]), name="teacher").wait_ready() as teacher,
    ):
        teacher.begin("pupils").wait()
        pupils.join("teacher").wait()
        teacher.step(5.0).wait()
        with pytest.raises(WorkerDied):
            pupils[2].die().wait()
        assert pupils[2].join("teacher").wait(20) == [2]
        assert pupils[2].shown().wait() == [(2, 5.0)]
        assert teacher.step(6.0).wait(20) == [3]  # the trainer has no error of it
        assert teacher.delivered().wait(20) == [["pupils:0", "pupils:1", "pupils:2"]]
        assert pupils.shown().wait() == [(3, 6.0)] * 3
        teacher.end().wait()


@pytest.mark.parametrize("doomed", [{}, {1: 1, 2: 0}], ids=["one death", "three deaths in a row"])
def test_ranks_make_their_process_group_anew_as_the_page_says(cluster: Cluster, doomed: dict[int, int]) -> None:
    """Whoever is in torch's rendezvous when a rank dies meets the next one of that rank."""
    told: list[Restart] = []
    with started(cluster, doomed, cls=Together) as group:
        group.on_restart(told.append)
        assert group.total().wait() == [6.0] * 3
        with pytest.raises(WorkerDied):
            group[2].die().wait()
        assert group.total().wait(20) == [6.0] * 3  # before the time that a collective has to end by itself
        counts = tuple((2, *doomed.values()).count(rank) for rank in range(3))
        last = Restart(counts, tuple(sorted({2, *doomed.values()})), len(doomed) + 1)
        assert [hooks[-1] for hooks in group.told().wait()] == [last] * 3
        assert told == [last]


# -- what cannot be meant ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"restart": "foo"}, "restart is one of 'never', 'rank', 'group', got 'foo'"),
        ({"restart": "rnak"}, r"got 'rnak' \(did you mean 'rank'\?\)"),
        ({"max_restarts": -1}, "max_restarts must be a whole number that is not negative, got -1"),
        ({"max_restarts": True}, "got True"),
        ({"restart_window": 0}, "the window of restarts must be a number of seconds above 0, got 0"),
    ],
)
def test_launch_says_what_restarts_there_are(cluster: Cluster, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        started(cluster, **options)


def test_a_group_without_restarts_says_how_to_have_them(cluster: Cluster) -> None:
    with started(cluster, restart="never") as group:
        with pytest.raises(ConfigError, match="launch it with restart='rank'"):
            group.restart(0)
        with pytest.raises(WorkerDied) as died:
            group[0].die().wait()
        assert not died.value.returns


def test_a_configured_name_that_no_group_has_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    supervision = {"mortals": {"restart": "rank"}, "mortal": {"restart": "group"}}
    with Cluster(cluster_cfg={"supervision": supervision}, log_to_driver=False) as cluster:
        group = Mortal.create_group().launch(cluster, ONE, name="mortals").wait_ready()
        with pytest.raises(WorkerDied) as died:
            group.die().wait()
        assert died.value.returns
    told = [record.getMessage() for record in caplog.records if "cluster.supervision" in record.getMessage()]
    assert told == [
        "cluster.supervision.mortal: no group or component of that name was launched (did you mean 'mortals'?)"
    ]


# -- for long ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("bursts", [3, pytest.param(15, marks=pytest.mark.faults)])
def test_calls_and_items_outlive_a_storm_of_deaths(cluster: Cluster, bursts: int) -> None:
    """Ranks are killed at random moments; idempotent calls answer right, and the channel's ledger stays closed."""
    choose = random.Random(7)
    over = threading.Event()
    with started(cluster, max_restarts=10**6, restart_window=1) as group, Channel.create("stormy") as channel:

        def kill_some() -> None:
            for _ in range(bursts):
                for _ in range(choose.randint(1, 4)):
                    if over.wait(choose.uniform(0.05, 0.4)):
                        return
                    pid = choose.choice(group.worker_info_list).worker.pid
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                # All ranks answer: a loaded machine starts processes more slowly than a clock would kill them.
                group.census().wait(120)

        killer = threading.Thread(target=kill_some)
        killer.start()
        try:
            rounds = 0
            while killer.is_alive():
                rounds += 1
                echo = group.echo(rounds)
                taken = group[choose.randrange(3)].take_one(channel)
                for _ in range(4):  # what a rank had got when it died is gone with it, and its call takes another one
                    channel.put(rounds)
                assert echo.wait(60) == [rounds] * 3
                assert taken.wait(60)[0] <= rounds
                stats = channel.stats()
                assert stats.put == stats.got + sum(stats.dropped.values()) + stats.present
        finally:
            over.set()
            killer.join()
        assert sum(restarts for _, restarts, _ in group.census().wait(60)) >= bursts


def test_a_call_that_has_killed_one_worker_is_not_told_as_finished_or_untouched_by_its_successors_death(
    cluster: Cluster, tmp_path: Path
) -> None:
    deaths = tmp_path / "deaths"
    deaths.write_text("die die die")
    with started(cluster, 0, str(deaths), placement=TWO, max_restarts=1) as group:
        with pytest.raises(WorkerDied) as died:
            group.once_more("x", str(tmp_path / "was there")).wait()
        assert died.value.execution == "started"
        assert not died.value.returns

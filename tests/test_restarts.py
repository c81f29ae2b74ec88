"""Ranks that die are started again: calls, messages, channels, weights and process groups of what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_async import (
    Channel,
    ClosedError,
    Cluster,
    ConfigError,
    NodePlacementStrategy,
    Restart,
    WorkerDied,
    WorkerGroup,
)
from tests._support.mortal_workers import Mortal, Pupil, Teacher, Together

pytestmark = pytest.mark.shared_cluster

ONE = NodePlacementStrategy([0])
TWO = NodePlacementStrategy([0, 0])
THREE = NodePlacementStrategy([0, 0, 1])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(local_nodes=2, log_to_driver=False) as cluster:
        yield cluster


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


def test_a_death_that_nobody_is_in_the_midst_of_is_no_failure(cluster: Cluster) -> None:
    with started(cluster) as group:
        before = kill(group, 1)
        while (after := _who(group, 1)) == before:
            pass
        assert after != before
        assert cluster.status()["groups"]["mortals"] == 2  # and not the dead one besides
    assert not cluster._client.unobserved.pending()


def _who(group: Any, rank: int) -> int:
    try:
        return int(group[rank].who().wait()[0][2])
    except WorkerDied as error:  # it was called before its end was told
        return error.pid


def test_calls_wait_in_their_order_for_who_comes_back(cluster: Cluster) -> None:
    with started(cluster, placement=TWO) as group:
        with pytest.raises(WorkerDied):
            group[1].die().wait()
        handles = [group.note(number) for number in range(50)]
        handles.append(group[0].note("alone"))
        assert handles[-2].wait() == [list(range(50))] * 2
        assert handles[-1].wait() == [[*range(50), "alone"]]


def test_what_is_called_elsewhere_finds_who_has_come_back(cluster: Cluster) -> None:
    with started(cluster) as group:
        found = WorkerGroup.from_group_name(Mortal, "mortals", cluster=cluster)
        before = found.who().wait()
        with pytest.raises(WorkerDied):
            found[2].die().wait()
        after = group.who().wait()
        assert found.who().wait() == after != before


def test_an_idempotent_call_hears_nothing_of_the_death(cluster: Cluster, tmp_path: Path) -> None:
    with started(cluster) as group:
        large = os.urandom(1 << 20)
        found = group.once_more(large, str(tmp_path / "died")).wait()
        assert found == [(0, 0, large), (1, 1, large), (2, 0, large)]
        again = group[0:2].once_more("x", str(tmp_path / "died again"))
        assert again.wait() == [(0, 0, "x"), (1, 2, "x")]


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


def test_restarts_by_hand_are_not_counted(cluster: Cluster) -> None:
    with started(cluster, max_restarts=0) as group:
        pids = group.who().wait()
        for times in (1, 2, 3):
            group.restart(0, 2)
            assert [restarts for _, restarts, _ in group.who().wait()] == [times, 0, times]
        assert group.who().wait()[1] == pids[1]
        group.restart()
        assert [restarts for _, restarts, _ in group.who().wait()] == [4, 1, 4]


def test_a_group_restarts_as_one(cluster: Cluster) -> None:
    with started(cluster, restart="group") as group:
        before = [pid for *_, pid in group.who().wait()]
        sleeping = group.execute_on(0, 2).sleep(60)
        with pytest.raises(WorkerDied, match="rank 1"):
            group[1].die().wait()
        with pytest.raises(WorkerDied, match="was ended to restart with rank 1 of its group, which had died"):
            sleeping.wait()
        after = group.who().wait()
        assert [restarts for _, restarts, _ in after] == [1, 1, 1]
        assert not {pid for *_, pid in after} & set(before)


# -- what it has to do with others ------------------------------------------------------------------------------------


def test_messages_wait_for_who_comes_back_in_both_directions(cluster: Cluster) -> None:
    with started(cluster) as group:
        group[0].give("first", "mortals", 2), group[2].take("mortals", 0).wait()
        waiting = [group[0].take("mortals", 2) for _ in range(3)]
        with pytest.raises(WorkerDied):
            group[2].die().wait()
        for number in range(3):
            group[2].give(number, "mortals", 0)
        assert [work.wait() for work in waiting] == [[0], [1], [2]]
        group[0].give("after", "mortals", 2).wait()
        assert group[2].take("mortals", 0).wait() == ["after"]


def test_a_receive_from_who_does_not_come_back_is_an_error(cluster: Cluster) -> None:
    with started(cluster, max_restarts=0) as group:
        group[2].give("first", "mortals", 0), group[0].take("mortals", 2).wait()
        waiting = group[0].take("mortals", 2)
        with pytest.raises(WorkerDied):
            group[2].die().wait()
        with pytest.raises(WorkerDied, match="rank 2"):
            waiting.wait(20)
        with pytest.raises(WorkerDied, match="rank 2"):
            group[0].take("mortals", 2).wait(20)
        with pytest.raises(WorkerDied, match="not started again"):
            group[2].who().wait()


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


def test_the_driver_hears_of_every_rank_also_of_those_that_were_back_while_others_were_away(cluster: Cluster) -> None:
    with started(cluster) as group:
        told: list[Restart] = []
        heard = threading.Event()

        def hear(restart: Restart) -> None:
            told.append(restart)
            if {rank for each in told for rank in each.ranks} == {0, 1, 2}:
                heard.set()

        group.on_restart(hear)
        pids = [pid for _, _, pid in group.who().wait()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.12)  # so that the one before is just coming back
        assert heard.wait(10), told


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


# -- between two steps ------------------------------------------------------------------------------------------------


def test_a_group_that_is_closed_while_a_rank_is_away_leaves_nothing(cluster: Cluster) -> None:
    for pause in (0.0, 0.05, 0.12, 0.2):
        group = started(cluster)
        with pytest.raises(WorkerDied):
            group[2].die().wait()
        waiting = group.who()
        threading.Event().wait(pause)
        group.close()
        with contextlib.suppress(ClosedError, WorkerDied):
            assert len(waiting.wait(20)) == 3  # it was back before
        with pytest.raises(ClosedError):
            group.who()
    assert "mortals" not in cluster.status(0)["groups"]
    assert "mortals" not in cluster.status(1)["groups"]


def test_ranks_that_die_together_and_while_they_come_back_all_come_back(cluster: Cluster) -> None:
    with started(cluster, max_restarts=100) as group:
        for _ in range(5):
            for _, _, pid in group.who().wait():
                os.kill(pid, signal.SIGKILL)
            while True:
                try:
                    found = group.who().wait(60)
                except WorkerDied:
                    continue
                break
            assert [rank for rank, *_ in found] == [0, 1, 2]


async def test_a_call_that_is_cancelled_while_it_waits_to_be_made_again_ends(cluster: Cluster, tmp_path: Path) -> None:
    group = started_here = await asyncio.to_thread(started, cluster)
    handle = group.once_more("x", str(tmp_path / "died"))
    while not (tmp_path / "died").exists():
        await asyncio.sleep(0.001)
    handle.cancel()
    async with asyncio.timeout(20):
        with pytest.raises((ClosedError, WorkerDied)):
            await handle
    await asyncio.to_thread(started_here.close)


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


def test_a_call_that_has_failed_on_another_rank_is_not_made_again(cluster: Cluster, tmp_path: Path) -> None:
    with started(cluster) as group:
        with pytest.raises((ValueError, WorkerDied)):
            group.fail_or_die(str(tmp_path / "runs")).wait()
        assert [restarts for _, restarts, _ in group.census().wait()] == [0, 1, 0]
        assert (tmp_path / "runs").read_text() == "x"


# -- for long ---------------------------------------------------------------------------------------------------------


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


def test_who_has_answered_a_call_is_not_asked_again_when_another_rank_dies(cluster: Cluster, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.write_text("")
    with started(cluster, placement=TWO) as group:
        call = group.answer_or_wait(str(runs))
        while runs.read_text() != "1":
            pass
        kill(group[1:], 0)
        call.wait()
        assert runs.read_text() == "1"


def test_on_restart_is_run_although_another_rank_is_given_up_meanwhile(cluster: Cluster, tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    deaths.write_text("")
    with started(cluster, 0, str(deaths), placement=TWO, max_restarts=1) as group:
        told: list[Restart] = []
        heard = threading.Event()
        group.on_restart(lambda restart: (told.append(restart), heard.set()))
        pids = [pid for _, _, pid in group.who().wait()]
        os.kill(pids[0], signal.SIGKILL)
        time.sleep(0.1)
        deaths.write_text("raise")
        os.kill(pids[1], signal.SIGKILL)
        deadline = time.monotonic() + 20
        while _returns(group) and time.monotonic() < deadline:
            pass
        assert heard.wait(5)
        assert len({rank for restart in told for rank in restart.ranks}) == 1


def _returns(group: Any) -> bool:
    """Whether all ranks are there, or come back."""
    try:
        group.who().wait()
    except WorkerDied as died:
        return died.returns
    return True

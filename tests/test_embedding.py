"""A cluster inside a foreign event loop: no leftovers, no interference."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from rlinf_async import ClosedError, Cluster, ConfigError, ForkedProcessError, LaunchError, WorkerGroup, settings
from rlinf_async.work import Work
from tests._support.workers import Plain


def traces() -> dict[str, Any]:
    """Everything that a service would notice of a guest."""
    gc.collect()
    return {
        "signals": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "excepthook": sys.excepthook,
        "threads": threading.active_count(),
        "fds": len(os.listdir("/proc/self/fd")),
        "children": psutil.Process().children(recursive=True),
        "run directories": sorted(Path(os.environ["XDG_RUNTIME_DIR"]).glob("rlinf-*")),
    }


async def serve_once(*, group: bool = True) -> None:
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        if not group:
            return
        async with Plain.create_group().launch(cluster, name="served") as group:
            assert await group.hello() == [0]


@pytest.mark.slow
async def test_a_service_started_and_stopped_six_times_is_as_it_was() -> None:
    await serve_once()  # whatever is imported or opened once, is
    before = traces()
    for cycle in range(6):
        await serve_once(group=cycle % 5 == 0)  # a service may also be stopped before anybody used it
    assert traces() == before


def test_it_lives_on_uvloop_as_well_and_never_holds_the_loop_up_for_long() -> None:
    asyncio.run(serve_once())  # opens and imports what stays
    before = traces()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        worst, seconds = runner.run(serve_and_watch())
    assert worst < seconds / 2  # most of that time is torch's import, elsewhere
    assert traces() == before


async def serve_and_watch() -> tuple[float, float]:
    """Seconds for which the loop stood still at most, and in all."""
    worst = 0.0
    loop = asyncio.get_running_loop()

    async def watch() -> None:
        nonlocal worst
        while True:
            since = loop.time()
            await asyncio.sleep(0.01)
            worst = max(worst, loop.time() - since - 0.01)

    watcher = asyncio.create_task(watch())
    since = loop.time()
    await serve_once()
    watcher.cancel()
    await asyncio.wait([watcher])
    return worst, loop.time() - since


async def test_two_clusters_live_in_one_loop() -> None:
    async with Cluster(log_to_driver=False) as first, Cluster(log_to_driver=False) as second:
        one = Plain.create_group(1).launch(first, name="same")
        two = Plain.create_group(2).launch(second, name="same")
        assert await asyncio.gather(one.scaled(1), two.scaled(1)) == [[1], [2]]
        assert first.run_id != second.run_id
        with pytest.raises(RuntimeError, match="2 clusters are open"):
            WorkerGroup.from_group_name(Plain, "same")
        found = await second.find_group(Plain, "same")
        assert await found.scaled(1) == [2]


async def test_constructing_and_launching_do_not_wait() -> None:
    cluster = Cluster(num_nodes=1, log_to_driver=False)
    with pytest.raises(RuntimeError, match="still starting: `await cluster`"):
        _ = cluster.num_nodes
    await cluster
    group = Plain.create_group().launch(cluster)
    call: Work[Any] = group.hello()
    assert not call.done()
    assert await call == [0]
    await cluster.aclose()


async def test_closing_a_cluster_that_is_still_starting_leaves_nothing() -> None:
    cluster = Cluster(num_nodes=1)
    await asyncio.sleep(0)
    await cluster.aclose()
    with pytest.raises(ClosedError):
        Plain.create_group().launch(cluster)


async def test_a_start_that_fails_closes_what_it_has_started() -> None:
    await serve_once(group=False)  # opens and imports what stays
    before = traces()
    cluster = Cluster(num_nodes=2, log_to_driver=False)
    with pytest.raises(ConfigError, match="this run has 1"):
        await cluster
    assert cluster._closing is not None
    await cluster._closing
    assert traces() == before


async def test_a_closing_that_is_cancelled_before_its_first_step_ends_the_node() -> None:
    cluster = await Cluster(log_to_driver=False)
    (line,) = cluster._lifelines
    cluster.close()
    await asyncio.sleep(0)  # the closing is a task
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    async with asyncio.timeout(20):
        await line.wait()
    cluster._client.close()
    await line.close()


async def test_a_service_that_is_cancelled_while_it_starts_leaves_nothing() -> None:
    for delay in (0.0, 0.05, 0.3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_serve_for_ever(), delay)


async def _serve_for_ever() -> None:
    async with Cluster(num_nodes=1) as cluster, Plain.create_group().launch(cluster):
        await asyncio.sleep(60)


async def test_calls_that_are_open_when_the_cluster_closes_fail_with_closed() -> None:
    async with Cluster(log_to_driver=False) as cluster:
        group = Plain.create_group().launch(cluster)
        await group
        call = group.sleep(60)
    with pytest.raises(ClosedError):
        await call


async def test_a_daemon_that_dies_fails_everything_with_what_happened() -> None:
    async with Cluster(log_to_driver=False) as cluster:
        group = Plain.create_group().launch(cluster)
        await group
        call = group.sleep(60)
        os.kill((await cluster.status())["pid"], signal.SIGKILL)
        with pytest.raises(Exception, match="daemon is gone"):
            await call
        with pytest.raises(Exception, match="daemon is gone"):
            await group.hello()


def test_a_daemon_that_cannot_start_is_a_launch_error_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nonexistent")
    with pytest.raises(LaunchError, match="encodings"):
        Cluster(num_nodes=1)


def test_a_forked_child_of_the_driver_leaves_the_cluster_alone() -> None:
    with Cluster(log_to_driver=False) as cluster:
        group = Plain.create_group().launch(cluster).wait_ready()
        stream = iter(group.count(1_000_000))
        assert next(stream) == (0, 0)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                group.hello()
            except ForkedProcessError as error:
                code = 0 if f"belongs to process {os.getppid()}" in str(error) else 2
            del stream
            cluster.close()
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [next(stream) for _ in range(50)] == [(0, item) for item in range(1, 51)]
        assert group.hello().wait() == [0]


@pytest.mark.slow
async def test_closing_ends_although_the_daemon_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.CLOSE_TIMEOUT_S.variable, "0.3")
    monkeypatch.setenv(settings.CLOSE_GRACE_S.variable, "0.3")
    monkeypatch.setenv(settings.NODE_STOP_GRACE_S.variable, "0.3")
    cluster = await Cluster(log_to_driver=False)
    group = Plain.create_group().launch(cluster)
    await group
    daemon = (await cluster.status())["pid"]
    os.kill(daemon, signal.SIGSTOP)
    async with asyncio.timeout(20):
        await cluster.aclose()
    assert not psutil.pid_exists(daemon)

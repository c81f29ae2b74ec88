"""``Cluster``: its description of itself, and the framework's environment variables."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from typing import Any

import psutil
import pytest

from rlinf_async import (
    Channel,
    ClosedError,
    Cluster,
    ClusterEnvVar,
    ConfigError,
    NodePlacementStrategy,
    Worker,
    WorkerGroup,
)
from rlinf_async._trace import recorder
from tests._support.unauthenticated_clients import node_directory
from tests._support.workers import Plain


def test_it_knows_whether_it_is_there_and_which_nodes_live() -> None:
    assert not Cluster.has_initialized()
    with Cluster(log_to_driver=False) as cluster:
        assert Cluster.has_initialized()
        assert cluster.get_alive_nodes() == list(cluster.nodes)
        assert 1024 <= cluster.find_free_port(20000) <= 20000
        assert cluster.get_node_info(0).python_interpreter_path
    assert not Cluster.has_initialized()
    assert [line.exit_code for line in cluster._lifelines] == [0], "its daemon has ended in order"


async def test_a_start_that_is_awaited_and_fails_leaves_no_process() -> None:
    cluster = Cluster(num_nodes=2, local_nodes=1, log_to_driver=False)
    with pytest.raises(ConfigError, match="this run has 1"):
        await cluster
    assert [line.exit_code for line in cluster._lifelines] == [0]


class EndsSlowly(Worker):
    async def pid(self) -> int:
        return os.getpid()

    async def on_close(self) -> None:
        await asyncio.sleep(60)


def test_an_interrupt_of_close_leaves_no_process() -> None:
    cluster = Cluster(log_to_driver=False)
    group: Any = EndsSlowly.create_group().launch(cluster, NodePlacementStrategy([0]), name="slow", close_grace=60)
    (pid,) = group.pid().wait()
    main = threading.get_ident()
    threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        cluster.close()
    assert not psutil.pid_exists(pid)
    assert cluster._lifelines[0].exit_code is not None


def test_a_close_after_an_interrupted_one_ends_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    closes = recorder.close_trace

    async def interrupted(_: Any) -> None:
        monkeypatch.setattr(recorder, "close_trace", closes)
        raise SystemExit  # of a signal handler

    async def run() -> None:
        made.append(await Cluster(log_to_driver=False))
        monkeypatch.setattr(recorder, "close_trace", interrupted)
        await made[0].aclose()

    made: list[Cluster] = []
    with pytest.raises(SystemExit):
        asyncio.run(run())
    made[0].close()
    assert made[0]._lifelines[0].exit_code is not None


def test_of_threads_that_close_together_each_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(log_to_driver=False)
    end_loop, both, ended = cluster._client.end_loop, threading.Barrier(2), []

    def end_together(thread: Any) -> None:
        ended.append(thread)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # until each has seen that the loop is open, or only one may see it
        end_loop(thread)

    monkeypatch.setattr(cluster._client, "end_loop", end_together)
    threads = [threading.Thread(target=cluster.close, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert len(ended) == 1


def test_the_frameworks_variables_have_rlinfs_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLINF_LOG_LEVEL", raising=False)
    assert Cluster.get_full_env_var_name(ClusterEnvVar.LOG_LEVEL) == "RLINF_LOG_LEVEL"
    assert Cluster.get_sys_env_var(ClusterEnvVar.LOG_LEVEL) == "INFO"
    assert Cluster.get_sys_env_var(ClusterEnvVar.LOG_LEVEL, "DEBUG") == "DEBUG"
    assert Cluster.get_sys_env_var(ClusterEnvVar.EXT_MODULE) is None
    monkeypatch.setenv("RLINF_LOG_LEVEL", "ERROR")
    assert Cluster.get_sys_env_var(ClusterEnvVar.LOG_LEVEL, "DEBUG") == "ERROR"
    mode = Cluster.get_path_env_merge_mode({})
    assert Cluster.merge_worker_env_vars({"PATH": "/bin"}, {"PATH": "/opt"}, mode) == {"PATH": "/opt:/bin"}


def test_two_clusters_in_one_run_are_one_where_nobody_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under the launcher, where every Cluster() of a script joins its run."""
    with Cluster(log_to_driver=False) as cluster:
        monkeypatch.setenv("RLINF_NODE_SOCKET", os.path.join(node_directory(cluster), "node.sock"))
        with Cluster(log_to_driver=False), Channel.create("one") as channel:
            channel.put("item")
            assert Channel.connect("one").get() == "item"
        monkeypatch.delenv("RLINF_NODE_SOCKET")
        with Cluster(log_to_driver=False), pytest.raises(RuntimeError, match="2 clusters are open"):
            Channel.create("one")


def test_a_thread_that_asks_while_another_one_closes_the_cluster_ends() -> None:
    cluster = Cluster(num_nodes=1, log_to_driver=False)
    asked = threading.Semaphore(0)

    def ask() -> None:
        with contextlib.suppress(ClosedError):
            while True:
                with contextlib.suppress(TimeoutError, LookupError):
                    WorkerGroup.from_group_name(Plain, "none", cluster=cluster, timeout=0)
                asked.release()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    for _ in range(100):
        asked.acquire(timeout=10)
    cluster.close()
    thread.join(5)
    assert not thread.is_alive()

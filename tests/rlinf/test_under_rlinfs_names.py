"""Programs under RLinf's names: ``rlinf.scheduler`` resolves in every process, and RLinf's rules hold there."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._core import dialect, import_hook, process
from rlinf_async.rlinf.only_cluster import Cluster
from rlinf_async.weights.waiting.execution import SyncAdapter

PROGRAM = """
    import asyncio, json, multiprocessing, pickle, subprocess, sys, time

    from rlinf.scheduler import (
        Channel, Cluster, ComponentPlacement, FrankaHWInfo, NodePlacementStrategy, Worker, build_send_key,
    )
    from rlinf.scheduler.cluster import load_user_extension_module
    from rlinf.scheduler.collective import AsyncRouteWork
    from rlinf.scheduler.dynamic_scheduler.manager import ComponentManager
    from rlinf.scheduler.placement import PackedPlacementStrategy
    from rlinf.scheduler.worker.worker import Worker as SameWorker

    def in_child(queue):
        from rlinf.scheduler import Worker
        queue.put(Worker.__module__)

    class Env(Worker):
        async def blocks(self, channel):
            began = time.monotonic()
            channel.put("item")                     # blocks in the coroutine, as RLinf's does
            size = channel.qsize()
            item = channel.get()
            with self.device_lock:
                pass
            port = self.acquire_free_port()
            return [item, size, f"{port:d}".isdecimal(), Cluster() is Cluster(), Cluster().num_nodes]

        async def sends(self, channel):
            self.send_to("rollout", channel, [1, 2], mode="train", tag="obs")

        def spawns(self):
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            child = context.Process(target=in_child, args=(queue,))
            child.start()
            told = queue.get(timeout=60)
            child.join()
            return told

        def fails(self):
            raise ValueError("as it does")

    class Rollout(Worker):
        async def receives(self, channel):
            rows = self.recv_from("env", channel, tag="train_obs")
            from rlinf.scheduler import get_group_world_size
            return [rows, get_group_world_size(self._manager_proxy, "env")]

    class Waits(Worker):
        def waits(self, channel):
            return channel.get()

    async def main(told):
        cluster = Cluster(num_nodes=1)              # blocks in a coroutine too
        told["one"] = Cluster() is cluster and Cluster(num_nodes=0) is cluster
        try:
            Cluster(num_nodes=7)
        except RuntimeError as error:
            told["another"] = str(error)
        placement = NodePlacementStrategy([0])
        env = Env.create_group().launch(cluster, placement, name="env")
        told["infos"] = [type(env.worker_info_list).__name__, len(env.worker_info_list)]
        rollout = Rollout.create_group().launch(cluster, placement, name="rollout")
        channel = Channel.create("obs")
        handle = env.sends(channel)
        told["truth"] = bool(handle)
        told["routed"] = rollout.receives(channel).wait()
        told["blocks"] = env.blocks(channel).wait()
        told["spawned"] = env.spawns().wait()
        rule = {"cluster": {"component_placement": {"actor,rollout": {"node_group": "node", "placement": "0"}}}}
        placements = ComponentPlacement(rule, cluster)
        told["rule"] = placements.get_strategy("actor") is placements.get_strategy("rollout")
        told["lists"] = [placement.get_placement(cluster)[0].visible_accelerators, cluster.get_node_group().node_ranks]

    told = {"worker": Worker is SameWorker, "hardware": FrankaHWInfo.__name__}
    if __name__ == "__main__":
        told["pickled"] = pickle.loads(b"crlinf.scheduler.worker.worker\\nWorker\\n.") is Worker
        try:
            ComponentManager()
        except NotImplementedError as error:
            told["absent"] = str(error)
        try:
            import rlinf.scheduler.nowhere
        except ModuleNotFoundError as error:
            told["nowhere"] = str(error)
        asyncio.run(main(told))
        waiting = Waits.create_group().launch(Cluster(), name="waits").waits(Channel.create("never"))
        failing = Env.create_group().launch(Cluster(), name="failing").fails()
        try:
            waiting.wait()
        except Exception as error:
            told["fail_fast"] = type(error).__name__
        print("TOLD", json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("program")
    (folder / "rlinf").mkdir()
    (folder / "rlinf" / "__init__.py").write_text("")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text("import builtins; builtins.SITE_OF_THE_USER = True\n")
    (folder / "train.py").write_text(dedent(PROGRAM).replace("told = {", "told = {'site': SITE_OF_THE_USER, "))
    done = subprocess.run(
        [sys.executable, "-m", "rlinf_async.rlinf", "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "site"), "RLINF_UNOBSERVED_ERROR_S": "0.2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert lines, done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(lines[0].removeprefix("TOLD "))
    return found


def test_each_module_of_rlinfs_scheduler_offers_its_names(told: dict[str, Any]) -> None:
    assert told["worker"]
    assert told["hardware"] == "FrankaHWInfo"
    assert told["pickled"], "a pickle that names rlinf.scheduler.worker.worker.Worker"
    assert "rlinf.scheduler.nowhere is not among the modules of RLinf" in told["nowhere"]


def test_a_name_that_is_not_built_is_an_error_at_its_use(told: dict[str, Any]) -> None:
    assert told["absent"] == (
        "rlinf.scheduler's ComponentManager: scaling a run's components while it runs (cluster.auto_scheduler) is not "
        "built yet"
    )


def test_a_process_has_one_cluster(told: dict[str, Any]) -> None:
    assert told["one"]
    assert "Cluster(num_nodes=7): this process has <Cluster" in told["another"]


def test_calls_block_in_coroutines_and_give_the_value(told: dict[str, Any]) -> None:
    assert told["blocks"] == [["item", 1, True, True, 1]]


def test_a_mode_and_a_tag_meet_in_one_tag_in_a_coroutine_that_blocks(told: dict[str, Any]) -> None:
    assert told["routed"] == [[[1, 2], 1]]


def test_handles_are_true_and_lists_are_lists(told: dict[str, Any]) -> None:
    assert told["truth"] is True
    assert told["infos"] == ["list", 1]
    assert told["lists"] == [[], [0]]
    assert told["rule"], "components of one placement rule share one strategy"


def test_children_of_workers_have_the_names_too(told: dict[str, Any]) -> None:
    assert told["spawned"] == ["rlinf_async.rlinf.rlinf_worker"]


def test_a_failure_that_nobody_awaits_ends_other_waits(told: dict[str, Any]) -> None:
    assert told["fail_fast"] == "UnobservedFailure"


def test_a_sitecustomize_of_the_user_runs_as_well(told: dict[str, Any]) -> None:
    assert told["site"] is True


def test_rlinfs_own_scheduler_cannot_be_replaced_once_it_is_imported(tmp_path: Path) -> None:
    package = tmp_path / "rlinf" / "scheduler"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    code = "import rlinf.scheduler; from rlinf_async._core import import_hook; import_hook.install()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "so rlinf_async cannot stand for it; start the script by `rlinf-launch --rlinf`" in done.stderr


@pytest.mark.parametrize("path", ["", "/repo", "/repo:", ":/repo"])
def test_a_path_keeps_its_empty_entries_which_are_the_working_directory(path: str) -> None:
    made = import_hook.variables({"PYTHONPATH": path})["PYTHONPATH"]
    startup, _, rest = made.partition(":")
    assert (Path(startup).name, rest) == ("startup", path)
    assert import_hook.variables({"PYTHONPATH": made})["PYTHONPATH"] == made


@pytest.mark.parametrize("is_forked", [False, True])
def test_a_forked_child_has_a_cluster_of_its_own(monkeypatch: pytest.MonkeyPatch, is_forked: bool) -> None:
    monkeypatch.setattr(Cluster, "_only", None)
    parents = Cluster.__new__(Cluster)
    parents._is_made, parents._closing, parents._client = True, None, SimpleNamespace(pid=os.getpid())  # type: ignore[assignment]
    monkeypatch.setattr(process, "pid", os.getpid() + is_forked)
    assert (Cluster.__new__(Cluster) is parents) is not is_forked


def test_by_rlinfs_rules_a_work_of_the_loop_that_runs_here_cannot_be_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialect, "is_rlinf", True)

    async def main() -> None:
        work = SyncAdapter().run(asyncio.sleep(0, "done"), "a sleep")
        with pytest.raises(RuntimeError, match="would block the event loop"):
            work.wait(5)
        assert await work == "done"

    asyncio.run(main())

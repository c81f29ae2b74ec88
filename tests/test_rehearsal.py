"""Rehearsed devices: declared ones are placed, numbered and locked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_async import (
    Cluster,
    ConfigError,
    HybridComponentPlacement,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Worker,
)
from tests._support.workers import Plain

pytestmark = pytest.mark.shared_cluster

CHECKOUT = Path(__file__).resolve().parents[1]
SEED_FLOW = "tests/_support/documented_flow.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(local_nodes=2, fake_gpus=4, log_to_driver=False) as cluster:
        yield cluster


class Rehearsing(Worker):
    def facts(self) -> dict[str, Any]:
        import torch

        return {
            "visible": os.environ["CUDA_VISIBLE_DEVICES"],
            "local": os.environ["LOCAL_RANK"],
            "global": self.global_accelerator_ids,
            "types": (self.accelerator_type, Worker.torch_device_type, self.has_accelerator),
            "torch": (torch.cuda.is_available(), torch.cuda.device_count()),
        }

    def compute(self) -> Any:
        """What code for a GPU says to its platform."""
        import torch

        platform = self.torch_platform
        platform.set_device(int(os.environ["LOCAL_RANK"]))
        tensor = torch.ones(2, device=platform.current_device())
        platform.synchronize()
        platform.empty_cache()
        return str(tensor.device), platform.memory_allocated()

    def overlap(self) -> list[Any]:
        """How code for a GPU overlaps a copy with its work, and times it."""
        import torch

        platform = self.torch_platform
        stream, began, ended = platform.Stream(), platform.Event(enable_timing=True), platform.Event(enable_timing=True)
        began.record()
        with platform.stream(stream):
            copied = torch.ones(2).pin_memory().to("cpu", non_blocking=True)
            copied.record_stream(stream)
        ended.record(stream)
        platform.current_stream().wait_event(ended)
        stream.synchronize()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, whole = torch.cuda.mem_get_info()
        return [ended.query(), began.elapsed_time(ended) >= 0, 0 < free < whole, torch.cuda.current_device()]

    def shard(self) -> float:
        """FSDP1 as programs write it for GPUs."""
        import torch
        import torch.distributed as dist
        from torch.distributed.fsdp import FullyShardedDataParallel

        dist.init_process_group("gloo")
        model = FullyShardedDataParallel(
            torch.nn.Linear(4, 1), device_id=int(os.environ["LOCAL_RANK"]), sync_module_states=True
        )
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        total = torch.tensor([loss.item()])
        dist.all_reduce(total)
        dist.destroy_process_group()
        return abs(total.item() - 2 * loss.item())

    def to_gpu(self) -> None:
        import torch

        torch.ones(1).cuda()


def test_the_cluster_has_what_it_declares(cluster: Cluster) -> None:
    assert (cluster.num_nodes, cluster.num_accelerators) == (2, 8)
    assert cluster.accelerator_ranks == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for node in cluster.nodes:
        assert (node.accelerator_type, node.accelerator_model, node.rehearsed) == ("NV_GPU", "NV_GPU:fake", True)


def test_workers_are_told_of_their_devices_and_torch_sees_none(cluster: Cluster) -> None:
    group = Rehearsing.create_group().launch(cluster, PackedPlacementStrategy(2, 5, 2), name="pairs")
    assert group.facts().wait() == [
        {
            "visible": visible,
            "local": "0",
            "global": ids,
            "types": ("NV_GPU", "cpu", False),
            "torch": (False, 0),
        }
        for visible, ids in [("2,3", [2, 3]), ("0,1", [4, 5])]
    ]
    assert group.compute().wait() == [("cpu", 0)] * 2
    assert group.overlap().wait() == [[True, True, True, 0]] * 2
    assert max(group.shard().wait()) < 1e-5, "both ranks have rank 0's parameters"
    with pytest.raises(RuntimeError, match="No CUDA GPUs are available: this node only declares its devices"):
        group.to_gpu().wait()
    group.close()


def test_a_device_lock_holds_devices_that_are_only_declared(cluster: Cluster) -> None:
    group = Plain.create_group().launch(cluster, PackedPlacementStrategy(0, 1), name="locking")
    assert group.run("self.device_lock.__enter__() and None").wait() == [None, None]
    assert group.run("self.device_lock.release()").wait() == [None, None]
    group.close()


def test_a_worker_without_accelerators_has_no_platform() -> None:
    with Cluster(fake_gpus=0, log_to_driver=False) as bare:
        group = Plain.create_group().launch(bare, NodePlacementStrategy([0]), name="bare")
        expression = "(self.accelerator_type, self.torch_platform, self.torch_device_type, self.has_accelerator)"
        assert group.run(expression).wait() == [("NO_ACCEL", None, None, False)]


def test_a_placement_for_a_large_machine_is_refused_as_it_would_be_there(cluster: Cluster) -> None:
    config = {"cluster": {"component_placement": {"actor": "0-8"}}}
    with pytest.raises(ConfigError, match="actor"):
        HybridComponentPlacement(config, cluster)


@pytest.mark.parametrize("number", [-1, "4", True, 5000])
def test_a_number_that_is_none_is_an_error(number: Any) -> None:
    with pytest.raises(ConfigError, match="fake_gpus must be a number from 0 to 1024, got"):
        Cluster(fake_gpus=number)


@pytest.mark.parametrize("text", ["eight", "9" * 5000])
def test_a_variable_that_is_no_number_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("RLINF_FAKE_GPUS", text)
    with pytest.raises(ConfigError, match=rf"\$RLINF_FAKE_GPUS must be a number from 0 to 1024, got '{text}'"):
        Cluster()


def test_a_run_that_is_joined_has_declared_its_devices_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLINF_NODE_SOCKET", "/nowhere")
    with pytest.raises(ConfigError, match=r"this one joins a run: declare the devices with `rlinf-launch --fake-gpus"):
        Cluster(fake_gpus=8)


# --- the documentation's flow -------------------------------------------------------------------------------


def check_flow(stdout: str) -> None:
    seen = [f"gloo on cpu, seen as {device}" for device in range(8)]
    assert f"ACTOR {seen}" in stdout
    assert "ROLLOUT ['4', '5', '6', '7']" in stdout
    assert "ENV ['0', '1', '2', '3']" in stdout
    assert f"STEP 0 {[96.0] * 8}" in stdout
    assert f"STEP 1 {[192.0] * 8}" in stdout


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=CHECKOUT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_documentations_flow_runs_as_written_on_a_node_that_declares_eight_devices() -> None:
    check_flow(run(SEED_FLOW, RLINF_FAKE_GPUS="8"))


def test_a_hosts_file_declares_them_under_the_launcher(tmp_path: Path) -> None:
    hosts, script = tmp_path / "nodes.txt", tmp_path / "script.py"
    hosts.write_text("localhost fake_gpus=8\n")
    script.write_text(
        "from rlinf_async import Cluster\n"
        "with Cluster() as cluster:\n"
        "    print(cluster.num_accelerators, [node.rehearsed for node in cluster.nodes])\n"
    )
    assert run("-m", "rlinf_launcher", "--hosts", str(hosts), str(script)) == "8 [True]\n"


def test_the_flow_runs_under_the_launcher_with_a_flag_that_declares_them() -> None:
    check_flow(run("-m", "rlinf_launcher", "--local-nodes", "1", "--fake-gpus", "8", SEED_FLOW))

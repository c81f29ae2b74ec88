"""Real hosts over real ssh: one job across them, and a cable that is pulled."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests._support.fake_hosts import CHECKOUT, FakeHosts

pytestmark = pytest.mark.namespaces

MakeHosts = Callable[..., FakeHosts]
LAUNCH = [sys.executable, "-m", "rlinf_launcher"]

SMALL_JOB = [
    "train_embodied_agent.py",
    "cluster.num_nodes=2",
    "cluster.component_placement.env=0-1",
    "cluster.component_placement.rollout=1",
    "cluster.component_placement.actor=0-1",
    "env.total_num_envs=4",
    "algorithm.rollout_steps=16",
    "algorithm.update_epochs=2",
    "actor.global_batch_size=32",
    "actor.micro_batch_size=8",
    "runner.eval.episodes=3",
    "runner.eval.interval=0",
    "runner.max_steps=2",
]


def launch(hosts: FakeHosts, *arguments: str, check: bool = True, timeout: float = 150, cwd: Path = CHECKOUT) -> Any:
    """``rlinf-launch`` as the user of the driver's host types it."""
    ssh = ["--ssh-args", " ".join(hosts.ssh_args)]
    return hosts.driver.run([*LAUNCH, *ssh, *arguments], cwd=cwd, check=check, timeout=timeout)


def hosts_file(folder: Path, *lines: str) -> str:
    path = folder / "nodes.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.slow
def test_the_main_job_runs_across_two_hosts_one_of_them_without_the_checkout(
    fake_hosts: MakeHosts, tmp_path: Path
) -> None:
    pytest.importorskip("mujoco")
    hosts = fake_hosts(2, hidden={1: [CHECKOUT]})
    nodes = hosts_file(tmp_path, "node0", "node1")
    done = launch(
        hosts,
        *("--hosts", nodes, "--sync", *SMALL_JOB, f"runner.logger.log_path={tmp_path / 'logs'}"),
        cwd=CHECKOUT / "examples" / "embodiment",
    )
    assert "2 env workers, 1 rollout workers, 2 actor workers" in done.stdout
    assert f"--sync ships {CHECKOUT}: " in done.stderr
    assert "evaluation of InvertedPendulum-v5" in done.stdout
    assert json.loads((tmp_path / "logs" / "evaluation.json").read_text())
    for host in hosts:
        assert host.run(["sh", "-c", "ls -d /tmp/rlinf-[0-9]* /run/user/*/rlinf-* 2>/dev/null || true"]).stdout == ""


def test_ranks_of_one_group_live_on_hosts_of_their_own(fake_hosts: MakeHosts, tmp_path: Path) -> None:
    hosts = fake_hosts(2)
    script = tmp_path / "where.py"
    script.write_text(
        dedent("""
        import os, socket
        from rlinf_async import Cluster, NodePlacementStrategy, Worker

        class Where(Worker):
            def where(self):
                return socket.gethostname(), os.environ["MASTER_ADDR"], os.environ.get("HF_MINE")

            def reduce(self):
                import torch, torch.distributed as dist
                dist.init_process_group("gloo")
                value = torch.ones(1)
                dist.all_reduce(value)
                return value.item()

        if __name__ == "__main__":
            with Cluster(num_nodes=2) as cluster:
                group = Where.create_group().launch(cluster, NodePlacementStrategy([0, 1, 1]), name="where")
                print("WHERE", group.where().wait())
                print("SUM", group.reduce().wait())
                print("CROSSED", cluster.status(0)["node"])
        """)
    )
    nodes = hosts_file(tmp_path, "node0", "node1 slots=2")
    done = launch(hosts, "--hosts", nodes, "-e", "HF_MINE=yes", "--sync", str(tmp_path), "--", str(script))
    first = hosts[0].address
    assert (
        f"WHERE [('node0', '{first}', 'yes'), ('node1', '{first}', 'yes'), ('node1', '{first}', 'yes')]" in done.stdout
    )
    assert "SUM [3.0, 3.0, 3.0]" in done.stdout


@pytest.mark.slow
def test_a_host_whose_cable_is_pulled_is_lost_and_told(fake_hosts: MakeHosts, tmp_path: Path) -> None:
    hosts = fake_hosts(2)
    script = tmp_path / "wait.py"
    script.write_text(
        dedent("""
        import time
        from rlinf_async import Cluster, NodeLost, NodePlacementStrategy, Worker

        class Sleeper(Worker):
            async def sleep(self):
                import asyncio
                print("sleeping", flush=True)
                await asyncio.sleep(600)

        if __name__ == "__main__":
            with Cluster(num_nodes=2) as cluster:
                group = Sleeper.create_group().launch(cluster, NodePlacementStrategy([0, 1]), name="s").wait_ready()
                handle = group.sleep()
                print("CALLED", flush=True)
                since = time.monotonic()
                try:
                    handle.wait()
                except NodeLost as lost:
                    print("LOST", lost.node_rank, "after", 3 < time.monotonic() - since < 6, flush=True)
        """)
    )
    nodes = hosts_file(tmp_path, "node0", "node1")
    command = [*LAUNCH, "--ssh-args", " ".join(hosts.ssh_args), "--hosts", nodes, "--sync", str(tmp_path), "--", script]
    lease = {"RLINF_LEASE_S": "3"}
    process = hosts.driver.popen(command, cwd=CHECKOUT, env=lease, stdout=-1, stderr=-1, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("CALLED"):
            break
    hosts[1].link_down()
    stdout, stderr = process.communicate(timeout=60)
    assert "LOST 1 after True" in stdout, stdout + stderr

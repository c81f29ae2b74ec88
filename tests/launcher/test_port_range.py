"""``--port-range``: where the daemons of a run, the stores of its groups and its workers listen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests._support.fake_hosts import CHECKOUT

SCRIPT = """
import json, os, psutil
from rlinf_async import Cluster, NodePlacementStrategy, Worker

class Store(Worker):
    def port(self):
        return int(os.environ["MASTER_PORT"])

    def free(self):
        return self.acquire_free_port()

with Cluster() as cluster:
    place = NodePlacementStrategy([0, 1])
    groups = [Store.create_group().launch(cluster, placement=place, name=f"g{n}").wait_ready() for n in range(2)]
    ports = {port for group in groups for port in group.port().wait()}
    free = [port for group in groups for port in group.free().wait()]
    pids = [cluster.status(node)["pid"] for node in range(2)]
    told = [c.laddr.port for pid in pids for c in psutil.Process(pid).net_connections("inet") if c.status == "LISTEN"]
    print(json.dumps([sorted(ports | set(told)), free]))
    try:
        for n in range(9):
            Store.create_group().launch(cluster, placement=place, name=f"more{n}").wait_ready()
    except Exception as error:
        print(type(error).__name__, error)
"""


def launch(tmp_path: Path, ports: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "rlinf_launcher", "-q", "--local-nodes", "2", "--port-range", ports, str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=CHECKOUT)


@pytest.mark.slow
def test_daemons_stores_and_workers_keep_to_the_range_and_its_end_is_an_error_that_names_it(tmp_path: Path) -> None:
    done = launch(tmp_path, "23100-23111")
    lines = done.stdout.splitlines()
    listening, free = json.loads(lines[0])
    assert len(listening) >= 4, done.stdout + done.stderr  # two daemons, two stores
    assert len(set(free)) == 4
    assert all(23100 <= port <= 23111 for port in [*listening, *free])
    assert lines[1].startswith("LaunchError")
    assert "no port of 23100-23111 (--port-range) is free on 127.0.0.1 for the store of group 'more" in done.stdout
    assert "promised by acquire_free_port()" in done.stdout


def test_too_few_ports_for_the_daemons_are_an_error_before_the_script(tmp_path: Path) -> None:
    done = launch(tmp_path, "23120-23120")
    assert done.returncode == 255
    assert "no port of 23120-23120 (--port-range) is free on 127.0.0.1 for the daemon of node" in done.stderr
    assert done.stdout == ""

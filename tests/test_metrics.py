"""Metrics of a run, scraped while its driver's loop is blocked and a rank is stopped."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker
from rlinf_async._core import operations
from rlinf_async.errors import ConfigError
from tests._support.inspected_runs import CONTROL

Sample = tuple[str, frozenset[tuple[str, str]]]


class Player(Worker):
    def play(self, episodes: int) -> None:
        self.metrics.counter("episodes").add(episodes)
        self.metrics.gauge("return", task="cheetah").set(self._rank + 0.5)

    def stand_still(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


def fetch(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as response:
        return str(response.read().decode())


def samples(text: str) -> dict[Sample, float]:
    return {
        (found.name, frozenset(found.labels.items())): found.value
        for family in text_string_to_metric_families(text)
        for found in family.samples
    }


def sample(name: str, **labels: str) -> Sample:
    return name, frozenset(labels.items())


def address_of(run_id: str) -> str:
    """As ``rlinf-ctl`` tells it, from another process."""
    told = subprocess.run([CONTROL, "ps", "--json"], capture_output=True, text=True, check=True)
    (run,) = [run for run in map(json.loads, told.stdout.splitlines()) if run["run"] == run_id]
    return str(run["metrics"])


def wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 20
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline, f"process {pid} is not stopped"
        time.sleep(0.01)


async def test_a_run_is_scraped_while_its_driver_is_blocked_and_a_rank_is_stopped() -> None:
    async with Cluster(local_nodes=2, metrics="127.0.0.1:0", log_to_driver=False) as cluster:
        players = Player.create_group().launch(cluster, NodePlacementStrategy([0, 1]), name="players")
        await players.play(3)
        await players.play(4)
        cluster.metrics.gauge("step").set(2)
        channel = Channel.create("obs")
        await channel.put(b"item")
        with pytest.raises(ConfigError, match=r"served at 127.0.0.1:[0-9]+ already: they cannot be at 127.0.0.1:1 as"):
            await cluster._client.request(operations.ServeMetrics("127.0.0.1:1"), node=0)
        standing = players.execute_on(1).stand_still()
        await asyncio.sleep(0.1)  # the daemon hears of calls that are open after 2 ms
        # From here on this loop, which is the driver's, does not turn.
        pid = players.worker_info_list[1].worker.pid
        wait_until_stopped(pid)
        assert cluster.metrics_address == address_of(cluster.run_id)
        text = fetch(cluster.metrics_address)
        os.kill(pid, signal.SIGCONT)
        await standing

    found = samples(text)
    for rank, node in enumerate(("local-0", "local-1")):
        who = {"node": node, "group": "players", "rank": str(rank)}
        assert found[sample("rlinf_node_up", node=node)] == 1
        assert found[sample("rlinf_node_links", node=node)] == 1
        assert found[sample("rlinf_ranks", node=node, group="players")] == 1
        assert found[sample("rlinf_ranks_away", node=node, group="players")] == 0
        assert found[sample("rlinf_open_calls", **who)] == rank
        assert found[sample("rlinf_resident_memory_bytes", **who)] > 1e6
        assert found[sample("episodes_total", **who)] == 7
        assert found[sample("return", task="cheetah", **who)] == rank + 0.5
    assert found[sample("step", node="local-0", group="driver", rank="0")] == 2
    assert found[sample("rlinf_channel_items", node="local-0", channel="obs")] == 1
    if shutil.which("promtool"):
        done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_address_that_is_taken_is_an_error_before_anything_is_launched(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        config = {"metrics": {"address": address}}
        with pytest.raises(
            ConfigError, match=f"served at {address} of localhost: Address already in use; .* cluster.metrics.address"
        ):
            Cluster(num_nodes=1, cluster_cfg=config)
    with pytest.raises(ConfigError, match=r"metrics= of Cluster\(\): .* got 'localhost:1'"):
        Cluster(metrics="localhost:1")
    with pytest.raises(ConfigError, match=r"metrics cannot be served at 192.0.2.1:0 of localhost: .*assign"):
        Cluster(metrics="192.0.2.1:0")
    assert "metrics at 192.0.2.1:0 are protected by nothing" in caplog.text

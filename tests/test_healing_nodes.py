"""Networks that are away between real hosts: for a while, which costs time only, and for good."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests._support.fake_hosts import CHECKOUT, FakeHosts

pytestmark = [pytest.mark.namespaces, pytest.mark.slow]

MakeHosts = Callable[..., FakeHosts]


@contextmanager
def launched(hosts: FakeHosts, folder: Path, module: str, *arguments: str, **env: str) -> Iterator[Any]:
    """The script on node0 and node1, started from the driver's host; its stdout is read up to the line with GO."""
    nodes = folder / "nodes.txt"
    nodes.write_text("node0\nnode1\n")
    argv = [sys.executable, "-m", "rlinf_launcher", "--ssh-args", " ".join(hosts.ssh_args), "--hosts", nodes]
    process = hosts.driver.popen(
        [*argv, "-m", module, *arguments],
        cwd=CHECKOUT,
        env={"PYTHONPATH": str(CHECKOUT), "PATH": os.environ["PATH"], **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=30)


def go(process: Any) -> str:
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith("GO"):
            return str(line)
    raise AssertionError(said + process.stderr.read())


def traffic_over_a_cut(hosts: FakeHosts, folder: Path, *, away: float, lease: float) -> dict[str, Any]:
    """What a run tells that had its second node's cable pulled for so many seconds."""
    module = "tests._support.crossing_traffic"
    with launched(hosts, folder, module, str(away + 4), RLINF_LEASE_S=str(lease)) as process:
        go(process)
        timer = time.monotonic() + 1
        while time.monotonic() < timer:
            time.sleep(0.05)
        hosts[1].link_down()
        time.sleep(away)
        hosts[1].link_up()
        stdout, stderr = process.communicate(timeout=120)
        told = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
        assert told, stdout + stderr
        assert "lost" not in stderr, stderr
    return told[0]


def check_ledger(told: dict[str, Any], away: float) -> None:
    """Everything has arrived once, and some of each kind: a busy machine may do little before the network is cut."""
    least = 2
    assert told["slowest"] > away - 0.5, told  # the cut was in the middle of it
    assert told["calls"] == told["ran"] > least, told
    assert told["calls far"] == told["ran far"] > least, told
    for sent, arrived in [
        ("sent", "received"),
        ("sent back", "received back"),
        ("put here", "got here"),
        ("put there", "got there"),
        ("broadcast", "heard"),
    ]:
        assert told[sent] == told[arrived], (sent, told)
        assert told[sent] > least, told
    # Where a packet takes 100 ms the second version may still be on its way at the end.
    assert (2 if away else 1) <= told["applied"] <= told["versions"], told


def test_a_cable_that_is_pulled_for_seconds_costs_time_only(fake_hosts: MakeHosts, tmp_path: Path) -> None:
    told = traffic_over_a_cut(fake_hosts(2), tmp_path, away=2.5, lease=5)
    check_ledger(told, 2.5)


@pytest.mark.faults
@pytest.mark.parametrize("away", [4, 8, 10])
def test_a_network_that_is_away_for_up_to_ten_seconds_costs_time_only(
    fake_hosts: MakeHosts, tmp_path: Path, away: float
) -> None:
    check_ledger(traffic_over_a_cut(fake_hosts(2), tmp_path, away=away, lease=15), away)


def cut_for_good(hosts: FakeHosts, folder: Path, *, lease: float) -> None:
    module = "tests._support.cut_off_node"
    with launched(hosts, folder, module, RLINF_LEASE_S=str(lease), STAY_S="7") as process:
        run = go(process).split()[1]
        assert len(hosts[1].processes(run)) >= 3
        cut = time.monotonic()
        hosts[1].link_down()
        told = next(json.loads(line) for line in process.stdout if line.startswith("{"))
        assert lease - 0.5 < told["seconds"] < lease * 1.2 + 1
        kind, node, reason = told["driver"]
        assert (kind, node) == ("NodeLost", 1)
        assert f"no sign of life for {lease * 1.1:.1f} s" in reason
        assert told["worker"][:2] == [kind, node]
        assert told["worker"][2] in reason  # as node 0 has put it
        while hosts[1].processes(run) and time.monotonic() < cut + lease * 1.1 + 6:
            time.sleep(0.05)
        assert hosts[1].processes(run) == []
        stdout, stderr = process.communicate(timeout=60)
        assert stderr.count("node1: lost: ") == 1, stdout + stderr
        assert "node0: lost" not in stderr
        hosts[1].link_up()


def test_a_node_that_is_cut_off_is_lost_once_for_everybody_and_ends_itself(
    fake_hosts: MakeHosts, tmp_path: Path
) -> None:
    cut_for_good(fake_hosts(2), tmp_path, lease=3)


@pytest.mark.faults
def test_twenty_seconds_are_a_loss_after_fifteen_and_nothing_is_left_of_the_node_after_twenty_five(
    fake_hosts: MakeHosts, tmp_path: Path
) -> None:
    cut_for_good(fake_hosts(2), tmp_path, lease=15)

"""Networks that delay, lose, double, reorder and starve, between real hosts: they cost time, and no node is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests._support import rough_link
from tests._support.fake_hosts import FakeHosts
from tests._support.rough_link import RoughLink
from tests.test_healing_nodes import check_ledger, go, launched

pytestmark = [pytest.mark.namespaces, pytest.mark.slow]

MakeHosts = Callable[..., FakeHosts]

LOSSY = {"loss": 0.05}
FAR = {"delay_s": 0.1, "jitter_s": 0.05}
DOUBLED = {"delay_s": 0.01, "jitter_s": 0.01, "duplication": 0.05, "loss": 0.01}
CONDITIONS = {"loss of 5 %": LOSSY, "100 ± 50 ms, out of order": FAR, "doubled": DOUBLED}

LONG_S = 120.0
MBIT = 125_000
"""Bytes a second."""


@pytest.fixture(autouse=True)
def _has_tun() -> None:
    if lack := rough_link.missing():
        pytest.skip(lack)


def set_conditions(link: RoughLink, conditions: dict[str, float]) -> None:
    for name, value in conditions.items():
        setattr(link, name, value)


def told_by(process: Any, timeout: float) -> dict[str, Any]:
    stdout, stderr = process.communicate(timeout=timeout)
    told = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
    assert told, stdout + stderr
    assert "lost" not in stderr, stderr
    return dict(told[0])


def traffic(hosts: FakeHosts, folder: Path, conditions: dict[str, float], *, seconds: float, lease: float) -> None:
    with RoughLink(hosts, 1) as link:
        module = "tests._support.crossing_traffic"
        with launched(hosts, folder, module, str(seconds), RLINF_LEASE_S=str(lease)) as process:
            go(process)
            set_conditions(link, conditions)
            before = link.carried
            told = told_by(process, seconds + 120)
        assert link.carried > before + 100, link.carried
        check_ledger(told, 0.0)


@pytest.mark.parametrize(
    "conditions",
    [FAR, pytest.param(LOSSY, marks=pytest.mark.faults), pytest.param(DOUBLED, marks=pytest.mark.faults)],
    ids=["100 ± 50 ms, out of order", "loss of 5 %", "doubled"],
)
def test_traffic_of_every_kind_arrives_once_over_a_rough_network(
    fake_hosts: MakeHosts, tmp_path: Path, conditions: dict[str, float]
) -> None:
    seconds = 10 if conditions is FAR else 4  # a connection of its own takes many round trips to be made
    traffic(fake_hosts(2), tmp_path, conditions, seconds=seconds, lease=3)


@pytest.mark.faults
@pytest.mark.parametrize("conditions", CONDITIONS.values(), ids=CONDITIONS)
def test_two_minutes_of_a_rough_network_are_no_death(
    fake_hosts: MakeHosts, tmp_path: Path, conditions: dict[str, float]
) -> None:
    traffic(fake_hosts(2), tmp_path, conditions, seconds=LONG_S, lease=15)


def thin_link(hosts: FakeHosts, folder: Path, nbytes: int, lease: float) -> dict[str, Any]:
    with RoughLink(hosts, 1) as link:
        module = "tests._support.thin_link_traffic"
        with launched(hosts, folder, module, str(nbytes), RLINF_LEASE_S=str(lease)) as process:
            go(process)
            link.rate = MBIT
            return told_by(process, nbytes / MBIT * 3 + 60)


def test_a_result_that_fills_a_thin_network_for_longer_than_a_lease_costs_no_node(
    fake_hosts: MakeHosts, tmp_path: Path
) -> None:
    told = thin_link(fake_hosts(2), tmp_path, 800_000, lease=3)
    assert told["seconds"] > 5
    assert told["calls"] > 2


@pytest.mark.faults
def test_ten_megabytes_at_a_megabit_a_second_cost_no_node(fake_hosts: MakeHosts, tmp_path: Path) -> None:
    told = thin_link(fake_hosts(2), tmp_path, 10_000_000, lease=15)
    assert told["seconds"] > 70
    assert told["calls"] > 20


@pytest.mark.faults
@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_node_that_is_heard_and_hears_nothing_or_the_reverse_is_lost_once_and_ends_itself(
    fake_hosts: MakeHosts, tmp_path: Path, direction: str
) -> None:
    hosts, lease = fake_hosts(2), 3.0
    with (
        RoughLink(hosts, 1) as link,
        launched(hosts, tmp_path, "tests._support.cut_off_node", RLINF_LEASE_S=str(lease), STAY_S="7") as process,
    ):
        run = go(process).split()[1]
        cut = time.monotonic()
        setattr(link, f"blocks_{direction}", True)
        told = next(json.loads(line) for line in process.stdout if line.startswith("{"))
        assert told["driver"][:2] == told["worker"][:2] == ["NodeLost", 1]
        assert told["seconds"] < lease * 1.2 + 1
        while hosts[1].processes(run) and time.monotonic() < cut + lease * 1.1 + 6:
            time.sleep(0.05)
        assert hosts[1].processes(run) == []
        stdout, stderr = process.communicate(timeout=60)
        assert stderr.count("node1: lost: ") == 1, stdout + stderr
        setattr(link, f"blocks_{direction}", False)

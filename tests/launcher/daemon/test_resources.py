from __future__ import annotations

import ipaddress
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import psutil
import pytest

from rlinf_launcher.daemon.resources import addresses, count_cpus, count_memory, facts
from tests._support.fake_nvml import FakeLibrary


@pytest.fixture
def four_cards(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    return FakeLibrary.with_four_cards(monkeypatch)


# --- CPUs ---------------------------------------------------------------------------------------------------


@pytest.fixture
def sixteen_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


Tree = Callable[[dict[str, str]], Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    def build(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return build


V2 = "sys/fs/cgroup"


@pytest.mark.usefixtures("sixteen_cpus")
@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        pytest.param({}, 16, id="no control groups"),
        pytest.param({"proc/self/cgroup": "0::/job\n", f"{V2}/job/cpu.max": "400000 100000\n"}, 4, id="v2"),
        pytest.param({"proc/self/cgroup": "0::/job\n", f"{V2}/job/cpu.max": "max 100000\n"}, 16, id="v2 no limit"),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b\n",
                f"{V2}/a/cpu.max": "200000 100000\n",
                f"{V2}/a/b/cpu.max": "800000 100000\n",
            },
            2,
            id="v2 the parent is stricter",
        ),
        pytest.param({"proc/self/cgroup": "0::/gone\n", f"{V2}/cpu.max": "300000 100000\n"}, 3, id="v2 in a container"),
        pytest.param(
            {"proc/self/cgroup": "1:cpu:/\n0::/job\n", f"{V2}/unified/job/cpu.max": "500000 100000\n"}, 5, id="hybrid"
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/x\n2:cpu,cpuacct:/job\n",
                f"{V2}/cpu,cpuacct/job/cpu.cfs_quota_us": "250000\n",
                f"{V2}/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
                f"{V2}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                f"{V2}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2,
            id="v1, rounded down",
        ),
        pytest.param({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "50000 100000\n"}, 1, id="never less than one"),
        pytest.param({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "9900000 100000\n"}, 16, id="affinity"),
    ],
)
def test_usable_cpus_are_the_affinity_bounded_by_the_quota(tree: Tree, files: dict[str, str], cpus: int) -> None:
    assert count_cpus(tree(files)) == cpus


@pytest.mark.parametrize(
    ("files", "memory"),
    [
        pytest.param({}, 1000 << 10, id="the machine's"),
        pytest.param({"proc/self/cgroup": "0::/job/a\n", f"{V2}/job/memory.max": "5000\n"}, 5000, id="v2, above"),
        pytest.param({"proc/self/cgroup": "0::/job\n", f"{V2}/job/memory.max": "max\n"}, 1000 << 10, id="no limit"),
        pytest.param(
            {"proc/self/cgroup": "4:memory:/x\n", f"{V2}/memory/x/memory.limit_in_bytes": "7000\n"}, 7000, id="v1"
        ),
    ],
)
def test_usable_memory_is_the_machines_bounded_by_the_limits(tree: Tree, files: dict[str, str], memory: int) -> None:
    assert count_memory(tree({"proc/meminfo": "MemTotal:    1000 kB\nMemFree: 5 kB\n", **files})) == memory


def test_this_machine_has_a_cpu() -> None:
    assert 1 <= count_cpus() <= len(os.sched_getaffinity(0))


# --- addresses ----------------------------------------------------------------------------------------------


class Address(NamedTuple):
    """One address of psutil, as far as it is used."""

    family: int
    address: str


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    v4, v6 = socket.AF_INET, socket.AF_INET6
    own = {
        "lo": [Address(v4, "127.0.0.1"), Address(v6, "::1")],
        "eth0": [Address(v6, "fd00::2"), Address(v6, "fe80::1%eth0"), Address(v4, "10.0.0.2")],
        "ib0": [Address(v6, "fe80::2%ib0")],
        "down0": [Address(v4, "10.9.9.9")],
        "bare0": [Address(socket.AF_PACKET, "02:00:00:00:00:01")],
    }
    states = {name: SimpleNamespace(isup=name != "down0") for name in own}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: own)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)


@pytest.mark.usefixtures("interfaces")
def test_addresses_are_those_that_another_node_could_use() -> None:
    assert addresses() == {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.2", "fd00::2"]}


# --- all of it ----------------------------------------------------------------------------------------------


def test_the_facts_survive_json_and_are_complete(four_cards: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    told = facts()
    assert json.loads(json.dumps(told)) == told
    assert set(told) == {
        *("hostname", "python", "executable", "cpus", "gpus", "accelerator_type", "rehearsed", "addresses", "boot_id"),
        *("machine_id", "time"),
    }
    assert told["gpus"] == [{"id": "1", "model": "H200"}]
    assert facts(environ={"CUDA_VISIBLE_DEVICES": ""})["gpus"] == []
    assert told["hostname"] == socket.gethostname()
    assert all(ipaddress.ip_address(ip) for ips in told["addresses"].values() for ip in ips)
    assert [gpu["id"] for gpu in facts(["2"])["gpus"]] == ["2"]
    assert (told["accelerator_type"], told["rehearsed"]) == ("NV_GPU", False)
    declared = facts(fake_gpus=3)
    assert [gpu["id"] for gpu in declared["gpus"]] == ["0", "1", "2"]
    assert (declared["accelerator_type"], declared["rehearsed"]) == ("NV_GPU", True)

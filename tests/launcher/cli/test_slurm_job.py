"""Nodes of a Slurm job, from its variables and scontrol; the choice between srun and ssh."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf_async.errors import ConfigError
from rlinf_launcher.cli.allocation import with_launcher
from rlinf_launcher.cli.hosts_file import parse_list
from rlinf_launcher.cli.slurm_job import show_job, slurm_hosts
from rlinf_launcher.remote.host import Host, SlurmNode, describe

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0-2]", "SLURMD_NODENAME": "n0", "SLURM_GPUS_ON_NODE": "2"}
HET = {
    "SLURM_JOB_ID": "7",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST": "n0",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n0",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-2]",
    "SLURM_JOB_NAME_HET_GROUP_0": "trainer",
    "SLURM_JOB_NAME_HET_GROUP_1": "rollout",
    "SLURMD_NODENAME": "n0",
}
TOLD = """JobId=7 JobName=x
   NumNodes=3 NumCPUs=6 NumTasks=3 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
     Nodes=n0 CPU_IDs=0-1 Mem=0 GRES=gpu:2(IDX:0,3)
     Nodes=n[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:a100:1(IDX:0),gpu:v100:3(IDX:1-3),nic:1
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
"""


def silent(job: str) -> str:
    return ""


def gpus(text: str) -> list[int | None]:
    return [host.slurm.gpus for host in slurm_hosts(JOB, lambda job: text) if host.slurm is not None]


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an srun, and a scontrol that fails, on the PATH."""
    for name in ("srun", "scontrol"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def ways(hosts: str, launcher: str, environ: dict[str, str]) -> list[bool]:
    return [host.slurm is not None for host in with_launcher(parse_list(hosts), launcher, environ)]


def test_every_node_has_a_slot_per_gpu_of_the_job() -> None:
    assert gpus(TOLD) == [2, 4, 4]
    assert [host.slots for host in slurm_hosts(JOB, lambda job: TOLD)] == [2, 4, 4]


def test_a_job_without_gpus_leaves_slots_open() -> None:
    plain = "     Nodes=n[0-2] CPU_IDs=0-1 Mem=0 GRES=\n"
    assert gpus(plain) == [0, 0, 0]
    assert [host.slots for host in slurm_hosts(JOB, lambda job: plain)] == [None] * 3


def test_without_scontrol_all_nodes_count_as_this_one() -> None:
    assert [host.slots for host in slurm_hosts(JOB, silent)] == [2, 2, 2]
    assert gpus("") == [None, None, None]


def test_this_node_is_slurmds_not_the_one_of_that_hostname() -> None:
    assert [host.slurm.is_here for host in slurm_hosts(JOB, silent) if host.slurm] == [True, False, False]
    elsewhere = {name: value for name, value in JOB.items() if name != "SLURMD_NODENAME"}
    assert not any(host.slurm.is_here for host in slurm_hosts(elsewhere, silent) if host.slurm)


def test_components_are_node_groups_by_number_and_name() -> None:
    hosts = slurm_hosts(HET, silent)
    assert [(host.name, host.labels) for host in hosts] == [
        ("n0", ("het0", "trainer")),
        ("n1", ("het1", "rollout")),
        ("n2", ("het1", "rollout")),
    ]
    assert [host.slurm.component for host in hosts if host.slurm] == [0, 1, 1]
    assert " labels=het1,rollout (srun, component 1) from $SLURM_JOB_NODELIST_HET_GROUP_1" in describe(hosts[1])


@pytest.mark.parametrize("names", [("job.sh", "job.sh"), ("node", "cluster"), ("my job", "a,b")])
def test_an_ambiguous_component_name_is_no_label(names: tuple[str, str]) -> None:
    named = {f"SLURM_JOB_NAME_HET_GROUP_{number}": name for number, name in enumerate(names)}
    assert [host.labels for host in slurm_hosts({**HET, **named}, silent)] == [("het0",), ("het1",), ("het1",)]


def test_a_node_in_two_components_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"\$SLURM_JOB_NODELIST_HET_GROUP_1: 'n0' is in another component"):
        slurm_hosts({**HET, "SLURM_JOB_NODELIST_HET_GROUP_1": "n[0-1]"}, silent)


@pytest.mark.parametrize("size", ["9" * 5000, "99999999999", "two", "-1", "٣"])
def test_a_count_that_slurm_would_not_write_is_an_error(size: str) -> None:
    with pytest.raises(ConfigError, match=rf"\$SLURM_HET_SIZE is '{size}', not a number\n  fix: "):
        slurm_hosts(HET | {"SLURM_HET_SIZE": size}, silent)
    with pytest.raises(ConfigError, match=rf"\$SLURM_GPUS_ON_NODE is '{size}', not a number\n  fix: "):
        slurm_hosts(JOB | {"SLURM_GPUS_ON_NODE": size}, silent)


@pytest.mark.usefixtures("srun")
def test_a_job_name_that_is_not_utf_8_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\nprintf 'JobName=\\344\\n Nodes=n0 GRES=gpu:2'\n")
    assert slurm_hosts(JOB)[0].slots == 2


@pytest.mark.usefixtures("srun")
def test_auto_is_srun_within_the_job_and_ssh_outside() -> None:
    assert ways("n0,n1", "auto", JOB) == [True, True]
    assert ways("n0,other", "auto", JOB) == [False, False]
    assert ways("n0,me@n1", "auto", JOB) == [False, False]
    assert ways("n0,n1", "auto", {}) == [False, False]
    assert ways("n0,n1", "ssh", JOB) == [False, False]
    assert ways("localhost,", "auto", JOB) == [False]


def test_auto_is_ssh_without_a_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert ways("n0,n1", "auto", JOB) == [False, False]
    with pytest.raises(ConfigError, match="--launcher srun: there is no srun on the PATH"):
        ways("n0,n1", "srun", JOB)


def test_a_node_of_the_job_is_not_reached_by_ssh() -> None:
    assert with_launcher((Host("n1", slurm=SlurmNode(gpus=3)),), "ssh", JOB) == (Host("n1"),)


@pytest.mark.usefixtures("srun")
def test_srun_for_a_host_outside_the_job_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'other' \(.*\) is none of this job's nodes \(n0, n1, n2\)"):
        ways("n0,other", "srun", JOB)
    with pytest.raises(ConfigError, match=r"'n0' \(.*\) is no node of a job: \$SLURM_JOB_ID is not set"):
        ways("n0,", "srun", {})


@pytest.mark.usefixtures("srun")
def test_a_step_of_many_tasks_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"each of the 3 tasks of this step .* starts rlinf-launch"):
        ways("n0,n1", "auto", {**JOB, "SLURM_STEP_NUM_TASKS": "3"})
    assert ways("n0,n1", "auto", {**JOB, "SLURM_STEP_NUM_TASKS": "1"}) == [True, True]


@pytest.mark.usefixtures("srun")
def test_a_scontrol_that_fails_or_is_missing_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert show_job("7") == ""
    monkeypatch.setenv("PATH", "/nowhere")
    assert show_job("7") == ""

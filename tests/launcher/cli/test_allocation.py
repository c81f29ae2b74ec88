from __future__ import annotations

import io
from pathlib import Path

import pytest

from rlinf_async.errors import ConfigError
from rlinf_launcher.cli import allocation
from rlinf_launcher.cli.allocation import find_hosts
from rlinf_launcher.cli.hosts_file import Host


@pytest.fixture(autouse=True)
def job_hostfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path of the test's own in place of /job/hostfile; nothing is there yet."""
    path = tmp_path / "job-hostfile"
    monkeypatch.setattr(allocation, "JOB_HOSTFILE", path)
    return path


def found(argument: str | None = None, stdin: str = "", **environ: str) -> list[tuple[str, int | None]]:
    hosts, _ = find_hosts(argument, environ, io.StringIO(stdin))
    return [(host.name, host.slots) for host in hosts]


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_the_first_source_that_is_there_counts(tmp_path: Path, job_hostfile: Path) -> None:
    sources = {
        "RLINF_HOSTS": "ours,",
        "SLURM_JOB_NODELIST": "slurm",
        "PBS_NODEFILE": write(tmp_path / "pbs", "pbs\n"),
        "LSB_DJOB_HOSTFILE": write(tmp_path / "lsf", "lsf\n"),
        "OMPI_MCA_orte_default_hostfile": write(tmp_path / "mpi", "mpi\n"),
    }
    job_hostfile.write_text("job\n")
    seen = [found("flag,", **sources)[0][0]]
    for name in tuple(sources):
        seen.append(found(None, **sources)[0][0])
        del sources[name]
    seen.append(found(None)[0][0])
    job_hostfile.unlink()
    seen.append(found(None)[0][0])
    assert seen == ["flag", "ours", "slurm", "pbs", "lsf", "mpi", "job", "localhost"]


def test_an_empty_variable_counts_as_unset() -> None:
    assert found(None, RLINF_HOSTS="", SLURM_JOB_NODELIST="", PBS_NODEFILE="") == [("localhost", None)]


def test_without_any_source_this_machine_is_the_host() -> None:
    hosts, where = find_hosts(None, {}, io.StringIO())
    assert hosts == (Host("localhost", source="default"),)
    assert hosts[0].is_local
    assert where.startswith("this machine")


def test_flag_and_variable_take_a_file_stdin_or_a_list(tmp_path: Path) -> None:
    path = write(tmp_path / "nodes.txt", "a slots=2\n")
    assert found(path) == found(None, RLINF_HOSTS=path) == found("-", "a:2") == found("a:2,") == [("a", 2)]
    assert found(None, "a:2", RLINF_HOSTS="-") == [("a", 2)]


def test_slurms_list_is_expanded_and_takes_its_gpus_for_slots() -> None:
    nodes = "gpu[08-10],login1,r[1-2]n[3,5]"
    names = ["gpu08", "gpu09", "gpu10", "login1", "r1n3", "r1n5", "r2n3", "r2n5"]
    assert found(None, SLURM_JOB_NODELIST=nodes) == [(name, None) for name in names]
    assert found(None, SLURM_JOB_NODELIST=nodes, SLURM_GPUS_ON_NODE="8") == [(name, 8) for name in names]
    assert found(None, SLURM_NODELIST="a,b", SLURM_GPUS_ON_NODE="0") == [("a", None), ("b", None)]


def test_slurm_variables_that_make_no_sense_are_named() -> None:
    with pytest.raises(ConfigError, match=r"\$SLURM_GPUS_ON_NODE is 'gpu:2', not a number"):
        found(None, SLURM_JOB_NODELIST="a", SLURM_GPUS_ON_NODE="gpu:2")
    with pytest.raises(ConfigError, match=r"^\$SLURM_JOB_NODELIST:1:4: this bracket is never closed"):
        found(None, SLURM_JOB_NODELIST="gpu[08-10")


@pytest.mark.parametrize("name", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE"])
def test_repeated_lines_of_pbs_and_lsf_are_slots(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "nodes", "b\na\nb\nb\n")
    assert found(None, **{name: path}) == [("b", 3), ("a", None)]


def test_an_mpi_operators_hosts_file_is_read_as_ours(tmp_path: Path) -> None:
    path = write(tmp_path / "hostfile", "worker-0.job slots=1\nworker-1.job:4\n")
    assert found(None, OMPI_MCA_orte_default_hostfile=path) == [("worker-0.job", 1), ("worker-1.job", 4)]


def test_a_job_hostfile_comes_with_the_way_around_it(job_hostfile: Path) -> None:
    job_hostfile.write_text("worker-1 slots=8\n")
    hosts, where = find_hosts(None, {}, io.StringIO())
    assert [host.name for host in hosts] == ["worker-1"]
    assert str(job_hostfile) in where
    assert "--hosts localhost" in where


@pytest.mark.parametrize("name", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "OMPI_MCA_orte_default_hostfile"])
def test_a_missing_file_is_named_with_its_variable(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"gone:1:1: cannot read the hosts: No such file[^\n]*\n.*\${name}"):
        found(None, **{name: str(tmp_path / "gone")})


def test_duplicates_are_allowed_where_the_user_says_so() -> None:
    with pytest.raises(ConfigError, match="listed twice"):
        found("a,a")
    hosts, _ = find_hosts("a:2,a:1", {}, io.StringIO(), allow_duplicates=True)
    assert [(host.name, host.slots) for host in hosts] == [("a", 3)]


def test_the_words_say_where_the_hosts_came_from() -> None:
    assert find_hosts("a,", {}, io.StringIO())[1] == "--hosts a,"
    assert find_hosts(None, {"RLINF_HOSTS": "a,"}, io.StringIO())[1] == "$RLINF_HOSTS (a,)"
    assert find_hosts(None, {"SLURM_JOB_NODELIST": "a"}, io.StringIO())[1] == "Slurm ($SLURM_JOB_NODELIST)"

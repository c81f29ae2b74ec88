"""Out-of-memory kills: evidence from kernel log and cgroup."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlinf_async import Cluster, WorkerDied
from rlinf_launcher.daemon import oom
from rlinf_launcher.daemon.oom import MemoryKills, explain_kill
from tests._support.workers import Plain

GREEDY = "x = bytearray(200 << 20)"


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup of 64 MB."""
    v1 = oom.CGROUPS / "memory/memory.limit_in_bytes"
    path = (oom.CGROUPS / "memory" if v1.exists() else oom.CGROUPS) / f"rlinf-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / ("memory.limit_in_bytes" if v1.exists() else "memory.max")).write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"a memory cgroup can only be made by root, where cgroups may be written to: {error}")
    yield path
    deadline = time.monotonic() + 5
    while True:
        try:
            path.rmdir()
            return
        except OSError:  # what was killed in it is still being taken apart
            assert time.monotonic() < deadline


def run_out_of_memory(cgroup: Path) -> int:
    """Return the pid of a process that the kernel has killed for lack of memory."""
    join = f"open({str(cgroup / 'cgroup.procs')!r}, 'w').write('0')"
    process = subprocess.Popen([sys.executable, "-c", f"{join}\n{GREEDY}"])
    assert process.wait(20) == -signal.SIGKILL
    return process.pid


needs_kernel_log = pytest.mark.skipif(
    oom._is_in_kernel_log(1, time.monotonic()) is None, reason="the kernel's log cannot be read here, or has other pids"
)


@pytest.mark.slow
@needs_kernel_log
def test_a_worker_killed_by_hand_is_not_out_of_memory(small_cgroup: Path) -> None:
    with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        group = Plain.create_group().launch(cluster, name="by-hand")
        pid = group.pid().wait()[0]
        run_out_of_memory(small_cgroup)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDied) as caught:
            group.sleep(5).wait(5)
    assert caught.value.verdict == "was killed by SIGKILL"


@needs_kernel_log
def test_a_worker_killed_for_its_memory_is_out_of_memory(small_cgroup: Path) -> None:
    with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        group = Plain.create_group().launch(cluster, name="greedy")
        group.run(f"Path({str(small_cgroup / 'cgroup.procs')!r}).write_text(str(os.getpid()))").wait()
        with pytest.raises(WorkerDied) as caught:
            group.run("bytearray(200 << 20) and None").wait(20)
    assert caught.value.verdict == "was killed by SIGKILL (out of memory, as the kernel's log says)"


class Kernel:
    """Counters in files, and no kernel log."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cgroup: Path | None = folder / "memory.events"
        monkeypatch.setattr(oom, "_explained", 0)
        monkeypatch.setattr(oom, "KERNEL_LOG", folder / "none")
        monkeypatch.setattr(oom, "_cgroup_counter", lambda: self.cgroup)
        self.kills(0)

    def kills(self, count: int) -> None:
        if self.cgroup is not None:
            self.cgroup.write_text(f"low 0\nhigh 3\nmax 7\noom 9\noom_kill {count}\noom_group_kill 0\n")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path, monkeypatch)


def test_each_kill_that_a_cgroup_counts_explains_one_death(kernel: Kernel) -> None:
    starts = [MemoryKills.count() for _ in range(3)]
    kernel.kills(1)
    told = "out of memory: the kernel killed a process of its cgroup for that"
    assert [explain_kill(1, start) for start in starts] == [told, "", ""]
    late = MemoryKills.count()
    assert explain_kill(1, late) == ""
    kernel.kills(2)
    assert [explain_kill(1, start) for start in (late, starts[0])] == [told, ""]


def test_without_log_and_cgroup_a_kill_is_possibly_memory(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.cgroup = None
    counted = iter([None, 5, None, 7, None, 5, None, 5])
    monkeypatch.setattr(oom, "_count", lambda path: next(counted))
    assert explain_kill(1, MemoryKills.count()) == (
        "possibly out of memory: the kernel has killed 2 processes of this machine for that since it started"
    )
    assert explain_kill(1, MemoryKills.count()) == ""


def test_a_kernel_log_that_begins_after_the_birth_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = b"3,9,2000000,-;Memory cgroup out of memory: Killed process 77 (python) total-vm:3kB\n6,10,2100000,-;more\n"
    monkeypatch.setattr(oom, "_read_kernel_log", lambda: log)
    monkeypatch.setattr(oom, "_INITIAL_PIDS", str(Path("/proc/self/ns/pid").readlink()))
    assert oom._is_in_kernel_log(77, 1.0) is True
    assert oom._is_in_kernel_log(77, 2.0 + oom._CLOCK_SLACK_S / 2) is True  # the clocks differ by so much
    assert oom._is_in_kernel_log(77, 2.0 + oom._CLOCK_SLACK_S) is False  # another one had this pid before
    assert oom._is_in_kernel_log(7, 1.0) is None
    assert oom._is_in_kernel_log(7, 2.5) is False
    monkeypatch.setattr(oom, "_INITIAL_PIDS", "pid:[1]")
    assert oom._is_in_kernel_log(77, 1.0) is None


def test_without_namespaces_a_kernel_log_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path) -> Path:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "readlink", missing)
    assert oom._is_in_kernel_log(77, 1.0) is None


def test_a_kernel_log_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(bytes(range(256)) * 100)
    monkeypatch.setattr(oom, "KERNEL_LOG", str(log))
    assert oom._read_kernel_log() == log.read_bytes()

"""Logs on a disk that has no room left: the run goes on, and what is missing is said."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlinf_async import Cluster, WorkerDied
from tests._support.workers import Plain


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a file system (in a container: with CAP_SYS_ADMIN)")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_stops_no_worker_and_its_death_says_how_much_of_the_log_is_there(small_disk: Path) -> None:
    with Cluster(num_nodes=1, distributed_log_dir=str(small_disk), log_to_driver=False) as cluster:
        group = Plain.create_group().launch(cluster, name="chatty")
        group.run("[print('x' * 999, file=sys.stderr) for _ in range(3100)] and None").wait()
        assert group.hello().wait() == [0]
        with pytest.raises(WorkerDied) as caught:
            group.run("os._exit(3)").wait()
        log = small_disk / "chatty/rank_0.err"
        assert f"  log         {log} (1.0 of 3.1 MB are in the log: no space left)" in str(caught.value)
        assert log.stat().st_size >= 1_000_000
        assert list(small_disk.rglob("*.ring")) == []  # none of a disk that has room for few


def test_a_disk_without_room_for_a_file_stops_no_worker(small_disk: Path) -> None:
    with Cluster(num_nodes=1, distributed_log_dir=str(small_disk), log_to_driver=False) as cluster:
        disk = os.statvfs(small_disk)
        used = disk.f_files - disk.f_ffree  # the daemon's own are there
        subprocess.run(["mount", "-o", f"remount,nr_inodes={used}", str(small_disk)], check=True)
        group = Plain.create_group().launch(cluster, name="chatty")
        group.run("print('words', file=sys.stderr, flush=True)").wait()
        with pytest.raises(WorkerDied, match=r"rank_0.err \(0 of 6 bytes are in the log: no space left\)"):
            group.run("os._exit(3)").wait()

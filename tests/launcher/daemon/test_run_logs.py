"""Log directories of runs: ownership, and pruning of old ones."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlinf_async import Cluster, NodePlacementStrategy, settings
from rlinf_launcher.daemon import run_logs
from rlinf_launcher.daemon.run_logs import RunLogs
from tests._support.workers import Plain

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a directory of another user can only be made by root")

Open = Callable[..., RunLogs]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Return a function that opens the logs of a run below ``tmp_path / "tmp"``."""
    base = tmp_path / "tmp"
    base.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    made: list[RunLogs] = []

    def open_run(run: str, asked: str | None = None) -> RunLogs:
        made.append(RunLogs(run, asked, tmp_path / "spare"))
        return made[-1]

    yield open_run
    for logs in made:
        logs.close()


def usual(base: Path) -> Path:
    return base / f"rlinf-logs-{os.getuid()}"


def plant_foreign(path: Path) -> None:
    path.mkdir(mode=0o777)
    os.chown(path, 65534, 65534)


def plant_open(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def plant_link(path: Path) -> None:
    (path.parent / "elsewhere").mkdir(mode=0o700)
    path.symlink_to("elsewhere")


PLANTS = [pytest.param(plant_foreign, marks=needs_root), plant_open, plant_link, os.mkfifo, Path.touch]


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_folder_is_left_alone(plant: Callable[[Path], None], opened: Open, tmp_path: Path) -> None:
    planted = usual(tmp_path / "tmp")
    plant(planted)
    before = planted.lstat()
    first, second = opened("cafecafe"), opened("deadbeef")
    for logs in (first, second):
        assert str(planted) in logs.note
        assert str(logs.path) in logs.note
        assert logs.path.resolve().parent.stat().st_mode & 0o777 == 0o700
    assert first.path.parent == second.path.parent != planted
    after = planted.lstat()
    assert (after.st_mode, after.st_uid, after.st_mtime_ns) == (before.st_mode, before.st_uid, before.st_mtime_ns)
    assert not list((tmp_path / "tmp").glob("elsewhere/*"))


def test_an_older_versions_directory_is_reused_and_made_private(opened: Open, tmp_path: Path) -> None:
    usual(tmp_path / "tmp").mkdir(mode=0o755)
    logs = opened("cafecafe")
    assert (logs.path, logs.note) == (usual(tmp_path / "tmp") / "cafecafe", "")
    assert logs.path.parent.stat().st_mode & 0o777 == 0o700


def test_without_a_writable_place_logs_are_in_the_spare_folder(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "tmp").rmdir()
    logs = opened("cafecafe")
    assert logs.path == tmp_path / "spare"
    assert "no logs can be kept" in logs.note


def test_the_newest_the_live_and_foreign_folders_stay(opened: Open, tmp_path: Path) -> None:
    living = opened("00000000")
    for number in range(1, 8):
        ended = opened(f"{number:08}")
        (ended.path / "w").mkdir()
        (ended.path / "w/rank_0.out").write_text("words")
        os.utime(ended.path, (number, number))
        ended.close()
    os.utime(living.path, (0, 0))
    parent = living.path.parent
    (parent / "mine").mkdir()
    other_node = opened("00000000")
    other_node.close()
    opened("00000008").prune(3)
    assert sorted(path.name for path in parent.iterdir()) == [
        "00000000", "00000006", "00000007", "00000008", "latest", "mine",
    ]  # fmt: skip
    assert os.readlink(parent / "latest") == "00000008"


def test_bundled_runs_are_not_pushed_out_by_good_ones(opened: Open) -> None:
    for number in range(1, 8):
        ended = opened(f"{number:08}")
        if number < 4:
            (ended.path / f"rlinf-{ended.path.name}.zip").touch()
        os.utime(ended.path, (number, number))
        ended.close()
    latest = opened("00000008")
    latest.prune(2)
    assert sorted(path.name for path in latest.path.parent.iterdir()) == [
        "00000002", "00000003", "00000007", "00000008", "latest",
    ]  # fmt: skip


def test_a_folder_chosen_by_the_user_is_never_pruned(opened: Open, tmp_path: Path) -> None:
    for name in ("00000001", "00000002"):
        (tmp_path / "mine" / name).mkdir(parents=True)
    chosen = opened("cafecafe", str(tmp_path / "mine"))
    chosen.prune(1)
    assert (chosen.path, chosen.note) == (tmp_path / "mine", "")
    assert sorted(path.name for path in chosen.path.iterdir()) == ["00000001", "00000002"]


def test_runs_that_start_at_once_do_not_remove_each_other(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from rlinf_launcher.daemon.run_logs import RunLogs\n"
        "for number in range(40):\n"
        "    logs = RunLogs(f'{os.getpid():04x}{number:04x}'[-8:].rjust(8, '0'), None, Path('/nonexistent'))\n"
        "    logs.prune(1)\n"
        "    assert logs.path.is_dir(), logs.path\n"
        "    (logs.path / 'log').write_text('words')\n"
        "    logs.close()\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    runs = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(3)]
    assert [run.wait(20) for run in runs] == [0, 0, 0]
    left = [path for path in usual(tmp_path).iterdir() if path.is_dir() and not path.is_symlink()]
    assert 1 <= len(left) <= 4


@pytest.mark.slow
def test_a_run_beside_a_planted_directory_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    plant_link(usual(tmp_path))
    with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        group = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0]), name="w")
        group.run("print('words', flush=True)").wait()
        group.close()
        log = Path(cluster.log_dir) / "w/rank_0.out"
        assert log.read_text() == "words\n"
    assert caplog.text.count("is a link") == 1
    assert not list((tmp_path / "elsewhere").iterdir())
    assert run_logs.LATEST in os.listdir(log.parents[2])


def test_a_daemon_prunes_logs_of_runs_that_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv(settings.KEPT_RUNS.variable, "1")
    monkeypatch.setattr("tempfile.tempdir", None)
    log_dirs = []
    for _ in range(2):
        with Cluster() as cluster:
            log_dirs.append(Path(cluster.log_dir))
    assert [path.exists() for path in log_dirs] == [False, True]

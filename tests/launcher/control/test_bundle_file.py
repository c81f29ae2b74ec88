"""Bundles as files: written for their owner only, read back unchanged, and refused if malformed."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rlinf_launcher.control import bundle_file
from rlinf_launcher.control.bundle_file import BadBundle, read_bundle, write_bundle
from rlinf_launcher.control.fresh_file import fresh_file
from rlinf_launcher.control.run_snapshot import RunSnapshot
from tests._support.made_snapshots import RUN, made_snapshot

FACTS = {"format": 1, "run": RUN, "taken_at": 5, "is_alive": False, "status": None, "verdict": None, "missing": {}}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    path.write_text("an older one")
    snapshot = made_snapshot()
    snapshot.verdict = {"verdict": {"kind": "busy"}, "report": {}}
    write_bundle(snapshot, path)
    assert read_bundle(path) == snapshot
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_of_the_same_pid_has_left_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    path.with_name(f".bundle.zip-{os.getpid()}").touch()
    with fresh_file(path) as file, fresh_file(path) as other:  # as two containers do that share the directory
        file.write(b"this")
        other.write(b"other")
    assert path.read_bytes() == b"this"


def test_secrets_of_a_command_line_are_not_in_a_bundle(tmp_path: Path) -> None:
    snapshot = RunSnapshot(RUN, 5.0, status={"processes": [{"command": "train.py --api-key abc --steps 3"}]})
    write_bundle(snapshot, tmp_path / "run.zip")
    assert read_bundle(tmp_path / "run.zip").status == {"processes": [{"command": "train.py --api-key *** --steps 3"}]}


def test_files_without_time_are_named_in_the_bundle(tmp_path: Path) -> None:
    write_bundle(made_snapshot(), tmp_path / "bundle.zip", deadline=0.0)
    read = read_bundle(tmp_path / "bundle.zip")
    assert read.files == {}
    assert read.missing.keys() == {*made_snapshot().files, *made_snapshot().missing}


def test_two_writers_of_a_file_do_not_meet(tmp_path: Path) -> None:
    with fresh_file(tmp_path / "page") as last, fresh_file(tmp_path / "page") as first:
        last.write(b"last")
        first.write(b"first")
    (written,) = tmp_path.iterdir()
    assert (written.name, written.read_bytes(), written.stat().st_mode & 0o777) == ("page", b"last", 0o600)


def test_nothing_is_left_where_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_bundle(made_snapshot(), tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def escaping(archive: zipfile.ZipFile) -> None:
    archive.writestr("logs/../../etc/rank_0.out", "x")


def foreign(archive: zipfile.ZipFile) -> None:
    archive.writestr("setup.py", "x")


def absolute(archive: zipfile.ZipFile) -> None:
    archive.writestr("/etc/rank_0.out", "x")


def huge(archive: zipfile.ZipFile) -> None:
    for number in range(3):
        archive.writestr(f"logs/recorder/{number}.ring", bytes(100_000))


def of_another_format(archive: zipfile.ZipFile) -> None:
    archive.writestr("run.json", json.dumps(FACTS | {"format": 2}))


def with_a_strange_status(archive: zipfile.ZipFile) -> None:
    archive.writestr("run.json", json.dumps(FACTS | {"status": "fine"}))


def without_a_run(archive: zipfile.ZipFile) -> None:
    archive.writestr("run.json", json.dumps([1]))


def nested_for_ever(archive: zipfile.ZipFile) -> None:
    archive.writestr("run.json", "[" * 100_000)


def without_facts(archive: zipfile.ZipFile) -> None:
    archive.writestr("logs/daemon_0.log", "x")


@pytest.mark.parametrize(
    ("fill", "complaint"),
    [
        (escaping, "no file 'logs/../../etc/rank_0.out'"), (foreign, "no file 'setup.py'"), (absolute, "'/etc/"),
        (huge, "more than 200000 bytes"), (of_another_format, "its format is 2"), (with_a_strange_status, "status in"),
        (without_a_run, "TypeError"), (nested_for_ever, "recursion"), (without_facts, "run.json"),
    ],
)  # fmt: skip
def test_a_zip_that_is_no_bundle_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fill: Callable[[zipfile.ZipFile], None], complaint: str
) -> None:
    monkeypatch.setattr(bundle_file, "MAX_BYTES", 200_000)
    with zipfile.ZipFile(tmp_path / "bundle.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        fill(archive)
        if "run.json" not in archive.namelist() and fill is not without_facts:
            archive.writestr("run.json", json.dumps(FACTS))
    with pytest.raises(BadBundle, match=complaint):
        read_bundle(tmp_path / "bundle.zip")


def test_a_file_that_unpacks_to_more_than_declared_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run.json", json.dumps(FACTS))
        archive.writestr("logs/recorder/1.ring", bytes(1 << 20))
    path.write_bytes(path.read_bytes().replace((1 << 20).to_bytes(4, "little"), (16).to_bytes(4, "little")))
    with pytest.raises(BadBundle, match="no whole bundle"):
        read_bundle(path)


@pytest.mark.parametrize("length", [0, 100, -1, -30])
def test_a_bundle_that_was_cut_short_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "bundle.zip"
    write_bundle(made_snapshot(), path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(BadBundle, match="no whole bundle"):
        read_bundle(path)


def test_a_bundle_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    write_bundle(made_snapshot(), path)
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadBundle):
        read_bundle(path)

"""Files of a run below its log directory: those that are listed, and reads that do not leave it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._recorder import run_files
from rlinf_async._recorder.run_files import MAX_PIECE_BYTES, RunFiles

OF_A_RUN = [
    "actor/rank_0.err", "actor/rank_0.out", "daemon_0.log", "recorder/100000001.ring", "recorder/deaths-0.jsonl",
    "recorder/groups-12.jsonl", "recorder/node-0.json", "template_12_0.log",
]  # fmt: skip
OF_THE_USER = [".ssh/id", "actor/notes.txt", "recorder/node-0.json.bak", "train.py", "rank_0.out", "a/b/rank_0.out"]


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    for name in (*OF_A_RUN, *OF_THE_USER):
        path = tmp_path / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "secret").write_text("secret")
    return RunFiles(tmp_path / "logs")


def test_a_run_s_files_are_listed_and_nothing_else_of_a_directory_of_the_users_choice(files: RunFiles) -> None:
    (files.directory / "elsewhere").symlink_to(files.directory / "actor")
    (files.directory / "actor/rank_1.out").symlink_to("rank_0.out")
    assert sorted(each.path for each in files.listing()) == OF_A_RUN
    assert {each.path: each.nbytes for each in files.listing()}["daemon_0.log"] == len("daemon_0.log")
    assert RunFiles(files.directory / "gone").listing() == []


def test_a_file_or_folder_that_has_gone_stale_hides_no_other(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(**_: bool) -> bool:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def entries(directory: Path) -> list[Any]:
        gone = SimpleNamespace(name="daemon_1.log", is_file=stale, is_dir=stale)
        return [gone, *listed(directory)]

    listed = run_files._entries
    monkeypatch.setattr(run_files, "_entries", entries)
    assert sorted(each.path for each in files.listing()) == OF_A_RUN


def test_a_file_is_read_piece_by_piece(files: RunFiles) -> None:
    assert files.read("daemon_0.log", 0, MAX_PIECE_BYTES) == b"daemon_0.log"
    assert files.read("daemon_0.log", 7, 3) == b"0.l"
    assert files.read("daemon_0.log", 100, 3) == b""


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "../rank_0.out", "./rank_0.out", "actor/../daemon_0.log", "train.py", "",
             "a/b/rank_0.out", "actor/rank_0.out/", "\0/rank_0.out"]
)  # fmt: skip
def test_what_is_no_file_of_a_run_is_refused(files: RunFiles, path: str) -> None:
    with pytest.raises(ValueError, match="is no file of a run"):
        files.read(path, 0, 10)


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 1), (0, -1), (0, MAX_PIECE_BYTES + 1)])
def test_what_is_no_piece_is_refused(files: RunFiles, offset: int, nbytes: int) -> None:
    with pytest.raises(ValueError, match="a piece has up to"):
        files.read("daemon_0.log", offset, nbytes)


def test_no_link_leads_out_of_the_directory_and_nothing_else_than_a_file_is_read(files: RunFiles) -> None:
    here = files.directory
    (here / "daemon_1.log").symlink_to(here.parent / "secret")
    (here.parent / "outside").mkdir()
    (here.parent / "outside/rank_0.out").write_text("secret")
    (here / "critic").symlink_to(here.parent / "outside")
    os.mkfifo(here / "daemon_2.log")
    (here / "daemon_3.log").mkdir()
    for path in ("daemon_1.log", "critic/rank_0.out", "daemon_2.log", "daemon_3.log", "daemon_4.log"):
        with pytest.raises(OSError, match=path.rpartition("/")[2] if "critic" not in path else "critic"):
            files.read(path, 0, 10)

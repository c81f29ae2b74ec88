"""Last lines of logs, and those that follow."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from rlinf_launcher.control import log_files
from rlinf_launcher.control.log_files import LogFile, show_kept_logs
from rlinf_launcher.control.run_places import LocalRun, NoSuchRun
from rlinf_launcher.control.text_output import Output
from tests._support.made_snapshots import RUN, made_node


def log(path: Path, data: bytes) -> LogFile:
    path.write_bytes(data)
    return LogFile("rollout", 0, "stdout", path)


@given(
    data=st.text("ab\n", max_size=40).map(str.encode),
    tail=st.integers(0, 5),
    block=st.integers(1, 8),
)
def test_the_tail_is_the_last_lines_whatever_the_size_of_a_read(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, tail: int, block: int
) -> None:
    file = log(tmp_path_factory.getbasetemp() / "tail", data)
    lines = data.decode().split("\n")
    whole = lines if lines[-1] else lines[:-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_files, "_BLOCK_BYTES", block)
        assert file.read(tail) + file.rest() == whole[len(whole) - min(tail, len(whole)) :]


def test_a_line_is_told_once_it_has_its_end(tmp_path: Path) -> None:
    file = log(tmp_path / "log", b"one\ntw")
    assert file.read(20) == ["one"]
    with file.path.open("ab") as more:
        more.write(b"o\nthree\n\xff")
    assert file.read() == ["two", "three"]
    assert file.rest() == ["\ufffd"]
    assert file.read() == file.rest() == []


def test_a_log_that_was_emptied_is_read_on_from_its_end(tmp_path: Path) -> None:
    file = log(tmp_path / "log", b"one\ntwo\n")
    file.read()
    file.path.write_bytes(b"")
    assert file.read() == []
    with file.path.open("ab") as more:
        more.write(b"three\n")
    assert file.read() == ["three"]


def kept(folder: Path, **logs: bytes) -> LocalRun:
    """An ended run, whose other node has its files elsewhere; by group what rank 0 has written."""
    (folder / "recorder").mkdir()
    peer = {"node": 1, "name": "gpu1", "host": "vm1", "logs": "/logs"}
    (folder / "recorder/node-0.json").write_bytes(made_node(0, peers=[peer]))
    for group, data in logs.items():
        (folder / group).mkdir()
        for rank in (0, 1):
            (folder / group / f"rank_{rank}.out").write_bytes(data if rank == 0 else b"")
    return LocalRun(RUN, 1.0, logs=folder)


def test_logs_of_an_ended_run_are_those_of_all_groups_or_of_the_ranks_that_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = kept(tmp_path, actor=b"one\ntwo\n", rollout=b"three")
    for words, tail, shown in (
        (None, None, ["one", "two", "three"]),
        (None, 1, ["two", "three"]),
        ("actor:0", 20, ["one", "two"]),
    ):
        screen = io.StringIO()
        show_kept_logs(run, Output(screen, as_json=False), words, tail=tail)
        assert [line for line in screen.getvalue().splitlines() if not line.startswith("==>")] == shown
        assert capsys.readouterr().err == ("of node 1 (gpu1) there are no logs here: its files are on vm1, in /logs\n")
    with pytest.raises(NoSuchRun, match="there is no group 'critic'"):
        show_kept_logs(run, Output(screen, as_json=False), "critic", tail=20)
    with pytest.raises(NoSuchRun, match="where its logs are is not known"):
        show_kept_logs(LocalRun(RUN, 1.0), Output(screen, as_json=False), None, tail=20)


@pytest.mark.parametrize("broken", ["actor", "."])
def test_logs_in_whose_place_a_file_is_are_no_missing_group(tmp_path: Path, broken: str) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    run = kept(logs, actor=b"one\n", rollout=b"two\n")
    shutil.rmtree(logs / broken)
    (logs / broken).write_text("a file in the place of a folder")
    said = f"the logs of group 'actor' are gone: {logs / broken} is no folder"
    with pytest.raises(NoSuchRun, match=said):
        show_kept_logs(run, Output(io.StringIO(), as_json=False), "actor:0", tail=20)
    with pytest.raises(NoSuchRun, match=said):
        log_files.chosen_logs(["actor", "rollout"], logs, (), "actor")
    if broken == ".":
        with pytest.raises(NoSuchRun, match=f"the logs are gone: {logs} is no folder"):
            show_kept_logs(run, Output(io.StringIO(), as_json=False), None, tail=20)


def test_a_live_group_without_a_log_is_not_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun, match=f"group 'actor' has no log in {tmp_path}"):
        log_files.chosen_logs(["actor"], tmp_path, (), "actor")


def test_of_empty_logs_all_ranks_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_kept_logs(kept(tmp_path, actor=b""), Output(io.StringIO(), as_json=False), "actor", tail=20)
    assert capsys.readouterr().err.startswith("nothing has been written by actor:0,1\n")

"""Last lines of logs, and further lines as they are written."""

from __future__ import annotations

import asyncio
import ctypes
import io
import shutil
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rlinf_async._recorder.run_files import RunFile
from rlinf_async.errors import LaunchError
from rlinf_launcher.control import log_files, remote_logs
from rlinf_launcher.control.log_files import LogFile, show_kept_logs
from rlinf_launcher.control.remote_logs import RemoteLog
from rlinf_launcher.control.run_places import LocalRun, NoSuchRun
from rlinf_launcher.control.text_output import TextOutput
from tests._support.made_snapshots import RUN, made_node


def log(path: Path, data: bytes) -> LogFile:
    path.write_bytes(data)
    return LogFile("rollout", 0, "stdout", path)


def read(file: LogFile, tail: int | None = None, *, is_last: bool = False) -> list[str]:
    return [line for lines in file.read(tail, is_last=is_last) for line in lines]


@given(
    data=st.text("ab\n", max_size=40).map(str.encode),
    tail=st.integers(0, 5),
    block=st.integers(1, 8),
)
def test_the_tail_is_the_last_lines_for_any_read_size(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, tail: int, block: int
) -> None:
    file = log(tmp_path_factory.getbasetemp() / "tail", data)
    lines = data.decode().split("\n")
    whole = lines if lines[-1] else lines[:-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_files, "_BLOCK_BYTES", block)
        assert read(file, tail, is_last=True) == whole[len(whole) - min(tail, len(whole)) :]


def test_a_line_is_told_once_it_has_its_end(tmp_path: Path) -> None:
    file = log(tmp_path / "log", b"one\ntw")
    assert read(file, 20) == ["one"]
    with file.path.open("ab") as more:
        more.write(b"o\nthree\n\xff")
    assert read(file) == ["two", "three"]
    assert read(file, is_last=True) == ["\ufffd"]
    assert read(file, is_last=True) == []


def test_a_truncated_log_is_read_on_from_its_end(tmp_path: Path) -> None:
    file = log(tmp_path / "log", b"one\ntwo\n")
    read(file)
    file.path.write_bytes(b"")
    assert read(file) == []
    with file.path.open("ab") as more:
        more.write(b"three\n")
    assert read(file) == ["three"]


@pytest.mark.slow
def test_a_log_that_is_removed_ends_with_what_was_read(tmp_path: Path) -> None:
    file = log(tmp_path / "log", b"one\ntw")
    assert read(file, 20) == ["one"]
    file.path.unlink()
    assert read(file) == []
    assert read(file, is_last=True) == ["tw"]


def test_a_long_log_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    file = log(tmp_path / "log", b"a line\n" * (1 << 20))
    tracemalloc.start()
    try:
        assert sum(map(len, file.read())) == 1 << 20
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_a_line_of_many_blocks_is_one_line(tmp_path: Path) -> None:
    file = log(tmp_path / "log", b"x" * (8 << 20) + b"\nend")
    assert [len(line) for line in read(file, is_last=True)] == [8 << 20, 3]


def kept(folder: Path, **logs: bytes) -> LocalRun:
    """Return an ended run with rank 0's output by group; another node has its files elsewhere."""
    (folder / "recorder").mkdir()
    peer = {"node": 1, "name": "gpu1", "host": "vm1", "logs": "/logs"}
    (folder / "recorder/node-0.json").write_bytes(made_node(0, peers=[peer]))
    for group, data in logs.items():
        (folder / group).mkdir()
        for rank in (0, 1):
            (folder / group / f"rank_{rank}.out").write_bytes(data if rank == 0 else b"")
    return LocalRun(RUN, 1.0, logs=folder)


def test_an_ended_runs_logs_are_shown_by_group_and_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = kept(tmp_path, actor=b"one\ntwo\n", rollout=b"three")
    for words, tail, shown in (
        (None, None, ["one", "two", "three"]),
        (None, 1, ["two", "three"]),
        ("actor:0", 20, ["one", "two"]),
    ):
        screen = io.StringIO()
        show_kept_logs(run, TextOutput(screen, as_json=False), words, tail=tail)
        assert [line for line in screen.getvalue().splitlines() if not line.startswith("==>")] == shown
        assert capsys.readouterr().err == ("of node 1 (gpu1) there are no logs here: its files are on vm1, in /logs\n")
    with pytest.raises(NoSuchRun, match="there is no group 'critic'"):
        show_kept_logs(run, TextOutput(screen, as_json=False), "critic", tail=20)
    with pytest.raises(NoSuchRun, match="where its logs are is not known"):
        show_kept_logs(LocalRun(RUN, 1.0), TextOutput(screen, as_json=False), None, tail=20)


@pytest.mark.parametrize("broken", ["actor", "."])
def test_logs_replaced_by_a_file_are_no_missing_group(tmp_path: Path, broken: str) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    run = kept(logs, actor=b"one\n", rollout=b"two\n")
    shutil.rmtree(logs / broken)
    (logs / broken).write_text("a file in the place of a folder")
    said = f"the logs of group 'actor' are gone: {logs / broken} is no folder"
    with pytest.raises(NoSuchRun, match=said):
        show_kept_logs(run, TextOutput(io.StringIO(), as_json=False), "actor:0", tail=20)
    with pytest.raises(NoSuchRun, match=said):
        log_files.chosen_logs(["actor", "rollout"], logs, (), "actor")
    if broken == ".":
        with pytest.raises(NoSuchRun, match=f"the logs are gone: {logs} is no folder"):
            show_kept_logs(run, TextOutput(io.StringIO(), as_json=False), None, tail=20)


def test_a_live_group_without_a_log_is_not_missing(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun, match=f"group 'actor' has no log in {tmp_path}"):
        log_files.chosen_logs(["actor"], tmp_path, (), "actor")


def test_of_empty_logs_all_ranks_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_kept_logs(kept(tmp_path, actor=b""), TextOutput(io.StringIO(), as_json=False), "actor", tail=20)
    assert capsys.readouterr().err.startswith("nothing has been written by actor:0,1\n")


class FarDaemon:
    """Attachment to a daemon that serves bytes, and is lost after a number of reads."""

    def __init__(self, data: bytes, reads: int) -> None:
        self.data = data
        self.reads = reads

    async def request(self, operation: Any, node: int) -> bytes:
        self.reads -= 1
        if self.reads < 0:
            raise LaunchError("it is lost")
        return self.data[operation.offset : operation.offset + operation.nbytes]


@pytest.mark.parametrize(
    ("reads", "tail", "copied"),
    [
        (9, None, b"one\ntwo\nthree"),
        (2, None, b"one\ntwo"),
        (9, 0, b"o\nthree"),
        (9, 1, b"one\ntwo\nthree"),
        (0, None, b""),
        (0, 2, b""),
    ],
)
async def test_a_remote_log_is_copied_while_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: int, tail: int | None, copied: bytes
) -> None:
    monkeypatch.setattr(remote_logs, "MAX_PIECE_BYTES", 4 if tail is None else 7)
    daemon: Any = FarDaemon(b"one\ntwo\nthree", reads)
    log = RemoteLog(daemon, 1, RunFile("g/rank_0.out", 13, 0.0), tmp_path / "copy")
    await log.begin(tail)
    assert log.copy.read_bytes() == copied
    assert bool(log.trouble) == (reads < 9)


async def test_a_remote_log_that_always_grows_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon: Any = FarDaemon(b"", 9)
    log = RemoteLog(daemon, 1, RunFile("g/rank_0.out", 0, 0.0), tmp_path / "copy")

    async def request(operation: Any, node: int) -> bytes:
        daemon.data += b"a line that the rank has written meanwhile\n"
        return await FarDaemon.request(daemon, operation, node)

    monkeypatch.setattr(daemon, "request", request)
    await log.follow()
    assert (log.copy.read_bytes(), log.trouble) == (daemon.data, "")


async def test_a_remote_log_that_was_truncated_is_read_anew(tmp_path: Path) -> None:
    daemon: Any = FarDaemon(b"one\ntwo\n", 9)
    log = RemoteLog(daemon, 1, RunFile("g/rank_0.out", 8, 0.0), tmp_path / "copy")
    await log.begin(20)
    daemon.data = b"three\n"
    await log.follow()
    await log.follow()
    assert (log.copy.read_bytes(), log.trouble) == (b"one\ntwo\nthree\n", "")


async def test_a_remote_path_outside_the_logs_is_left_out(tmp_path: Path) -> None:
    async def ask_nodes(_: Any) -> Any:
        return {1: [[path, 1, 0.0] for path in ("g/rank_0.out", "../../rank_0.out", "/etc/rank_0.out")]}, {}

    attachment: Any = SimpleNamespace(run=LocalRun(RUN, 0.0), ask_nodes=ask_nodes)
    found, _ = await remote_logs.find_remote_logs(attachment, tmp_path)
    assert [log.file.path for log in found] == ["g/rank_0.out"]


async def test_a_copy_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    daemon: Any = FarDaemon(b"one\n", 9)
    daemon.lost = asyncio.get_running_loop().create_future()
    log = RemoteLog(daemon, 1, RunFile("g/rank_0.out", 4, 0.0), tmp_path / "gone/copy")
    with pytest.raises(FileNotFoundError):
        await log_files._follow(daemon, [], [log], TextOutput(io.StringIO(), as_json=False), 1.0, list)


@pytest.mark.parametrize("is_watched", [True, False])  # a user may have 128 inotify descriptors
async def test_the_logs_of_a_group_launched_later_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_watched: bool
) -> None:
    if not is_watched:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(inotify_init1=lambda flags: -1))
    daemon: Any = FarDaemon(b"", 0)
    daemon.lost = asyncio.get_running_loop().create_future()
    screen = io.StringIO()

    def find() -> list[LogFile]:
        daemon.lost.set_result("it has ended")
        return [log(tmp_path / "rank_0.out", b"one\n")]

    await log_files._follow(daemon, [], [], TextOutput(screen, as_json=False), 1.0, find)
    assert screen.getvalue() == "one\n"

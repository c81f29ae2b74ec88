"""Last lines of logs, and those that follow."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from rlinf_launcher.control import log_files
from rlinf_launcher.control.log_files import LogFile


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

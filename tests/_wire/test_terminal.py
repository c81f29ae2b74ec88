"""Writes to a terminal that does not read: no blocking, lost lines counted."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import re
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

from rlinf_async import settings
from rlinf_async._wire.terminal import Terminal

LINE = "x" * 99 + "\n"


@pytest.fixture(autouse=True)
def small_and_hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.OUTPUT_BUFFER_BYTES.variable, "8192")
    monkeypatch.setenv(settings.OUTPUT_END_S.variable, "0.1")


@contextmanager
def pipe() -> Iterator[tuple[TextIO, TextIO]]:
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    with open(read) as reader, open(write, "w") as writer:
        yield reader, writer


def write_many(terminal: Terminal, stream: TextIO, count: int) -> float:
    since = time.monotonic()
    for number in range(count):
        terminal.write(stream, f"{number:09}" + LINE[9:], "[w:3@here] ", ": rank 3's log has all of it: /log")
    return time.monotonic() - since


def test_a_long_text_leaves_in_parts_that_a_pipe_takes_without_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands first: a terminal that writes the wrong part is seen here and holds up no thread."""
    sizes: list[int] = []
    terminal = Terminal()

    def write(fd: int, data: bytes) -> int:
        sizes.append(len(data))
        assert data
        return len(data)

    with pipe() as (_, writer):
        monkeypatch.setattr(terminal, "_wait", lambda fd: True)
        monkeypatch.setattr(os, "write", write)
        assert terminal._put(writer, b"x" * 10_000) == b""
    assert sizes == [4096, 4096, 1808]


def test_the_thread_waits_for_text_and_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, waits = Terminal(), threading.Event()
    wait = terminal._wait

    def wait_for(fd: int | None) -> bool:
        if fd is None:
            waits.set()
        return wait(fd)

    monkeypatch.setattr(terminal, "_wait", wait_for)
    with (tmp_path / "out").open("w") as file:
        terminal.write(file, "one\n")
        has_waited = waits.wait(10)
        terminal.write(file, "two\n")
        terminal.close()
    assert has_waited
    assert (tmp_path / "out").read_text() == "one\ntwo\n"


def test_what_a_reader_that_stops_has_missed_is_counted_where_it_is_missing() -> None:
    with pipe() as (reader, writer):
        terminal = Terminal()
        assert write_many(terminal, writer, 3000) < 1
        shown = 0
        for line in reader:
            if "…" in line:
                break
            assert int(line[:9]) == shown
            shown += 1
        missing = re.fullmatch(r"\[w:3@here\] … (\d+) lines were not shown: rank 3's log has all of it: /log\n", line)
        assert missing is not None
        assert shown + int(missing[1]) == 3000
        assert 80 < shown < 130  # a pipe and a buffer
        terminal.write(writer, "back again\n")
        assert reader.readline() == "back again\n"
        terminal.close()


@pytest.mark.parametrize("way", ["close", "aclose"])
def test_the_end_gives_a_reader_its_time_and_no_thread_is_left(way: str) -> None:
    with pipe() as (_, writer):
        terminal = Terminal()
        write_many(terminal, writer, 3000)
        since = time.monotonic()
        if way == "close":
            terminal.close()
        else:
            asyncio.run(terminal.aclose())
        assert 0.1 <= time.monotonic() - since < 1
        assert "rlinf-output" not in [thread.name for thread in threading.enumerate()]
        terminal.write(writer, "too late\n")
        terminal.close()


def test_what_never_was_shown_is_counted_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    with pipe() as (_, writer), pipe() as (errors, stderr):
        monkeypatch.setattr(sys, "stderr", stderr)
        terminal = Terminal()
        write_many(terminal, writer, 3000)
        terminal.write(stderr, "unseen\n", "[w:4@here] ")
        terminal.close()
        line = errors.readline()
        missing = re.fullmatch(r"\[w:3@here\] … (\d+) lines were not shown: rank 3's log has all of it: /log\n", line)
        assert missing is not None
        assert 2950 < int(missing[1]) < 3000  # a page is in the pipe


def test_what_can_be_shown_at_once_is_shown_also_where_the_end_gives_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.OUTPUT_END_S.variable, "0")
    with (tmp_path / "out").open("w") as file:
        terminal = Terminal()
        for number in range(50):
            terminal.write(file, f"{number}\n")
        terminal.close()
    assert (tmp_path / "out").read_text().split() == [*map(str, range(50))]


@pytest.mark.parametrize("way", ["close", "aclose"])
def test_what_is_read_is_there_when_the_end_has_come_and_the_end_takes_no_longer(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.OUTPUT_END_S.variable, "10")
    since = time.monotonic()
    with (tmp_path / "out").open("w") as file:
        terminal = Terminal()
        file.write("mine\n")  # still in the buffer of the file
        for number in range(50):
            terminal.write(file, f"{number}\n")
        if way == "close":
            terminal.close()
        else:
            asyncio.run(terminal.aclose())
    assert time.monotonic() - since < 8
    assert (tmp_path / "out").read_text().split() == ["mine", *map(str, range(50))]


def test_a_terminal_that_was_halted_goes_on_where_it_was() -> None:
    master, slave = os.openpty()
    with open(slave, "w") as screen, open(master, "rb", buffering=0) as keyboard:
        termios.tcflow(slave, termios.TCOOFF)  # Ctrl-S
        terminal = Terminal()
        terminal.write(screen, "one\n")
        terminal.write(screen, "two\n")
        termios.tcflow(slave, termios.TCOON)
        read = b""
        while read.count(b"\n") < 2:
            read += keyboard.read(100) or b""
        assert read.split() == [b"one", b"two"]
        terminal.close()


def test_a_reader_that_is_gone_and_a_stream_that_is_closed_end_nothing() -> None:
    other = io.StringIO()
    with pipe() as (reader, writer):
        terminal = Terminal()
        reader.close()
        terminal.write(writer, "nobody\n")
        with pipe() as (_, closed):
            pass
        terminal.write(closed, "nobody\n")
        terminal.write(other, "somebody ünd\n")
        terminal.close()
    assert other.getvalue() == "somebody ünd\n"


def test_a_script_that_closes_nothing_still_gives_a_slow_reader_its_time() -> None:
    program = (
        "import sys\n"
        "from rlinf_async._wire.terminal import Terminal\n"
        "terminal = Terminal()\n"
        f"for number in range(1000): terminal.write(sys.stdout, {LINE!r})\n"
    )
    environment = {**os.environ, settings.OUTPUT_BUFFER_BYTES.variable: "1000000", settings.OUTPUT_END_S.variable: "20"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=20, check=True)
    assert len(done.stdout) == 1000 * len(LINE)

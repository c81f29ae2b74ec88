"""Stacks of processes that do not answer, and processes without stacks."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlinf_async._inspection.state import stack_dump
from rlinf_launcher.daemon import stack_reader
from rlinf_launcher.daemon.endpoint import Endpoint
from rlinf_launcher.daemon.router import Router
from rlinf_launcher.daemon.stack_reader import StackReader
from tests._support.silent_processes import silent


@pytest.fixture
async def reader() -> StackReader:
    return StackReader(asyncio.get_running_loop())


@pytest.fixture
async def router() -> Router:
    return Router(asyncio.get_running_loop(), 0, lambda source, ask, operation, arguments: None)


@pytest.fixture
def holding(router: Router) -> Iterator[Endpoint]:
    """A process that holds its interpreter's lock."""
    with silent(router) as endpoint:
        yield endpoint


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_process_that_holds_the_interpreters_lock_shows_its_stack(
    reader: StackReader, holding: Endpoint
) -> None:
    before = open_files()
    stacks = await reader.read(holding)
    (main,) = stack_dump.parse(stacks.text)
    assert (main.name, [frame.function for frame in main.frames]) == ("MainThread", ["<module>", "hold"])
    assert stacks.trouble == ""
    assert open_files() == before


async def test_simultaneous_readers_get_the_same_stacks(reader: StackReader, holding: Endpoint) -> None:
    first, second = reader.read(holding), reader.read(holding)
    assert first is second
    assert (await first).text
    await asyncio.sleep(0)
    third = reader.read(holding)
    assert third is not first
    assert (await third).text


async def test_a_late_dump_is_no_part_of_the_next_one(reader: StackReader, router: Router) -> None:
    program = "os.write(writer, b'Thread 0x00ff (most recent call first):\\n'); hold()"
    with silent(router, program) as endpoint:
        assert [thread.name for thread in stack_dump.parse((await reader.read(endpoint)).text)] == ["MainThread"]


@pytest.mark.parametrize("ignores", [False, True])
async def test_a_process_without_the_handler_is_not_sent_the_signal(
    reader: StackReader, router: Router, ignores: bool
) -> None:
    program = "faulthandler.unregister(SIGNAL); hold()"
    with silent(router, f"signal.signal(SIGNAL, signal.SIG_IGN); {program}" if ignores else program) as endpoint:
        assert (await reader.read(endpoint)).trouble == "it has no handler for the signal that requests its stacks"
        signal.pidfd_send_signal(endpoint.pidfd, 0)  # it lives


async def test_an_execed_process_is_not_sent_the_signal(reader: StackReader, router: Router) -> None:
    program = "os.set_inheritable(writer, True); ready(); os.execvp('cat', ['cat'])"
    with silent(router, program) as endpoint:
        comm = Path(f"/proc/{endpoint.pid}/comm")
        while comm.read_text() != "cat\n":
            await asyncio.sleep(0.01)
        assert (await reader.read(endpoint)).trouble == "it has no handler for the signal that requests its stacks"
        signal.pidfd_send_signal(endpoint.pidfd, 0)


@pytest.mark.parametrize(
    ("stacks", "trouble"),
    [
        (None, "it has no pipe for its stacks"),
        (987654, "No such file or directory"),
        (1 << 63, "No such file or directory"),
        ("file", "its descriptor {} is another file now"),
    ],
)
async def test_a_descriptor_that_is_no_pipe_of_its_is_told(
    reader: StackReader, router: Router, stacks: int | str | None, trouble: str
) -> None:
    program = "writer = os.open('/dev/null', os.O_RDWR); hold()" if stacks == "file" else "hold()"
    before = open_files()
    with silent(router, program) as endpoint:
        if stacks != "file":
            endpoint.note_hello({"stacks": stacks})
        assert (await reader.read(endpoint)).trouble == trouble.format(endpoint.stacks)
    assert open_files() == before


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES])
async def test_a_pipe_that_cannot_be_opened_is_told(
    reader: StackReader, holding: Endpoint, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        stacks = reader.read(holding)
    assert (await stacks).trouble == os.strerror(number)


async def test_a_process_that_has_ended_is_told(reader: StackReader, holding: Endpoint) -> None:
    signal.pidfd_send_signal(holding.pidfd, signal.SIGKILL)
    os.waitid(os.P_PIDFD, holding.pidfd, os.WEXITED | os.WNOWAIT)
    assert (await reader.read(holding)).trouble
    pidfd, holding.pidfd = holding.pidfd, -1  # as it is once its end has been handled
    with pytest.raises(ProcessLookupError):
        holding.send_signal(signal.SIGKILL)
    holding.pidfd = pidfd


async def test_a_process_that_cannot_dump_is_awaited_to_the_timeout(
    reader: StackReader, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_reader, "TIMEOUT_S", 0.2)
    with silent(router, "signal.pthread_sigmask(signal.SIG_BLOCK, [SIGNAL]); hold()") as endpoint:
        began = time.monotonic()
        assert await reader.read(endpoint) == stack_reader.Stacks("", "its stacks do not come either")
        assert 0.2 <= time.monotonic() - began < 1
        waiting = reader.read(endpoint)
        reader.drop(endpoint.id)  # it has ended meanwhile
        assert waiting.done()


async def test_an_endless_dump_is_read_to_a_bound(
    reader: StackReader, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
        os.set_blocking(writer, True)
        ready()
        while True:
            os.write(writer, b'x' * 4096)
    """
    monkeypatch.setattr(stack_reader, "_MAX_BYTES", 1 << 18)
    with silent(router, program) as endpoint:
        async with asyncio.timeout(stack_reader.TIMEOUT_S):
            assert 1 << 18 <= len((await reader.read(endpoint)).text) < 1 << 19

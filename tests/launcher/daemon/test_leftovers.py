"""Leftovers of a dead worker, distinguished from other processes."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlinf_launcher.daemon import leftovers as leftovers_module
from rlinf_launcher.daemon.fork_server import MARKER, PARENT_SOCKET
from rlinf_launcher.daemon.leftovers import SESSIONS, Leftovers, note_session
from rlinf_launcher.daemon.process_state import start_of


def test_a_session_is_noted_with_its_start_and_boot(tmp_path: Path) -> None:
    environment = {PARENT_SOCKET: str(tmp_path / "node.sock")}
    for _ in range(2):
        note_session(os.getsid(0), os.getpid(), environment)
    start = start_of(os.getsid(0)) or start_of(os.getpid())
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    assert (tmp_path / SESSIONS).read_text() == 2 * f"{os.getsid(0)} {start} {boot}"


@contextmanager
def started(environment: dict[str, str], *command: str) -> Iterator[int]:
    """Start a process in its own session; return once it has exec'ed and has an environment."""
    pipe = subprocess.PIPE
    command = command or ("/bin/cat",)
    with subprocess.Popen(command, env=environment, start_new_session=True, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        os.write(process.stdin.fileno(), b".")
        assert os.read(process.stdout.fileno(), 1) == b"."
        yield process.pid


@pytest.mark.parametrize(
    ("environment", "is_left"), [({MARKER: "mine"}, True), ({MARKER: "another"}, False), ({}, True)], ids=str
)
async def test_a_process_in_its_own_session_may_be_a_leftover(environment: dict[str, str], is_left: bool) -> None:
    with started({MARKER: "mine"}) as worker:
        leftovers = Leftovers(asyncio.get_running_loop(), worker, "mine", lambda: None)
        with started(environment) as pid:
            assert leftovers._is_left(pid) == is_left
        leftovers.release()


async def test_a_process_of_the_workers_session_is_a_leftover() -> None:
    with started({MARKER: "mine"}, "/bin/sh", "-c", f"{MARKER}=another /bin/cat; exit") as worker:
        leftovers = Leftovers(asyncio.get_running_loop(), worker, "mine", lambda: None)
        (child,) = psutil.Process(worker).children()
        assert leftovers._is_left(child.pid)
        leftovers.release()


@pytest.mark.parametrize("lacking", ["pidfd_open", "read_bytes"])
async def test_processes_that_cannot_be_watched_are_killed_later(
    lacking: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = asyncio.Event()
    with started({MARKER: "mine"}) as worker:
        leftovers = Leftovers(asyncio.get_running_loop(), worker, "mine", gone.set)
    short = [OSError(errno.EMFILE, "no descriptor is free")]
    where: Any = {"pidfd_open": os, "read_bytes": Path}[lacking]
    opening = getattr(where, lacking)

    def fails_once(of: Any) -> Any:
        if short:
            raise short.pop()
        return opening(of)

    with started({MARKER: "mine"}) as left:
        monkeypatch.setattr(leftovers_module, "children", lambda: [left] if psutil.pid_exists(left) else [])
        monkeypatch.setattr(where, lacking, fails_once)
        leftovers.end()
        async with asyncio.timeout(5):
            await gone.wait()
        assert not short
        assert not psutil.pid_exists(left)


async def test_a_process_that_has_become_another_users_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, "it is another user's")

    gone = asyncio.Event()
    with started({MARKER: "mine"}) as worker:
        leftovers = Leftovers(asyncio.get_running_loop(), worker, "mine", gone.set)
    with started({MARKER: "mine"}) as left, monkeypatch.context() as patch:
        patch.setattr(leftovers_module, "children", lambda: [left])
        patch.setattr(os, "kill", refuse)
        leftovers.end()
        assert gone.is_set()


async def test_trackers_that_cannot_all_be_watched_are_killed_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = asyncio.Event()
    with started({MARKER: "mine"}) as worker:
        leftovers = Leftovers(asyncio.get_running_loop(), worker, "mine", gone.set)
    open_pidfd, watched = os.pidfd_open, []

    def pidfd_open(pid: int) -> int:
        watched.append(pid)
        if len(watched) == 2:
            raise OSError(errno.EMFILE, "no descriptor is free")
        return open_pidfd(pid)

    with started({MARKER: "mine"}) as one, started({MARKER: "mine"}) as other:
        monkeypatch.setattr(
            leftovers_module, "children", lambda: [pid for pid in (one, other) if psutil.pid_exists(pid)]
        )
        monkeypatch.setattr(leftovers_module, "is_tracker", lambda pid: True)
        monkeypatch.setattr(leftovers_module, "TRACKERS_S", 0.1)
        monkeypatch.setattr(os, "pidfd_open", pidfd_open)
        leftovers.end()
        async with asyncio.timeout(5):
            await gone.wait()
    assert watched == [one, other, other]

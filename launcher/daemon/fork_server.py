"""``ForkServer``: client for a process that forks workers; sends requests, enforces the timeout, handles its exit.

``rlinf_async._worker.template`` is the program that this process runs.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._core import frames
from rlinf_async._core.descriptors import limit_met
from rlinf_async._core.printable import printable
from rlinf_async._wire.send_buffer import PASSING, RETRY_S
from rlinf_async.errors import LaunchError

from .exit_status import reap
from .oom import MemoryKills
from .process_state import state_of

PACKET_BYTES: Final = 512 * 1024

_REPORTS: Final = frozenset({"ready", "importing", "refused"})  # keys of messages that do not answer a request

_Answer = asyncio.Future[dict[str, Any]]

MARKER: Final = "RLINF_WORKER"  # environment variable in all children of daemons and all descendants of workers

PARENT_SOCKET: Final = "RLINF_PARENT_SOCKET"
"""Environment variable with the path of this node's socket, through which a worker's subprocesses can join."""

NO_TOKEN: Final = "0" * 16
"""Value of ``MARKER`` in processes that belong to no worker, and in templates until a worker's token replaces it."""

_TAIL_BYTES: Final = 16 * 1024

_MAX_TAIL_LINES: Final = 20
_MAX_TAIL_LINE_CHARS: Final = 400


def open_log(path: Path | None) -> int | None:
    """Open a template's log for appending; return None if the template must share this process's output."""
    if path is not None:
        with contextlib.suppress(OSError):  # the disk may be full, for example
            return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return None


def _log_tail(log: Path | None) -> str:
    """Return a template log's last lines and path, to be appended to an error."""
    if log is None:
        return ""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        return f"; what it said is not known: {error}"
    lines = [printable(line)[:_MAX_TAIL_LINE_CHARS] for line in text.splitlines() if line.strip()][-_MAX_TAIL_LINES:]
    return "".join(f"\n{line}" for line in (*(f"    | {line}" for line in lines), f"  full log    {log}"))


def _too_large(spec: Mapping[str, Any], nbytes: int, limit: int) -> str:
    sizes = {name: len(name) + len(value) for name, value in spec["env"].items()}
    largest = ", ".join(f"${name} ({sizes[name]})" for name in sorted(sizes, key=sizes.__getitem__)[:-4:-1])
    return (
        f"the description of a worker takes {nbytes} bytes, and {limit} pass; "
        f"its largest variables, in bytes: {largest}\n"
        "  fix: hand large values over as arguments, or in files, not in the environment or in env="
    )


def control_pair() -> tuple[socket.socket, socket.socket]:
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET_BYTES)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * PACKET_BYTES)
    return own, other


class ForkServer:
    """Client for a template process that forks workers; the workers become children of this daemon."""

    doing = "importing torch"  # the template's activity until it is ready, for error messages

    def __init__(self, python: str, control: socket.socket, pid: int, open_files: int, log: Path | None) -> None:
        """Watch a process that is already running.

        Args:
            python: interpreter of the process.
            control: this side of the socket to the process.
            open_files: workers' limit on open files.
            log: file that contains the process's output.

        Raises:
            LaunchError: the process could not be watched, and was killed.
        """
        self.python = python
        self.pid = pid
        self._socket = control
        self._memory_kills = MemoryKills.count()
        self._log = log
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError as error:
            control.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise LaunchError(f"the worker template could not be watched: {error}{limit_met(error)}") from error
        self._has_ended = False
        self.open_files = open_files
        self.users = 0  # launches that are about to fork from this template
        self._to_send: deque[tuple[bytes, Sequence[int], _Answer]] = deque()
        self._waiting: deque[_Answer] = deque()
        self._timeout: asyncio.TimerHandle | None = None
        self._strays: dict[int, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._death: LaunchError | None = None
        self.facts: dict[str, Any] | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start receiving; a separate step, so that torch's import begins before the loop runs."""
        self._loop = loop
        self._socket.setblocking(False)
        loop.add_reader(self._socket.fileno(), self._readable)
        loop.add_reader(self._pidfd, self._ended)

    async def fork(self, spec: Mapping[str, Any], fds: Sequence[int]) -> int:
        """Fork a worker as a child of this daemon; return its pid.  The caller keeps ``fds``.  Raises LaunchError."""
        facts = await self.ask({**spec, "open_files": self.open_files}, fds)
        if "error" in facts:
            raise LaunchError(f"a worker could not be forked: {facts['error']}")
        return int(facts["pid"])

    async def ask(self, spec: Mapping[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """Return the template's answer; raise LaunchError if it is dead or silent.  The caller keeps ``fds``."""
        if self._death is not None:
            raise self._death
        assert self._loop is not None
        packet = frames.pack(spec)
        if len(packet) > PACKET_BYTES:
            raise LaunchError(_too_large(spec, len(packet), PACKET_BYTES))
        answer: _Answer = self._loop.create_future()
        self._to_send.append((packet, fds, answer))
        if self._timeout is None:
            self._arm_timeout()
        if len(self._to_send) == 1:
            self._writable()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not (answer.cancelled() or answer.exception()):  # answered in this turn of the loop
                self._end_unclaimed(answer.result())
            raise

    def _writable(self) -> None:
        assert self._loop is not None
        while self._to_send:
            packet, fds, answer = self._to_send.popleft()
            if answer.done():  # the request was cancelled and its descriptors are closed
                continue
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            try:
                self._socket.sendmsg([packet], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._to_send.appendleft((packet, fds, answer))
                self._loop.add_writer(self._socket.fileno(), self._writable)
                return
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    self._to_send.appendleft((packet, fds, answer))
                    if error.errno in PASSING:
                        self._loop.call_later(RETRY_S, self._write_again)
                    break  # the template is dead, as its pidfd will report
                limit = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)  # net.core.wmem_max may limit it
                answer.set_exception(LaunchError(_too_large(frames.unpack(packet), len(packet), limit)))
                self._arm_timeout()
                continue
            self._waiting.append(answer)
        self._loop.remove_writer(self._socket.fileno())

    def _write_again(self) -> None:
        if self._death is None:
            self._writable()

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        """Process one message; return False if none was available."""
        try:
            packet = self._socket.recv(PACKET_BYTES)
        except OSError:
            return False
        if not packet:
            assert self._loop is not None
            self._loop.remove_reader(self._socket.fileno())
            return False
        facts = frames.unpack(packet)
        if not _REPORTS.isdisjoint(facts):
            self._on_report(facts)
        else:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result(facts)
            else:
                self._end_unclaimed(facts)
        self._arm_timeout()
        return True

    def _on_report(self, facts: dict[str, Any]) -> None:
        self.facts = facts

    def _ended(self) -> None:
        exit_status = reap(self._pidfd, self._memory_kills)
        if exit_status is None:
            return
        self._has_ended = True
        while self._read():
            pass
        self._fail(self._why_ended(exit_status.text))
        self._release()

    def _why_ended(self, how: str) -> str:
        return f"the worker template {how}{_log_tail(self._log)}"

    def _arm_timeout(self) -> None:
        """Restart the timeout if requests are open."""
        assert self._loop is not None
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        if self._waiting or self._to_send:
            limit = settings.WORKER_IMPORT_TIMEOUT_S if self.facts is None else settings.WORKER_FORK_TIMEOUT_S
            seconds = limit()
            self._timeout = self._loop.call_later(seconds, self._on_timeout, seconds)

    def _on_timeout(self, seconds: float) -> None:
        doing = self.doing if self.facts is None else "forking a worker"
        silent = f"the worker template (pid {self.pid}) has said nothing for {seconds:g} s while {doing}"
        self._fail(silent + _log_tail(self._log))
        self._kill()  # the cleanup follows when the pidfd reports the end

    def _fail(self, reason: str) -> None:
        if self._death is None:
            self._death = LaunchError(reason)
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        for answer in (*self._waiting, *(answer for _, _, answer in self._to_send)):
            if not answer.done():
                answer.set_exception(self._death)
        self._to_send.clear()

    def _kill(self) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _release(self) -> None:
        """Close the socket and the pidfd.  Idempotent."""
        if self._pidfd < 0:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._pidfd)
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
        os.close(self._pidfd)
        self._pidfd = -1
        self._socket.close()

    def _end_unclaimed(self, facts: dict[str, Any]) -> None:
        """Kill a forked worker whose start was cancelled during the fork."""
        if "pid" in facts:
            self._end_stray(int(facts["pid"]))

    def _end_stray(self, pid: int) -> None:
        assert self._loop is not None
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:  # no descriptor is free for a pidfd, so wait for the exit here
                os.waitpid(pid, 0)
                return
            self._strays[pid] = pidfd
            self._loop.add_reader(pidfd, self._stray_ended, pid)

    def _stray_ended(self, pid: int) -> None:
        assert self._loop is not None
        pidfd = self._strays.pop(pid)
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

    def describe(self) -> str:
        if not self._waiting and not self._to_send:
            return ""
        state = state_of(self.pid, None)
        doing = self.doing if self.facts is None else "forking"
        return f"the worker template (pid {self.pid}) is {state or doing}"

    @property
    def dead(self) -> bool:
        return self._death is not None

    def end(self) -> None:
        """Kill the template; workers forked from it survive."""
        self._fail("it is not needed any more")
        self._kill()  # the cleanup follows when the pidfd reports the end

    def close(self) -> None:
        """Kill the template, and block until it has ended."""
        if self._pidfd >= 0 and not self._has_ended:
            self._kill()
            os.waitpid(self.pid, 0)  # waitid(P_PIDFD) would not block, because uvloop has made the pidfd non-blocking
        self._fail("this node is closing")
        self._release()
        for pid in list(self._strays):
            self._stray_ended(pid)

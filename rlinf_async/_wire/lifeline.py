"""``Lifeline``: exchanges JSON lines with a node's daemon, a local or ssh subprocess that exits when its stdin closes.

The far side, started here or through ssh, reads and writes JSON objects, one per line. Its lines for this side start
with a marker known only to the two sides. Anything else on its stdout is noise (a shell's start-up files, a banner),
kept only for error messages. However this process ends, the far side sees the end of its stdin and ends everything that
it started.

This module touches no signal handlers or child watchers and starts no thread, so that a service may embed it; a pidfd
reports the end of the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from rlinf_async._core.descriptors import limit_met
from rlinf_async._core.process import is_in_editor
from rlinf_async._wire.marked_lines import MAX_LINE_CHARS, MAX_LINES, MarkedLines
from rlinf_async._wire.remote_exit import RemoteExit, describe_exit
from rlinf_async.errors import ClosedError, DeadlineExceeded, LaunchError, RLinfAsyncError

_READ_BYTES: Final = 64 * 1024
_READS_PER_TURN: Final = 16
_LAST_OUTPUT_S: Final = 2.0
"""Seconds to wait for the exit code after the output has ended, or after a SIGKILL."""
_PAST_EDITOR: Final = ("/usr/bin/env",)
"""Command prefix under debugpy, which would otherwise rewrite the command and add threads to a node's template."""

_STOP_S: Final = 5.0
"""Seconds that the far side has, once its stdin closes, to end everything that it started; a guardian needs at most
four."""

_STOP_LOST_S: Final = 0.8

_open_here: weakref.WeakSet[Lifeline] = weakref.WeakSet()
_fork_hook_set = False


def fresh_marker() -> str:
    return secrets.token_hex(16)


class Lifeline:
    """A started subprocess, the far side. Use it on one loop; only one task at a time may ``receive``.

    Attributes:
        name: the host as written by the user.
        pid: process id of the local process (the guardian or the ssh client).
        on_stderr: called on the loop with every line of the far side's stderr, without its line end.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        sock: socket.socket,
        *,
        name: str,
        marker: str,
        explain: Callable[[RemoteExit], str],
    ) -> None:
        self.name = name
        self.marker = marker
        self.pid = process.pid
        self.on_stderr: Callable[[str], None] | None = None
        self._process = process
        self._socket = sock
        self._explain = explain
        self._loop = asyncio.get_running_loop()
        self._writing = asyncio.Lock()
        self._output = MarkedLines(marker)
        self._stderr_lines: deque[str] = deque(maxlen=MAX_LINES)
        self._stderr_rest = bytearray()
        self._news = asyncio.Event()
        self._exited = asyncio.Event()
        self._out_ended = self._broken = self._sealed = self._closed = self._belongs_to_parent = False
        assert process.stderr is not None
        self._stderr = process.stderr
        os.set_blocking(self._stderr.fileno(), False)
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(sock.fileno(), self._on_stdout)
        self._loop.add_reader(self._stderr.fileno(), self._on_stderr)
        self._loop.add_reader(self._pidfd, self._on_exit)

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        name: str,
        marker: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        prelude: Iterable[bytes] = (),
        explain: Callable[[RemoteExit], str] = describe_exit,
    ) -> Lifeline:
        """Start ``argv`` in a new session and write ``prelude`` to its stdin.

        If the far side exits before reading all of ``prelude``, ``receive`` raises the cause.

        Raises:
            LaunchError: ``argv[0]`` cannot be run or cannot be watched.
        """
        global _fork_hook_set
        if not _fork_hook_set:
            os.register_at_fork(after_in_child=_close_after_fork)
            _fork_hook_set = True
        process, near = _spawn(argv, env, cwd)
        near.setblocking(False)
        try:
            lifeline = cls(process, near, name=name, marker=marker or fresh_marker(), explain=explain)
        except OSError as error:
            assert process.stderr is not None
            near.close()
            process.stderr.close()
            process.kill()
            process.wait()
            raise LaunchError(f"{argv[0]} cannot be watched: {error}{limit_met(error)}") from error
        _open_here.add(lifeline)
        try:
            for piece in prelude:
                await lifeline._loop.sock_sendall(near, piece)
        except OSError:
            lifeline._broken = lifeline._sealed = True
        except BaseException:
            lifeline.kill()
            await lifeline.close()
            raise
        return lifeline

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        return tuple(self._stderr_lines)

    @property
    def exit_code(self) -> int | None:
        """Return the exit code as in ``subprocess``: negative for a signal, None while the process runs."""
        return self._process.returncode

    async def send(self, message: Mapping[str, Any], *, timeout: float | None = 30.0) -> None:
        """Write one JSON line.

        Raises:
            LaunchError: the far side has exited.
            DeadlineExceeded: the far side did not read the line within ``timeout`` seconds; its stdin is then closed.
            ClosedError: ``stop`` or ``close`` was already called.
        """
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        async with self._writing:
            if self._broken:
                raise await self._exit_error()
            if self._sealed:
                raise ClosedError(f"the lifeline of {self.name} is closed")
            try:
                async with asyncio.timeout(timeout):
                    await self._loop.sock_sendall(self._socket, line)
            except TimeoutError:
                self.seal()
                raise DeadlineExceeded(
                    f"{self.name} did not read a message of {len(line)} bytes within {timeout:g} s"
                ) from None
            except OSError:
                self._broken = self._sealed = True
                raise await self._exit_error() from None
            except BaseException:
                # Part of the line may have been sent, so nothing may follow it.
                self.seal()
                raise

    async def receive(self, timeout: float | None) -> dict[str, Any]:
        """Return the next marked message.

        Raises:
            LaunchError: the far side has exited; the text has its exit code and its last output.
            DeadlineExceeded: no message arrived within ``timeout`` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while not self._output.messages:
                    if self._out_ended:
                        raise await self._exit_error()
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise DeadlineExceeded(f"no answer from {self.name} within {timeout:g} s{self.stray_output()}") from None
        return self._output.messages.popleft()

    async def wait(self) -> int:
        """Wait until the local process has exited. Return its exit code, negative for a signal."""
        await self._exited.wait()
        return self._process.returncode

    async def stop(self, grace: float = 5.0, *, cut: float = _STOP_S) -> int | None:
        """Ask the far side to exit within ``grace`` seconds; then close its stdin, and kill it ``cut`` seconds later.

        Return the exit code. A misbehaving far side causes no exception; the lifeline is closed afterwards.
        """
        end = self._loop.time() + grace
        with suppress(RLinfAsyncError):
            await self.send({"op": "stop"}, timeout=grace)
        await self._exits_within(end - self._loop.time())
        await self.close(cut)
        return self._process.returncode

    async def stop_lost(self, *, is_here: bool) -> None:
        """Stop a lost node's far side within a second, even if it does not answer.

        A far side on another machine is stopped by closing its stdin.
        """
        end = self._loop.time() + _STOP_LOST_S / 2
        with suppress(RLinfAsyncError):
            await self.send({"op": "stop"}, timeout=_STOP_LOST_S / 2)
        if not await self._exits_within(end - self._loop.time()) and is_here:
            # The guardian kills its daemon, which may be stopped, and cleans up. Killing the guardian itself would
            # leave the daemon and its workers behind. tests/test_embedding.py::
            # test_closing_ends_although_the_daemon_is_frozen
            self._process.send_signal(signal.SIGUSR1)
        await self.close(_STOP_LOST_S / 2)

    def kill(self) -> None:
        """Send SIGKILL to the local process. Its dependent processes exit by themselves."""
        if self._process.returncode is None and not self._belongs_to_parent:
            self._process.kill()

    async def close(self, cut: float = _STOP_S) -> None:
        """Close the far side's stdin; kill the local process if it is still alive ``cut`` seconds later. Idempotent."""
        self.seal()
        if not self._closed and not await self._exits_within(cut):
            self.kill()
            await self._exits_within(_LAST_OUTPUT_S)
        if self._closed:
            return
        self._closed = True
        _open_here.discard(self)
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_reader(self._stderr.fileno())
        if not self._exited.is_set():
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self._out_ended = True
        self._news.set()
        self._close_descriptors()

    def end_without_loop(self, cut: float) -> None:
        """Close the lifeline and block until it is closed. Any thread may call this if the loop does not run.

        If the loop runs again, it releases the descriptors registered with it.
        """
        self.seal()
        poll = select.poll()
        try:
            if self._process.returncode is None:
                poll.register(self._pidfd, select.POLLIN)
                if not poll.poll(cut * 1000):
                    self.kill()
                    poll.poll(_LAST_OUTPUT_S * 1000)
                self._process.poll()
        except OSError:
            pass  # the loop is still running, and has noticed the exit
        if self._loop.is_closed() and not self._closed:
            self._closed = True
            _open_here.discard(self)
            if not self._exited.is_set():
                os.close(self._pidfd)
            self._close_descriptors()

    def _close_descriptors(self) -> None:
        self._socket.close()
        self._stderr.close()

    def seal(self) -> None:
        """Close the far side's stdin; its last output can still be read."""
        if not self._sealed:
            self._sealed = True
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    async def _exits_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._exited.wait()
        return self._exited.is_set()

    async def _exit_error(self) -> LaunchError:
        # The output usually ends shortly before the exit code is known.
        await self._exits_within(_LAST_OUTPUT_S)
        return LaunchError(
            self._explain(RemoteExit(self._process.returncode, tuple(self._output.noise), self.stderr_tail))
        )

    def stray_output(self) -> str:
        """Return the last unmarked output, as lines to append to an error message; often empty."""
        lines = RemoteExit(None, tuple(self._output.noise), self.stderr_tail).last_lines()
        return "".join(f"\n{line}" for line in lines)

    def _on_stdout(self) -> None:
        for _ in range(_READS_PER_TURN):
            try:
                data = self._socket.recv(_READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._loop.remove_reader(self._socket.fileno())
                self._out_ended = True
                self._news.set()
                return
            self._output.feed(data)
            if self._output.messages:
                self._news.set()

    def _on_stderr(self) -> None:
        for _ in range(_READS_PER_TURN):
            try:
                data = os.read(self._stderr.fileno(), _READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            if not data:
                self._loop.remove_reader(self._stderr.fileno())
                rest, self._stderr_rest = self._stderr_rest, bytearray()
                if rest:
                    self._on_stderr_line(rest)
                return
            self._stderr_rest += data
            *lines, self._stderr_rest = self._stderr_rest.split(b"\n")
            if len(self._stderr_rest) > _READ_BYTES:
                lines.append(self._stderr_rest)
                self._stderr_rest = bytearray()
            for line in lines:
                self._on_stderr_line(line)

    def _on_stderr_line(self, line: bytearray) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        if text:
            self._stderr_lines.append(text[:MAX_LINE_CHARS])
        if self.on_stderr is not None:
            self.on_stderr(text)

    def _on_exit(self) -> None:
        if self._process.poll() is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._on_stderr()
        if not self._out_ended:
            self._on_stdout()
        # A leftover descendant may hold the pipes open, so rely only on the process's own exit.
        self._out_ended = True
        self._exited.set()
        self._news.set()


def _spawn(
    argv: Sequence[str], env: Mapping[str, str] | None, cwd: str | os.PathLike[str] | None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    near, far = socket.socketpair()
    try:
        process = subprocess.Popen(
            [*(_PAST_EDITOR if is_in_editor() else ()), *argv],
            stdin=far.fileno(), stdout=far.fileno(), stderr=subprocess.PIPE, bufsize=0,
            env=None if env is None else dict(env), cwd=cwd, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        near.close()
        raise LaunchError(f"{argv[0]} cannot be started: {error.strerror or error}") from error
    finally:
        far.close()
    return process, near


def _close_after_fork() -> None:
    # The far side exits when its stdin ends, that is, once every copy of this end is closed. If a forked child of the
    # user's process kept its copy, a whole run would stay alive after the parent was killed.
    # tests/_wire/test_lifeline.py::test_a_forked_child_does_not_keep_the_far_side_alive_when_its_parent_is_killed
    for lifeline in list(_open_here):
        lifeline._belongs_to_parent = True
        lifeline._close_descriptors()

"""``Driver``: starts, interrupts and kills the user's script, a child process of the launcher."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

_KILL_TIMEOUT_S: Final = 2.0


class Driver:
    """The running script.

    In the foreground of a terminal it stays in the launcher's process group, so that it can read from the terminal and
    receives the terminal's Ctrl-C.  Otherwise it has its own group, and ``interrupt`` forwards Ctrl-C.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._shares_terminal = _in_foreground()
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("die_with_parent.py")), str(os.getpid())]
        # The script gets the descriptors that the user's shell has given the launcher: rlinf-launch <(make_script).
        self._process = subprocess.Popen(
            [*command, *argv], env=dict(env), process_group=None if self._shares_terminal else 0, close_fds=False
        )
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise
        self._loop.add_reader(self._pidfd, self._on_exit)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the script to end; return its exit code as a shell reports it: 128 + n for signal n."""
        await self._exited.wait()
        code = self._process.returncode
        return 128 - code if code < 0 else code

    def interrupt(self, number: int) -> None:
        """Forward a signal as SIGINT, unless the terminal has already sent the SIGINT to the script."""
        if not (self._shares_terminal and number == signal.SIGINT) and not self._exited.is_set():
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        # Kill only the script, not its group, which contains trackers of shared memory; ``Orphans`` kills the rest,
        # trackers last.
        # tests/test_orphans.py::test_a_second_signal_ends_at_once_a_script_that_ignores_the_first
        if not self._exited.is_set():
            self._process.kill()

    async def close(self) -> None:
        """Kill the script if it is running, and wait for its end."""
        self.kill()
        with suppress(TimeoutError):  # a process hanging in the kernel must not block the launcher
            async with asyncio.timeout(_KILL_TIMEOUT_S):
                await self._exited.wait()

    def _on_exit(self) -> None:
        if self._process.poll() is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._exited.set()


def _in_foreground() -> bool:
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False

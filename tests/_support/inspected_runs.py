"""Runs of programs by ``rlinf-launch`` that an operator inspects with ``rlinf-ctl`` from another process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from tests._support import leaks

MARK = "RLINF_INSPECTED_RUN"
"""Set in the environment of every process of such a run."""

CONTROL = Path(sys.executable).with_name("rlinf-ctl")


class InspectedRun:
    """One program under ``rlinf-launch``, in a session of its own, and the only run in its folder.

    A context manager that leaves no process behind.

    Args:
        home: the folder from which the run imports the framework; None for the usual one.
    """

    process: subprocess.Popen[bytes]
    folder: Path

    def __init__(self, program: Path, *arguments: str, flags: tuple[str, ...] = (), home: Path | None = None) -> None:
        self._command = [sys.executable, "-m", "rlinf_launcher", "-q", *flags, str(program), *arguments]
        self._mark = uuid.uuid4().hex
        self._home = {} if home is None else {"PYTHONPATH": str(home)}

    def __enter__(self) -> InspectedRun:
        # A short name: a socket's path has 108 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="run-", dir=os.environ["XDG_RUNTIME_DIR"]))
        self._environment = {**os.environ, **self._home, "XDG_RUNTIME_DIR": str(self.folder)}
        with open(self.folder / "output", "w") as output:
            self.process = subprocess.Popen(
                self._command,
                env={**self._environment, MARK: self._mark, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        leaks.wait_ended(self.processes(), 5)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def processes(self) -> list[int]:
        """All of the run that there are now."""
        return [pid for pid in leaks.pids() if leaks.environment(pid).get(MARK) == self._mark]

    def wait_for(self, word: str, timeout: float) -> None:
        """Waits until the run has printed it.

        Raises:
            AssertionError: it has ended, or has not printed it in time.
        """
        deadline = time.monotonic() + timeout
        while word not in self.output:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {word!r} within {timeout} s:\n{self.output}"
            time.sleep(0.05)

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """``rlinf-ctl`` with these words, as another process of the same user."""
        return subprocess.run(
            [CONTROL, "--run-dir", self.folder, *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def end(self, timeout: float = 30) -> list[int]:
        """Ends the run as Ctrl-C does; what of it is left when the launcher has ended, and two seconds after.

        Raises:
            subprocess.TimeoutExpired: the launcher has not ended.
        """
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout)
        return leaks.wait_ended(self.processes(), leaks.PATIENCE)

"""The benches' end of the line protocol: starts each contestant as a process, and requests measurements from it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
PEERS: Final = ("ray", "rlinf", "monarch", "xoscar")
SHARES: Final = {"rlinf": "ray"}
"""Peers that share the environment of another peer."""

PATIENCE: Final = 180.0
"""Seconds after which a piece of work, and its contestant, count as failed."""


class ContestantError(RuntimeError):
    """A contestant could not be started, failed at its work, or took too long."""


class Contestant:
    """A process that does measurements one at a time.

    Args:
        name: name for errors.
        script: file in ``benches/contestants``.
        python: interpreter of its environment.
        launch: first words of the command, in place of the interpreter alone.
        checkout: checkout whose ``rlinf_async`` and ``rlinf_launcher`` it imports; None for this one.

    Example:
        with ours("--nodes", "2") as contestant:
            samples = contestant.ask("call", count=100, method="ping")
    """

    def __init__(
        self,
        name: str,
        script: str,
        *args: str,
        python: str | Path = sys.executable,
        launch: Sequence[str] | None = None,
        checkout: Path | None = None,
    ) -> None:
        self.name = name
        self._packages = None if checkout is None else tempfile.TemporaryDirectory(prefix="rlinf-bench-")
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # closed in close()
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
        if python == sys.executable:
            packages = ROOT
            if self._packages is not None and checkout is not None:
                packages = _link_packages(Path(self._packages.name), checkout)
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [*(launch or [str(python)]), str(HERE / "contestants" / script), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            cwd=checkout,  # daemons of an early version find their packages there, not by PYTHONPATH
            start_new_session=True,
        )

    def __repr__(self) -> str:
        return f"<Contestant {self.name} pid {self._process.pid}>"

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(at_once=error is not None)

    def ask(self, work: str, **arguments: Any) -> Any:
        """Request a measurement and return its samples.

        Raises:
            ContestantError: it failed; the message has the contestant's last output.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"work": work, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._gone(work) from None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE):
                self._kill()
                raise ContestantError(f"{self.name} did not finish {work} within {PATIENCE:.0f} s\n{self._said()}")
        line = self._process.stdout.readline()
        if not line:
            raise self._gone(work)
        answer = json.loads(line)
        if "error" in answer:
            raise ContestantError(f"{self.name} failed at {work}:\n{answer['error']}{self._said()}")
        return answer["samples"]

    def close(self, *, at_once: bool = False) -> None:
        """Stop the process in order, or by force after a while.

        Args:
            at_once: True if it may be in the middle of work that nobody waits for.
        """
        assert self._process.stdin is not None
        try:
            if not at_once:
                if self._process.poll() is None:
                    self.ask("close")
                self._process.stdin.close()
                self._process.wait(20)
        except (ContestantError, BrokenPipeError, subprocess.TimeoutExpired):
            pass
        finally:
            self._kill()
            assert self._process.stdout is not None
            self._process.stdout.close()
            with suppress(BrokenPipeError):  # from a request that it has not read
                self._process.stdin.close()
            self._log.close()
            if self._packages is not None:
                self._packages.cleanup()

    def _kill(self) -> None:
        """Kill what is left of its session, including child processes."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def _gone(self, work: str) -> ContestantError:
        code = self._process.wait()
        return ContestantError(f"{self.name} ended with {code} before it had answered {work}\n{self._said()}")

    def _said(self) -> str:
        self._log.seek(0)
        return "".join(self._log.readlines()[-20:])


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Context manager: SIGTERM ends the bench with its contestants, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _link_packages(folder: Path, checkout: Path) -> Path:
    """Make a folder in which a checkout's packages have their installed names."""
    for name, place in (("rlinf_async", "rlinf_async"), ("rlinf_launcher", "launcher")):
        (folder / name).symlink_to(checkout / place)
    return folder


def ours(
    *args: str, script: str = "ours.py", launch: Sequence[str] | None = None, checkout: Path | None = None
) -> Contestant:
    name = "rlinf_async" if checkout is None else f"rlinf_async of {checkout}"
    return Contestant(name, script, *args, launch=launch, checkout=checkout)


def limits(*args: str, launch: Sequence[str] | None = None) -> Contestant:
    return Contestant("limit", "limits.py", *args, launch=launch)


def peer(name: str, peers_dir: Path, *args: str, kind: str = "peer") -> Contestant:
    """Start a peer in its own environment; benches/README.md says how to create that.

    Args:
        kind: ``"peer"`` for calls, ``"exchange"`` for data between workers.

    Raises:
        ContestantError: there is no such environment.
    """
    python = peers_dir / SHARES.get(name, name) / "bin" / "python"
    if not python.exists():
        raise ContestantError(
            f"{name} needs an environment of its own, and there is no {python}: benches/README.md says how to make it, "
            "--peers-dir where to look"
        )
    return Contestant(name, f"{kind}_{name}.py", *args, python=python)

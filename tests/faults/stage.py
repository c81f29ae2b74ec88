"""The cluster that programs are played on, one after the other, until one of them breaks it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pytest

from rlinf_async import Cluster, settings
from tests._support import leaks
from tests.faults import steps
from tests.faults.journal import Operation
from tests.faults.judgement import Violation, judge
from tests.faults.performance import Performance
from tests.faults.scene import warm_up
from tests.faults.words import WARNING_S, Words

TAIL_LINES = 12
"""Of each worker's log, in a report."""


WARNINGS = (settings.WAIT_WARNING_S, settings.WAIT_WARNING_2_S, settings.WAIT_WARNING_3_S)

PATIENCE_ROUNDS = 4
"""Times ``leaks.PATIENCE`` that processes have to end on a machine that has much else to do."""

COUNTED_LATER = ("/memfd:", "file or folder")
"""What a cluster may keep between programs, in the words of ``leaks``."""


@dataclass
class Report:
    """What became of one program."""

    program: steps.Program
    violations: list[Violation]
    operations: list[Operation]
    tails: list[str]

    def __str__(self) -> str:
        lines = [str(violation) for violation in self.violations]
        lines += ["the program:", shown(self.program)]
        open_ = [str(operation) for operation in self.operations if not operation.ended and operation.kind != "run"]
        if open_:
            lines += ["still open in the journals:", *open_[:20]]
        return "\n".join([*lines, *self.tails])


def shown(program: steps.Program) -> str:
    """As Python that ``read_program`` takes."""
    return "\n".join(["(", *(f"    {step!r}," for step in program), ")"])


def read_program(text: str) -> steps.Program:
    """What ``shown`` has written."""
    program: steps.Program = eval(text, dict(vars(steps)))
    return program


class Stage:
    """One event loop, and a cluster on it that is made anew when a program has broken it.

    Example:
        with Stage() as stage:
            report = stage.play((Call("a", "def", 100), Starve("a")))
            assert not report.violations, report
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._cluster: Cluster | None = None
        self._environment = pytest.MonkeyPatch()
        self._daemon = 0
        self._before: leaks.Snapshot | None = None
        self._used: leaks.Snapshot | None = None
        """As it is with a cluster on which one program has been played."""
        self.played = 0

    def __enter__(self) -> Stage:
        for setting in WARNINGS:  # all three: where a wait took as long before, only the last word is said
            self._environment.setenv(setting.variable, str(WARNING_S))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._runner.close()
        self._environment.undo()

    def play(self, program: steps.Program) -> Report:
        """Plays a program, and judges it."""
        self.played += 1
        if self._cluster is None:
            self._runner.get_loop()
            leaks.warm_up()
            self._before = leaks.take()
        folder = Path(tempfile.mkdtemp(prefix="faults-"))
        try:
            with Words(self._runner.get_loop()) as words:
                report = self._runner.run(self._play(program, words, folder))
                if report.violations:
                    self.close()  # what it leaves is left by what hangs
                elif self._cluster is None:
                    report.violations += self.close()
            report.violations += [Violation("logged", text) for text in words.complaints]
        finally:
            shutil.rmtree(folder)
        return report

    async def _play(self, program: steps.Program, words: Words, folder: Path) -> Report:
        if self._cluster is None:
            self._cluster = await Cluster(num_nodes=1, log_to_driver=False)
            self._daemon = (await self._cluster.status())["pid"]
            await warm_up(self._cluster)
        performance = Performance(self._cluster, self._daemon, words, folder)
        violations = await performance.play(program)
        if not violations and not performance.scene.daemon_died:
            violations += await performance.close()
        operations = performance.scene.operations()
        violations += judge(operations, performance.scene.facts)
        tails = [_tail(path) for path in performance.scene.logs()] if violations else []
        if performance.scene.daemon_died:
            await self._leave()
        elif not violations:
            violations += [Violation("left", text) for text in await self._left()]
        return Report(program, violations, operations, tails)

    async def _left(self) -> list[str]:
        """What a program has left in this process, or as a process; pooled memory and folders count at the end."""
        if self._used is None:
            self._used = leaks.take()
            return []
        deadline = time.monotonic() + leaks.PATIENCE
        while found := [
            text for text in leaks.found_since(self._used) if not any(word in text for word in COUNTED_LATER)
        ]:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.02)  # threads, files and processes tell nobody that they have gone
        return found

    async def _leave(self) -> None:
        cluster, self._cluster, self._used = self._cluster, None, None
        if cluster is not None:
            with contextlib.suppress(Exception):
                await cluster.aclose()

    def close(self) -> list[Violation]:
        """Ends the cluster; what it leaves."""
        if self._before is None:
            return []
        before, self._before = self._before, None
        self._runner.run(self._leave())
        for _ in range(PATIENCE_ROUNDS):
            self._runner.run(asyncio.sleep(0))  # what ended last has to be handled on the loop
            if not (found := leaks.settle(before)):
                break
        else:
            leaks.end_processes_since(before)
        return [Violation("left", text) for text in found]


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        lines = [str(error)]
    return "\n".join([f"-- the end of {path.parent.name}/{path.name}", *lines[-TAIL_LINES:]])


@contextlib.contextmanager
def surroundings() -> Iterator[None]:
    """What ``conftest.py`` gives to tests, for programs that are played from the command line."""
    with tempfile.TemporaryDirectory(prefix="rlt-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv(leaks.SESSION_MARK, uuid.uuid4().hex)
        patch.setenv("XDG_RUNTIME_DIR", folder)
        patch.setenv("TMPDIR", f"{folder}/tmp")
        Path(folder, "tmp").mkdir()
        yield


def seconds_of(variable: str, default: float) -> float:
    """A number of seconds from the environment."""
    return float(os.environ.get(variable, "") or default)

"""A copy of the checkout, and the tests of a mutant in it."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests._support import leaks
from tests.mutation.mutants import Mutant
from tests.mutation.reach import Reach

CHECKOUT: Final = Path(__file__).resolve().parents[2]
SEEDS: Final = 60
SEEDS_LIMIT_S: Final = 180.0
"""Sixty seeds take eight seconds on an idle core, and up to a minute where ten processes want two cores."""
_PYTEST: Final = (
    *("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", "--hypothesis-seed=0"),
    *("-p", "tests.mutation.without_shrinking"),
)
_RECORDED: Final = (
    *("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "--hypothesis-seed=0"),
    *("-p", "tests.mutation.reach_plugin", "-m", "not long and not namespaces and not gpu"),
)
RECORD_LIMIT_S: Final = 7200.0
_NO_TESTS: Final = 5
"""Exit status of pytest where all tests are left out."""


@dataclass(frozen=True)
class Outcome:
    """``by`` names the seed, the test or the time limit that killed; it is empty for a survivor."""

    by: str
    seconds: float
    is_decided: bool = True
    """False where tests fail without a mutant as well, or take nearly as long as the limit."""

    @property
    def killed(self) -> bool:
        return bool(self.by)


@dataclass(frozen=True)
class _Run:
    status: int | None
    """None if the time limit ended it."""
    output: str


class Copy:
    """A checkout of its own, with an environment that every process started there imports it from."""

    def __init__(self, folder: Path, checkout: Path) -> None:
        self.folder = folder / "checkout"
        self.temporary = folder / "t"  # short: a socket's path has 108 bytes
        self.python = self.folder / ".venv/bin/python"
        self._versions = itertools.count(int(time.time()) + 1)  # seconds, later than those of all copied files
        self._sound: dict[tuple[str, ...], bool] = {}
        self._running: subprocess.Popen[bytes] | None = None
        self._is_ended = False
        files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(files, cwd=checkout, capture_output=True, check=True).stdout.decode().split("\0"):
            if name and (checkout / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(checkout / name, self.folder / name)
        self._make_environment(checkout)

    def _make_environment(self, checkout: Path) -> None:
        """Packages come from this environment, but for those of the checkout: processes that pass PYTHONPATH on to
        none of theirs import the copy all the same."""
        command = [sys.executable, "-m", "venv", "--without-pip", str(self.folder / ".venv")]
        subprocess.run(command, check=True, capture_output=True)
        (site,) = (self.folder / ".venv").glob("lib/python*/site-packages")
        (own,) = Path(sys.prefix).glob("lib/python*/site-packages")
        for path in [*own.glob("__editable__*rlinf_async*"), *own.glob("rlinf_async-*.dist-info/*")]:
            if path.is_file():
                (site / path.relative_to(own)).parent.mkdir(exist_ok=True)
                text = path.read_text().replace(str(checkout), str(self.folder))
                (site / path.relative_to(own)).write_text(text)
        (site / "packages.pth").write_text(f"{own}\n")
        for script in (Path(sys.prefix) / "bin").glob("rlinf-*"):
            copied = self.folder / ".venv/bin" / script.name
            copied.write_text(script.read_text().replace(str(checkout), str(self.folder)))
            copied.chmod(0o755)

    def write(self, module: str, source: bytes) -> None:
        """Write a module's text, with a time that no compiled file of an earlier text has."""
        path = self.folder / module
        path.write_bytes(source)
        version = next(self._versions)
        os.utime(path, (version, version))

    def record(self, jobs: int, *tests: str) -> Reach:
        """Run tests, all by default, and return which lines they run."""
        (site,) = (self.folder / ".venv").glob("lib/python*/site-packages")
        shutil.copy(self.folder / "tests/mutation/line_marks.py", site / "rlinf_line_marks.py")
        (site / "line_marks.pth").write_text("import rlinf_line_marks\n")
        side_by_side = ["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else []
        try:
            ran = self.run([*_RECORDED, *side_by_side, *tests], RECORD_LIMIT_S)
        finally:
            (site / "line_marks.pth").unlink()
        print(ran.output.rstrip().rpartition("\n")[2], flush=True)
        return Reach.of(self.folder)

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        source = (self.folder / mutant.module).read_bytes()
        self.write(mutant.module, mutant.apply(source))
        try:
            yield
        finally:
            self.write(mutant.module, source)

    def run(self, arguments: Sequence[str], limit_s: float) -> _Run:
        """Run Python in the copy, and end every process that it has started."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir()
        mark = uuid.uuid4().hex
        environment = {**os.environ, leaks.SESSION_MARK: mark, "TMPDIR": str(self.temporary)}
        environment["RLINF_SIMULATED_SEEDS"] = str(SEEDS)  # more would take a third of the time of all tests
        for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"):
            environment.pop(name, None)
        # A file, not a pipe: processes that outlive pytest would hold it open.
        with open(self.temporary / "output", "w+b") as output:
            started = subprocess.Popen(
                [str(self.python), "-W", "ignore", *arguments],
                cwd=self.folder, env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            status: int | None = None
            self._running = started
            if self._is_ended:  # after the line above: end() has seen the process, or this line sees end()
                started.kill()
            try:
                status = started.wait(limit_s)
            except subprocess.TimeoutExpired:
                pass
            finally:
                self._running = None
                started.kill()
                started.wait()
                _end_marked(mark)
            output.seek(0)
            return _Run(status, output.read().decode(errors="replace"))

    def end(self) -> None:
        """End the process that runs now, and any later one; their outcomes say nothing."""
        self._is_ended = True
        if running := self._running:
            running.kill()

    def is_sound(self, limit_s: float, *tests: str) -> bool:
        """True if the tests pass without a mutant; they run once for all mutants."""
        if tests not in self._sound:
            self._sound[tests] = self.run([*_PYTEST, *tests], limit_s).status == 0
        return self._sound[tests]


def _end_marked(mark: str) -> None:
    for pid in leaks.pids():
        if leaks.environment(pid).get(leaks.SESSION_MARK) == mark:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@contextmanager
def copied(checkout: Path, seeds: int) -> Iterator[Copy]:
    """Make a copy whose seeds fail for nothing without a mutant; delete it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="mut-"))
    try:
        copy = Copy(folder, checkout)
        if seeds and (by := _killed_by_seeds(copy, seeds)):
            raise RuntimeError(f"without a mutant, the seeds fail as well: {by}")
        yield copy
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def judge(copy: Copy, reach: Reach, mutant: Mutant, limit_s: float, seeds: int = SEEDS) -> Outcome:
    """Run the tests that run the line, then the seeds, until one fails; a hang is a kill."""
    began = time.monotonic()
    source = (copy.folder / mutant.module).read_bytes()
    tests = reach.tests(mutant.module, mutant.line, source, limit_s / 3)
    with copy.mutated(mutant):
        ran = copy.run([*_PYTEST, *tests], limit_s) if tests else _Run(0, "")
    by, is_decided = _killed_by_tests(copy, ran, tests, limit_s)
    if not by and seeds:
        with copy.mutated(mutant):
            by = _killed_by_seeds(copy, seeds)
    return Outcome(by, round(time.monotonic() - began, 1), is_decided or bool(by))


def _killed_by_tests(copy: Copy, ran: _Run, tests: Sequence[str], limit_s: float) -> tuple[str, bool]:
    if ran.status is None:
        is_decided = copy.is_sound(limit_s * 2 / 3, *tests)
        return f"limit of {limit_s:g} s" if is_decided else "", is_decided
    if ran.status in (0, _NO_TESTS):
        return "", True
    failed = [
        line.partition(" ")[2].partition(" - ")[0]  # a test's parameters may have spaces
        for line in ran.output.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    if failed and not copy.is_sound(limit_s, failed[0]):
        return "", False
    return failed[0] if failed else "a crash of pytest", True


def _killed_by_seeds(copy: Copy, seeds: int) -> str:
    ran = copy.run(["-m", "tests.simulation", "0", str(seeds), "--first"], SEEDS_LIMIT_S)
    if ran.status is None:
        return "seeds: limit of time"
    found = [line.split()[1].rstrip(":") for line in ran.output.splitlines() if line.startswith("seed ")]
    if found:
        return f"seed {found[0]}"
    return "" if ", 0 failed, " in ran.output else "seeds: a crash"

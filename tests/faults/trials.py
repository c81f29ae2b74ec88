"""Plugin of pytest that runs every test ``--trials`` times, and writes what became of each to ``--trials-file``.

pytest -p tests.faults.trials --trials 20 --trials-file out.jsonl tests/test_failures.py::test_...
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--trials", type=int, default=1)
    parser.addoption("--trials-file", type=Path, default=None)


def pytest_configure(config: pytest.Config) -> None:
    if (path := config.getoption("--trials-file")) is not None:
        config.pluginmanager.register(_Recording(path), "recording of trials")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if (trials := metafunc.config.getoption("--trials")) > 1:
        metafunc.fixturenames.append("trial")
        metafunc.parametrize("trial", range(trials))


class _Recording:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The test itself, and what goes wrong in front of or behind it."""
        if report.when == "call" or not report.passed:
            told = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3)}
            with self._path.open("a") as file:
                file.write(json.dumps(told) + "\n")

"""A plugin of pytest that records which lines of the product each test runs, in all its processes."""

from __future__ import annotations

import os
import pickle
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests._support import leaks
from tests.mutation.line_marks import LineMarks
from tests.mutation.mutants import modules

CHECKOUT = Path(__file__).resolve().parents[2]


def pytest_configure(config: pytest.Config) -> None:
    is_one_of_many = hasattr(config, "workerinput")
    if is_one_of_many:  # the leak check of each must not take the processes of another for its own
        os.environ[leaks.SESSION_MARK] = uuid.uuid4().hex
    if is_one_of_many or config.getoption("dist", "no") == "no":
        config.pluginmanager.register(_Recorder(CHECKOUT / "build"))


class _Recorder:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        name = f"reach-{os.getpid()}"
        lines = {str(CHECKOUT / name): len((CHECKOUT / name).read_bytes().splitlines()) for name in modules(CHECKOUT)}
        self._marks = LineMarks.create(folder / name, lines)
        self._records = folder / f"{name}.pickle"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._marks.begin()
        began = time.monotonic()
        try:
            return (yield)
        finally:
            seconds = round(time.monotonic() - began, 3)
            with open(self._records, "ab") as file:
                pickle.dump((item.nodeid, seconds, zlib.compress(self._marks.read(), 1)), file)

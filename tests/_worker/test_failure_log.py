"""Failure log of a rank: first exception of each kind with traceback, then counts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_async import Cluster
from tests._support.workers import Plain

pytestmark = pytest.mark.shared_cluster


@pytest.fixture
def one(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Any]:
    group = Plain.create_group().launch(cluster, name=request.node.name).wait_ready()
    yield group
    group.close()


def log_once(group: Any, holds: Callable[[str], bool]) -> str:
    """What the rank has written to its stderr, once it is all there."""
    path = Path(group.log_paths[0])
    deadline = time.monotonic() + 10
    while not holds(text := path.read_text()):
        assert time.monotonic() < deadline, text
        os.sched_yield()
    return text


def test_the_first_exception_of_a_line_comes_with_its_traceback_and_then_come_counts(one: Any) -> None:
    for index in range(10):
        with pytest.raises(ValueError, match="number"):
            one.fail([0], f"number {index}").wait()
    text = log_once(one, lambda text: "10 times by now" in text)
    assert "-Rank-0] fail() has raised an exception, which its caller gets:\nTraceback" in text
    assert text.count("Traceback") == 1
    assert "ValueError: number 0" in text
    assert "number 1" not in text
    assert Path(one.log_paths[0]).with_suffix(".out").read_text() == ""


def test_other_lines_and_other_types_have_tracebacks_of_their_own(one: Any) -> None:
    with pytest.raises(ValueError, match="as told"):
        one.fail([0]).wait()
    with pytest.raises(ValueError, match="as told"):
        one.fail_after(0).wait()
    with pytest.raises(ZeroDivisionError):
        one.run("1 / 0").wait()
    log_once(one, lambda text: text.count("Traceback") == 3 and "ZeroDivisionError" in text)


def test_a_cancelled_method_is_no_exception(one: Any) -> None:
    handle = one.sleep(60)
    assert one.noted().wait() == [["sleeping"]]
    handle.cancel()
    one.run("print('the end', file=sys.stderr, flush=True)").wait()
    assert "Traceback" not in log_once(one, lambda text: "the end" in text)

"""The table of what seeds run: its modules and its exceptions exist, and seeds fill it."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("coverage", reason="coverage is not installed: pip install -e '.[test]'")

from tests.simulation.coverage_of_seeds import CHECKOUT, MODULES, UNREACHED, Row, measure, tell


def test_each_exception_is_about_a_line_that_is_there() -> None:
    texts = [(CHECKOUT / module).read_text() for module in MODULES]
    assert [each for each, _ in UNREACHED if not any(re.search(each, text, re.MULTILINE) for text in texts)] == []


@pytest.mark.slow
def test_seeds_fill_the_table() -> None:
    rows = measure(2)
    assert [row.module for row in rows] == list(MODULES)
    assert all(0 < row.lines_run < row.lines for row in rows if row.module.endswith("stream.py"))
    assert tell(rows).splitlines()[-1].startswith("all ")


def test_a_module_below_the_wanted_share_is_marked() -> None:
    assert str(Row("a.py", 10, 10, 10, 8)).endswith("80 % <")
    assert str(Row("a.py", 10, 10, 10, 9)).endswith("90 %")

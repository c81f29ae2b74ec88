"""The fault matrix and its page say the same, and speak of tests that there are."""

from __future__ import annotations

import ast

import pytest

from tests.faults import matrix
from tests.faults.rows import ROWS, Row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_every_test_of_a_row_exists(row: Row) -> None:
    assert row.tests
    for test in row.tests:
        file, _, name = test.partition("::")
        module = ast.parse((matrix.ROOT / file).read_text())
        functions = {node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name.partition("[")[0] in functions, test


def test_a_row_stands_there_once() -> None:
    keys = [row.key for row in ROWS]
    assert sorted(set(keys)) == sorted(keys)


def test_the_page_is_that_of_the_rows_and_records() -> None:
    fix = "python -m tests.faults.matrix --page"
    assert matrix.PAGE.read_text() == matrix.page(matrix.read_records()), fix

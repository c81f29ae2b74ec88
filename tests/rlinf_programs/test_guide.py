"""The porting guide's column of RLinf, held to the installed RLinf's sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.rlinf_programs.test_programs import PYTHON
from tests.test_porting_guide import ROWS, Parameter, Row, read_parameters

pytestmark = [
    pytest.mark.rlinf,
    pytest.mark.skipif(not PYTHON.exists(), reason="RLinf is not installed: `make rlinf-env`"),
]

NEWER = {"Worker.acquire_free_port", "Worker.worker_timer", "Worker.timer", "Cluster.find_free_port"}
"""Calls that have a parameter more in RLinf 0.4, which the guide tells of."""
CONSTANTS = {"DEFAULT_KEY": "default_queue", "NodeGroupInfo": SimpleNamespace(DEFAULT_GROUP_LABEL="cluster")}
QUOTED = [row for row in ROWS if row.parameters is not None and row.name not in NEWER]


def sources() -> Iterator[Path]:
    (package,) = PYTHON.parents[1].glob("lib/python3.*/site-packages/rlinf")
    yield from package.glob("scheduler/**/*.py")
    yield from package.glob("hybrid_engines/weight_syncer/*.py")
    yield from package.glob("utils/placement.py")


def signatures() -> dict[str, list[list[Parameter]]]:
    """Parameters by name, ``Class.method`` for methods and ``Class`` for constructors, without ``self``."""
    found: dict[str, list[list[Parameter]]] = {}
    for path in sources():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, []).append(parameters_of(node, bound=False))
            elif isinstance(node, ast.ClassDef):
                for part in node.body:
                    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                        static = any(ast.unparse(each) == "staticmethod" for each in part.decorator_list)
                        name = node.name if part.name == "__init__" else f"{node.name}.{part.name}"
                        found.setdefault(name, []).append(parameters_of(part, bound=not static))
    return found


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef, *, bound: bool) -> list[Parameter]:
    arguments = ast.unparse(node.args)
    found = read_parameters(f"({arguments})")
    return [Parameter(each.name, each.kind, plain(each.default)) for each in found[bound:]]


def plain(default: str | None) -> str | None:
    """A default as the guide writes it: a plain value, or ``...``."""
    if default is None:
        return None
    try:
        value = eval(default, {**CONSTANTS, "__builtins__": {}})
    except (NameError, AttributeError, TypeError):
        return "..."
    return repr(value) if type(value) in (str, int, float, bool, tuple, type(None)) else "..."


@pytest.fixture(scope="module")
def theirs() -> dict[str, list[list[Parameter]]]:
    return signatures()


@pytest.mark.parametrize("row", QUOTED, ids=[row.name for row in QUOTED])
def test_the_guide_quotes_rlinf(row: Row, theirs: dict[str, list[list[Parameter]]]) -> None:
    if row.name not in theirs:
        pytest.skip("a name of RLinf 0.4, a dataclass, or a method that a base class has")
    quoted = [Parameter(each.name, each.kind, plain(each.default)) for each in read_parameters(row.parameters or "()")]
    assert quoted in theirs[row.name]

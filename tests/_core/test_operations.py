"""The table of a daemon's operations: parsing of requests, a handler for each."""

from __future__ import annotations

import asyncio
import inspect
import re
import typing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from rlinf_async._core import frames, operations
from rlinf_async._core.operations import OPERATIONS, Operation, WaitingOperation, read
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.node import Node
from rlinf_launcher.daemon.router import Router
from rlinf_launcher.daemon.service import DaemonService
from rlinf_launcher.daemon.worker_groups import Site

ANY: list[Any] = [5, "text", b"bytes", True, 1.5, None, [], [1], ["a"], [[1]], {}, {"a": 1}]
"""Of each type that a field may have, as msgpack brings it."""


def answer_of(kind: type[Operation[Any]]) -> Any:
    (base,) = kind.__orig_bases__  # type: ignore[attr-defined]
    return typing.get_args(base)[0]


def text_of(answer: Any) -> str:
    return inspect.formatannotation(answer).replace("typing.", "").replace("NoneType", "None")


def fields_of(kind: type[Operation[Any]]) -> dict[str, Any]:
    """Values that fit."""
    return {field: next(value for value in ANY if fits(value)) for field, fits in kind.checks.items()}


def test_the_docstrings_table_is_the_operations() -> None:
    table = {}
    name = ""
    for line in (operations.__doc__ or "").partition("asked by, for\n")[2].splitlines():
        if line.strip() and not line.startswith("    --"):
            name = line[4:24].strip() or name
            fields, answer, asker = table.get(name, ([], "", ""))
            table[name] = ([*fields, *line[24:68].split()], answer + line[68:84].strip(), asker + line[84:].strip())
    assert all(asker for *_, asker in table.values())
    assert {name: (fields, answer) for name, (fields, answer, _) in table.items()} == {
        name + " *" * issubclass(kind, WaitingOperation): (list(kind.checks), text_of(answer_of(kind)))
        for name, kind in OPERATIONS.items()
    }


@pytest.mark.parametrize("kind", OPERATIONS.values(), ids=OPERATIONS)
def test_an_operation_arrives_as_it_was_made(kind: type[Operation[Any]]) -> None:
    made = kind(**fields_of(kind))
    assert made == kind(*fields_of(kind).values())
    assert read(type(made).__name__, frames.unpack(frames.pack(vars(made)))) == made


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind in OPERATIONS.values() for field in kind.checks])
def test_a_bad_field_is_named_with_its_operation(kind: type[Operation[Any]], field: str) -> None:
    name, fields = kind.__name__, fields_of(kind)
    with pytest.raises(ValueError, match=f"^{name}: there is no field 'more'; its fields are: .*{field}"):
        read(name, {**fields, "more": 1})
    with pytest.raises(ValueError, match=f"^{name}: field '{field}' is missing$"):
        read(name, {other: value for other, value in fields.items() if other != field})
    wanted = re.escape(inspect.formatannotation(inspect.get_annotations(kind)[field]))
    wrong = object()
    if wanted != "Any":
        with pytest.raises(ValueError, match=f"^{name}: field '{field}' must be {wanted}, got <object"):
            read(name, {**fields, field: wrong})


@pytest.mark.parametrize(
    ("field", "value"),
    [("rank", True), ("rank", "1"), ("rank", 1.0), ("size", None), ("name", b"a"), ("entry", [])],
    ids=repr,
)
def test_types_are_meant_exactly(field: str, value: Any) -> None:
    good = {"name": "a", "rank": 0, "size": 1, "entry": {}}
    read("JoinGroup", good)
    with pytest.raises(ValueError, match=f"JoinGroup: field '{field}' must be"):
        read("JoinGroup", {**good, field: value})


def test_lists_are_checked_to_their_items_and_a_float_may_be_an_integer() -> None:
    read("Watch", {"numbers": [1, 2]})
    with pytest.raises(ValueError, match=r"Watch: field 'numbers' must be list\[int\], got \[1, 'x'\]"):
        read("Watch", {"numbers": [1, "x"]})
    assert read("CloseGroup", {"group": "a", "number": 1, "grace": 3}) == operations.CloseGroup("a", 1, 3)


@pytest.mark.parametrize("fields", [None, [], ["a", 0], "Find"], ids=repr)
def test_fields_come_as_a_map(fields: Any) -> None:
    with pytest.raises(ValueError, match="Find: its fields must come as a map, got "):
        read("Find", fields)


@pytest.mark.parametrize("name", ["nonsense", "", "WaitingOperation", "Operation", "read", "__init__"])
def test_an_operation_that_is_none_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"a daemon knows no operation '{name}'"):
        read(name, {})


def test_an_operation_does_not_change() -> None:
    operation: Any = operations.FreePort()
    with pytest.raises(AttributeError, match=r"FreePort\(\) is frozen"):
        operation.field = 1


async def test_a_daemon_has_a_handler_for_each_that_takes_it_and_gives_its_answer(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    site = Site("cafecafe", 0, "here", "127.0.0.1", tmp_path, {}, 4)
    templates: Any = None
    router = Router(loop, 0, lambda *_: None)
    handlers = DaemonService(loop, site, templates, router, lambda group: None).handlers
    handlers.register(operations.EndRun, Node._end_run.__get__(Mock()))  # the one that ends the daemon itself
    assert handlers.table.keys() == set(OPERATIONS.values())
    for kind, handler in handlers.table.items():
        hints = typing.get_type_hints(handler)
        answer = hints.pop("return")
        assert list(hints.values()) == [Requester, kind]
        assert answer in (Any, answer_of(kind), type(answer_of(kind))), kind

"""The porting guide: every name of RLinf's, held against the code."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import rlinf_async.rlinf
from tests._support.rlinf_names import EXPORTS, MEMBERS, SYNCERS

CHECKOUT = Path(__file__).resolve().parents[1]
GUIDE = CHECKOUT / "docs" / "porting-from-rlinf.md"
WORDS = {"same", "more", "position", "name", "other", "none"}
KINDS = {"class", "function", "method", "on class", "property", "attribute", "variable", "key"}


class Row(NamedTuple):
    """One line of the tables: what it was, how it relates, what it is here."""

    theirs: str
    word: str
    ours: str
    kind: str
    note: str

    @property
    def name(self) -> str:
        return self.theirs.partition("(")[0]

    @property
    def path(self) -> str:
        return self.ours.partition("(")[0]

    @property
    def parameters(self) -> str | None:
        """RLinf's, where the guide gives them."""
        return self.theirs.removeprefix(self.name) or None


class Parameter(NamedTuple):
    name: str
    kind: str
    default: str | None


def read_table(head: str) -> list[list[str]]:
    """The cells of every line below each table head that reads like this one."""
    rows, inside = [], False
    for line in GUIDE.read_text().splitlines():
        if not line.startswith("|"):
            inside = False
        elif line == head:
            inside = True
        elif inside and not line.startswith("|--"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


ROWS = [
    Row(theirs.strip("`"), word, ours.strip("`"), kind, note)
    for theirs, word, ours, kind, note in read_table("| RLinf | is | here | kind | note |")
]
THERE = [row for row in ROWS if row.word != "none"]
DIFFERENCES = read_table("| what | RLinf | here | test |")


def by_name(rows: Sequence[Row]) -> Any:
    return pytest.mark.parametrize("row", rows, ids=[row.theirs.partition("(")[0] for row in rows])


def walk(path: str) -> tuple[Any, Any]:
    """What is at a dotted path, and what it is an attribute of."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            owner, found = None, importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            owner, found = found, getattr(found, part)
        return owner, found
    raise ModuleNotFoundError(path)


def read_parameters(text: str) -> list[Parameter]:
    """Of ``(a, b=1, *, c=None)``, defaults as they are written."""
    function = ast.parse(f"def f{text}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    before: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
    found = [
        Parameter(argument.arg, "positional", default and ast.unparse(default))
        for argument, default in zip(arguments.args, [*before, *arguments.defaults], strict=True)
    ]
    if arguments.vararg:
        found.append(Parameter(arguments.vararg.arg, "*", None))
    found += [
        Parameter(argument.arg, "keyword", default and ast.unparse(default))
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        found.append(Parameter(arguments.kwarg.arg, "**", None))
    return found


def inspect_parameters(function: Any, *, bound: bool) -> list[Parameter]:
    """Those that it really has, without ``self`` where it is a method."""
    marks = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.KEYWORD_ONLY: "keyword",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    found = [
        Parameter(each.name, marks.get(each.kind, "positional"), spell(each.default))
        for each in inspect.signature(function).parameters.values()
    ]
    return found[1:] if bound else found


def spell(default: Any) -> str | None:
    if default is inspect.Parameter.empty:
        return None
    plain = type(default) in (str, int, float, bool, tuple, type(None))
    return ast.unparse(ast.parse(repr(default), mode="eval")) if plain else "..."


def relate(theirs: list[Parameter], ours: list[Parameter]) -> str:
    """The word of the guide for these two."""
    if [each for each in theirs if each.kind != "keyword"] == [each for each in ours if each.kind != "keyword"] and (
        set(theirs) == set(ours)
    ):
        return "same"  # the order of what is given by name is of no account
    if takes_calls(theirs, ours, by_keyword=True):
        return "more"
    return "position" if takes_calls(theirs, ours, by_keyword=False) else "other"


def takes_calls(theirs: list[Parameter], ours: list[Parameter], *, by_keyword: bool) -> bool:
    """Whether every call that fits RLinf's parameters fits ours and means the same."""
    first = [each for each in theirs if each.kind == "positional"]
    own = [each for each in ours if each.kind == "positional"]
    others = [each for each in theirs if each.kind != "positional"]
    if len(own) < len(first) or not all(is_taken(each, ours) for each in others):
        return False
    for their, our in zip(first, own, strict=False):
        if (by_keyword and their.name != our.name) or their.default not in (None, our.default):
            return False
    known = {their[:2] for their in others}
    further = own[len(first) :] + [each for each in ours if each.kind == "keyword" and each[:2] not in known]
    return all(each.default is not None for each in further)


def is_taken(their: Parameter, ours: list[Parameter]) -> bool:
    """Whether ours have it, with its default where it may be left out."""
    return any(our[:2] == their[:2] and their.default in (None, our.default) for our in ours)


def sets_itself(owner: type, name: str) -> bool:
    """Whether instances have the attribute: a field, an annotation, or ``self.name = ...`` in one of its classes."""
    if hasattr(owner, name) or name in getattr(owner, "__dataclass_fields__", ()):
        return True
    return any(name in own_attributes(each) for each in owner.__mro__ if each.__module__.startswith("rlinf_async"))


@functools.cache
def own_attributes(owner: type) -> frozenset[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    return frozenset(
        [
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ]
        + [
            node.target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ]
    )


@functools.cache
def words_of_the_package() -> frozenset[str]:
    """Every text in its code that is a name, and every field of a dataclass."""
    return frozenset(
        word for file in (CHECKOUT / "rlinf_async").rglob("*.py") for word in words_of(ast.parse(file.read_text()))
    )


def words_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_every_line_can_be_read() -> None:
    assert len(ROWS) > 250
    assert len(DIFFERENCES) > 40
    for row in ROWS:
        assert row.word in WORDS, row
        assert (row.word == "none") == (not row.ours and not row.kind), row
        assert row.word == "none" or row.kind in KINDS, row
        assert row.note or row.word not in ("none", "other", "position"), f"{row.theirs} has no reason"


@pytest.mark.parametrize("name", EXPORTS.split())
def test_what_rlinf_exports_is_exported_here(name: str) -> None:
    rows = [row for row in ROWS if row.name == name]
    assert rows, f"the guide does not tell of {name}"
    row = rows[0]
    if row.word == "none":
        assert not hasattr(rlinf_async, name)
        assert name == "ChannelWorker"
    else:
        home = rlinf_async if name in rlinf_async.__all__ else rlinf_async.rlinf
        assert row.path == f"{home.__name__}.{name}"
        assert name in home.__all__
        assert getattr(rlinf_async, name) is getattr(home, name)


@pytest.mark.parametrize("name", SYNCERS.split())
def test_what_users_of_rlinfs_syncers_import_is_exported_here(name: str) -> None:
    assert f"rlinf_async.rlinf.{name}" in {row.path for row in ROWS if row.name == name}
    assert name in rlinf_async.rlinf.__all__


@pytest.mark.parametrize("name", rlinf_async.rlinf.__all__)
def test_what_is_rlinfs_alone_is_in_the_guide(name: str) -> None:
    assert f"`{name}" in GUIDE.read_text()


@by_name(THERE)
def test_what_is_there_is_as_the_guide_says(row: Row) -> None:
    if row.kind in ("variable", "key"):
        assert row.theirs in words_of_the_package()
        return
    if row.kind == "attribute":
        assert sets_itself(walk(row.path.rpartition(".")[0])[1], row.path.rpartition(".")[2])
        return
    owner, found = walk(row.path)
    kept = inspect.getattr_static(owner, row.path.rpartition(".")[2])
    if row.kind == "property":
        assert isinstance(kept, property | functools.cached_property)
        return
    if row.kind == "class":
        assert inspect.isclass(found)
        return
    if row.kind == "method":
        assert inspect.isfunction(kept)
    elif row.kind == "on class":
        assert inspect.isclass(found) or isinstance(kept, staticmethod | classmethod)
    else:
        assert inspect.isfunction(found)
        assert not inspect.isclass(owner)
    ours = read_parameters(row.ours.removeprefix(row.path))
    assert inspect_parameters(found, bound=row.kind == "method") == ours
    if row.parameters is not None:
        assert relate(read_parameters(row.parameters), ours) == row.word
    else:
        assert row.word in ("name", "other")


@by_name([row for row in ROWS if row.word == "none"])
def test_what_is_not_there_is_not_there(row: Row) -> None:
    try:
        walk(f"rlinf_async.{row.name}")
    except (ModuleNotFoundError, AttributeError):
        return
    pytest.fail(f"{row.name} is there, and the guide says that it is not")


@pytest.mark.parametrize("owner", MEMBERS)
def test_every_name_of_rlinfs_is_in_the_guide(owner: str) -> None:
    told = {row.name for row in ROWS}
    wanted = {f"{owner}.{name}" if owner else name for name in MEMBERS[owner].split()}
    assert not wanted - told


def test_every_difference_has_a_test_that_exists() -> None:
    for what, _, _, test in DIFFERENCES:
        path, _, name = test.strip("`").partition("::")
        file = CHECKOUT / path
        assert file.is_file(), f"{what}: {path} is not there"
        functions = [node.name for node in ast.parse(file.read_text()).body if hasattr(node, "name")]
        assert re.fullmatch(r"test_\w+", name), f"{what}: {test} names no test"
        assert name in functions, f"{what}: {path} has no {name}"


def test_every_file_that_the_guide_names_is_there() -> None:
    for path in re.findall(r"`((?:tests|docs|launcher|rlinf_async|benches)/[\w/.-]+?)(?:::\w+)?`", GUIDE.read_text()):
        assert (CHECKOUT / path).exists(), path


@pytest.mark.parametrize(
    ("theirs", "ours", "word"),
    [
        ("(a, b=1)", "(a, b=1)", "same"),
        ("(a, b=1)", "(a, b=1, *, c=2)", "more"),
        ("(a, b)", "(a, b=1)", "more"),
        ("(a, *, b=1)", "(a, *, b=1, c=None)", "more"),
        ("(a, b=1)", "(x, b=1)", "position"),
        ("(a, b=1)", "(b=1, a=2)", "other"),
        ("(a, b=1)", "(a, b=2)", "other"),
        ("(a)", "(a, b)", "other"),
        ("(a, b)", "(a)", "other"),
        ("(a, *, b=1)", "(a, *, c=1)", "other"),
        ("(*ranks)", "(ranks)", "other"),
    ],
)
def test_a_relation_is_told_from_the_others(theirs: str, ours: str, word: str) -> None:
    assert relate(read_parameters(theirs), read_parameters(ours)) == word


def test_a_field_of_a_dataclass_and_an_attribute_are_found_and_others_are_not() -> None:
    @dataclasses.dataclass
    class Given:
        field: int

    assert sets_itself(Given, "field")
    assert not sets_itself(Given, "other")
    assert sets_itself(rlinf_async.Worker, "_rank")
    assert not sets_itself(rlinf_async.Worker, "_manager_proxy")

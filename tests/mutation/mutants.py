"""Mutants of a module: small defects, each in one place, found by ``ast`` and written into the text."""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGES: Final = (
    *("rlinf_async/_core", "rlinf_async/_client", "rlinf_async/_messaging", "rlinf_async/_group"),
    *("rlinf_async/_cluster", "rlinf_async/_wire", "launcher/daemon"),
    *("rlinf_async/_channels/state", "rlinf_async/_experience/state", "rlinf_async/_inspection/state"),
    *("rlinf_async/_recorder/state", "rlinf_async/_trace/state"),
    *("rlinf_async/weights/state", "rlinf_async/weights/plane", "rlinf_async/weights/waiting"),
    *("rlinf_async/engines/generation.py", "rlinf_async/engines/token_progress.py"),
)

_COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: (r"<", "<="),
    ast.LtE: (r"<=", "<"),
    ast.Gt: (r">", ">="),
    ast.GtE: (r">=", ">"),
    ast.Eq: (r"==", "!="),
    ast.NotEq: (r"!=", "=="),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
}
_LARGEST_STEP: Final = 2
"""Larger numbers are sizes and durations: one more or less of them breaks no promise."""
_LOG_METHODS: Final = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_TEXT_FUNCTIONS: Final = frozenset({"__repr__", "__str__", "__rich__"})
_DANGEROUS: Final = frozenset({"end_scripts"})
"""Functions that choose among all processes of the machine which ones to kill: a mutant would kill the others."""
_COMMENT: Final = re.compile(r"  # .*")
_FLAGS_OF_CLASSES: Final = frozenset({"repr", "slots", "frozen", "kw_only", "eq", "compare"})


@dataclass(frozen=True)
class Mutant:
    """One defect: bytes ``start`` to ``end`` of a module's text become ``text``."""

    module: str
    source: str
    """Digest of the module's code as it was when the mutant was made."""
    key: str
    line: int
    operator: str
    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def shown(self, source: bytes) -> tuple[str, str]:
        """Return the first mutated line before and after."""
        first = source.rfind(b"\n", 0, self.start) + 1
        before = source[first:].split(b"\n", 1)[0]
        after = self.apply(source)[first:].split(b"\n", 1)[0]
        return before.decode().strip(), after.decode().strip()


@dataclass(frozen=True)
class _Place:
    operator: str
    line: int
    start: int
    end: int
    text: str
    scope: str


class _Finder:
    """Places in one module where a mutant differs in what the program does."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def begin(self, node: ast.expr | ast.stmt) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr | ast.stmt) -> str:
        return self.source[self.begin(node) : self.end(node)].decode()

    def visit(self, node: ast.AST, scope: tuple[str, ...]) -> Iterator[_Place]:
        if _changes_nothing(node) or (isinstance(node, ast.FunctionDef) and node.name in _DANGEROUS):
            return
        if isinstance(node, ast.stmt | ast.expr):
            for operator, start, end, text in self.mutate(node, scope):
                yield _Place(operator, node.lineno, start, end, text, ".".join(scope))
        inner = (
            (*scope, node.name) if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else scope
        )
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list", "bases", "type_params"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from self.visit(child, inner)

    def mutate(self, node: ast.stmt | ast.expr, scope: Sequence[str]) -> Iterator[tuple[str, int, int, str]]:
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                for left, right, operator in zip(sides, sides[1:], node.ops, strict=False):
                    yield from self.between("compare", left, right, *_COMPARISONS[type(operator)])
            case ast.BoolOp():
                old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from self.between("and/or", left, right, rf"\b{old}\b", new)
            case ast.UnaryOp(op=ast.Not()):
                yield "not", self.begin(node), self.begin(node) + len("not"), ""
            case ast.Constant(value=bool()):
                yield "constant", self.begin(node), self.end(node), str(not node.value)
            case ast.Constant(value=int(number)) if number <= _LARGEST_STEP:
                for other in {number + 1, max(number - 1, 0)} - {number}:
                    yield "constant", self.begin(node), self.end(node), str(other)
            case ast.BinOp(op=ast.Add() | ast.Sub()) if not (_is_text(node.left) or _is_text(node.right)):
                old, new = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
                yield from self.between("arithmetic", node.left, node.right, re.escape(old), new)
                if old == "-":
                    swapped = f"({self.text(node.right)}) - ({self.text(node.left)})"
                    yield "arithmetic", self.begin(node), self.end(node), swapped
            case ast.Call(func=ast.Name(id="min" | "max" as name)):
                yield "min/max", self.begin(node.func), self.end(node.func), "max" if name == "min" else "min"
            case ast.If() | ast.While() | ast.IfExp() if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
                yield "condition", self.begin(node.test), self.end(node.test), f"(not {self.text(node.test)})"
            case ast.Return(value=ast.expr() as value) if not isinstance(
                value, ast.Constant | ast.Compare | ast.BoolOp | ast.UnaryOp
            ):
                yield "return", self.begin(value), self.end(value), "None"
            case ast.Break() | ast.Continue():
                yield "loop", self.begin(node), self.end(node), "continue" if isinstance(node, ast.Break) else "break"
            case ast.AugAssign(op=ast.Add() | ast.Sub()):
                old, new = ("+=", "-=") if isinstance(node.op, ast.Add) else ("-=", "+=")
                yield from self.between("arithmetic", node.target, node.value, re.escape(old), new)
                yield "drop", self.begin(node), self.end(node), "pass"
            case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())) | ast.Delete():
                yield "drop", self.begin(node), self.end(node), "pass"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) if scope and scope[-1] != "__init__":
                yield "drop", self.begin(node), self.end(node), "pass"

    def between(
        self, operator: str, left: ast.expr, right: ast.expr, old: str, new: str
    ) -> Iterator[tuple[str, int, int, str]]:
        start = self.end(left)
        found = re.search(old, self.source[start : self.begin(right)].decode())
        if found:
            yield (
                operator,
                start + len(found.string[: found.start()].encode()),
                start + len(found.string[: found.end()].encode()),
                new,
            )


def _is_text(node: ast.expr) -> bool:
    """True if swapping + there raises at once, which any test finds."""
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _changes_nothing(node: ast.AST) -> bool:
    """True if mutants below the node change texts, types and sizes only: equivalent by construction."""
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr))):
            return "log" in name.lower() and attr in _LOG_METHODS
        case ast.BinOp(op=ast.LShift()):  # sizes
            return True
        case ast.FunctionDef(name=name, decorator_list=decorators):
            return name in _TEXT_FUNCTIONS or any(ast.unparse(each).endswith("overload") for each in decorators)
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return True
        case ast.ClassDef(bases=bases):
            return any(ast.unparse(base).split("[")[0].endswith(("Protocol", "Enum")) for base in bases)
        case ast.keyword(arg=str(arg)):
            return arg in _FLAGS_OF_CLASSES
    return False


def digest(source: bytes) -> str:
    """Return a digest that changes with the code, not with comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12]


@functools.cache
def mutants_of(module: str, source: bytes) -> tuple[Mutant, ...]:
    """Return the mutants of a module's text.

    A key names the scope and the texts, not the line: it outlives changes elsewhere in the module.
    """
    found: list[Mutant] = []
    seen: Counter[str] = Counter()
    version, lines = digest(source), source.decode().split("\n")
    for place in _Finder(source).visit(ast.parse(source), ()):
        before = source[place.start : place.end].decode()
        line = _COMMENT.sub("", lines[place.line - 1]).strip()
        name = "\0".join((module, place.scope, place.operator, line, before, place.text))
        seen[name] += 1
        key = hashlib.sha256(f"{name}\0{seen[name]}".encode()).hexdigest()[:8]
        number = source.count(b"\n", 0, place.start) + 1
        found.append(Mutant(module, version, key, number, place.operator, place.start, place.end, place.text))
    return tuple(found)


def modules(checkout: Path, only: str = "") -> list[str]:
    """Return the modules of ``PACKAGES`` whose paths contain ``only``."""
    roots = [checkout / package for package in PACKAGES]
    paths = (path for root in roots for path in ([root] if root.is_file() else sorted(root.rglob("*.py"))))
    return [name for path in paths if only in (name := path.relative_to(checkout).as_posix())]


def draw(checkout: Path, count: int, seed: int, only: str = "") -> tuple[list[Mutant], int]:
    """Return ``count`` mutants, each module's share by its size, and the number that they were drawn from.

    A larger draw of the same seed begins with the smaller one.
    """

    def number(*parts: object) -> float:
        return int(hashlib.sha256(repr((seed, *parts)).encode()).hexdigest()[:12], 16) / 16**12

    placed: list[tuple[float, str, Mutant]] = []
    for module in modules(checkout, only):
        found = sorted(mutants_of(module, (checkout / module).read_bytes()), key=lambda mutant: number(mutant.key))
        offset = number(module)
        placed += [((rank + offset) / len(found), mutant.key, mutant) for rank, mutant in enumerate(found)]
    placed.sort(key=lambda each: each[:2])
    return [mutant for _, _, mutant in placed[:count]], len(placed)

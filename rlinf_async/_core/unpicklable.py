"""Search for the part of a value that cannot be pickled, for a ``SerializationError`` that names the path to it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import time
import types
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final

from rlinf_async.errors import SerializationError

if TYPE_CHECKING:
    import pickle

# Types whose values can always be sent and contain no other objects.
ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes})

_SEARCH_TIMEOUT_S: Final = 1.0
_SEARCH_DEPTH: Final = 100


@dataclasses.dataclass(frozen=True)
class Guilty:
    """The part of a value that cannot be pickled.

    Attributes:
        holders: the objects that contain the part, innermost first, each with the step from it towards the part.
    """

    path: str
    part: Any
    holders: list[tuple[Any, str]]


def find_guilty(value: Any, root: str | tuple[str, ...], new_pickler: Callable[[], pickle.Pickler]) -> Guilty:
    """Find the part that cannot be pickled; ``new_pickler`` creates a pickler like the one that failed."""
    search = _Search(new_pickler)
    children = _children(value) if isinstance(root, str) else zip(root, value, strict=False)
    path, part = search.find(value, root if isinstance(root, str) else "", children) or ("", value)
    return Guilty(path, part, search.holders)


def nested_too_deeply(describe: str, root: str | tuple[str, ...], error: BaseException) -> SerializationError | None:
    """Return the error for a value that is nested too deeply; None if pickling failed for another reason."""
    if not isinstance(error, RecursionError) and not isinstance(error.__cause__, RecursionError):
        return None
    return SerializationError(
        f"{describe} cannot travel: {_name_of(root)} is nested too deeply to be pickled "
        f"(the recursion limit is {sys.getrecursionlimit()})"
    )


def cannot_travel(
    describe: str, root: str | tuple[str, ...], error: BaseException, guilty: Guilty, fix: str = ""
) -> SerializationError:
    """Return the error that says which part cannot be pickled, where it is, and how to fix it (``fix``)."""
    path, kind = guilty.path or _name_of(root), _name(type(guilty.part))
    if isinstance(guilty.part, Coroutine):
        fix = "`await` it, and its result travels"
    return SerializationError(
        f"{describe} cannot travel: {path} is of type {kind} and cannot be pickled ({summary(error)}); "
        f"{fix or 'leave it out, or give the object that holds it a __getstate__ that does'}"
    )


def _name_of(root: str | tuple[str, ...]) -> str:
    return root if isinstance(root, str) else " or ".join(root)


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def summary(error: BaseException) -> str:
    """Return the type and text of an error, at most 1000 characters long, even if its own methods fail."""
    try:
        return f"{_name(type(error))}: {str(error)[:1000]}"
    except Exception:
        return _name(type(error))


class _Search:
    """Search for the guilty part of a value: a part that fails although everything in it can be pickled.

    Objects may refer to each other in cycles. A part that fails only because it contains an object that is already
    suspected is innocent, and the search continues with its siblings.
    """

    def __init__(self, new_pickler: Callable[[], pickle.Pickler]) -> None:
        self._new_pickler = new_pickler
        self._deadline = time.monotonic() + _SEARCH_TIMEOUT_S
        self._suspects: dict[int, Any] = {}  # keeps the objects alive, so that their ids stay unique
        self.holders: list[tuple[Any, str]] = []

    def find(
        self, suspect: Any, path: str, children: Iterator[tuple[str, Any]], depth: int = 0
    ) -> tuple[str, Any] | None:
        """Return the path and object of the guilty part; None if every path leads to another suspect."""
        self._suspects[id(suspect)] = suspect
        innocent = False
        # Use one pickler for all children, because it remembers the objects that it has already pickled.
        pickler = self._new_pickler()
        with contextlib.suppress(Exception):  # the repr() of a key may fail, for example
            for step, child in children:
                if type(child) in ATOMS:
                    continue
                if id(child) in self._suspects:
                    innocent = True
                    continue
                if depth == _SEARCH_DEPTH or time.monotonic() > self._deadline:
                    return path, suspect
                try:
                    pickler.dump(child)
                    continue
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException:
                    pickler = self._new_pickler()  # the failed pickler also remembers objects that it could not pickle
                found = self.find(child, path + step, _children(child), depth + 1)
                if found is not None:
                    self.holders.append((suspect, step))
                    return found
                innocent = True
        return None if innocent else (path, suspect)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in list(dict.items(value)):
            yield f" key {_short(key)}", key
            yield f"[{_short(key)}]", item
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((f" element {_short(item)}", item) for item in value)
    if type(value) in (dict, list, tuple, set, frozenset):
        return
    if isinstance(value, types.FunctionType):
        yield from _function_children(value)
    elif isinstance(value, type):
        for name, item in vars(value).items():
            yield f".{name}", item.__func__ if isinstance(item, staticmethod | classmethod) else item
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif hasattr(value, "cache_parameters"):  # a function wrapped by functools.lru_cache
        yield ".__wrapped__", value.__wrapped__
    else:
        yield from _object_children(value)


def _function_children(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for index, cell in enumerate(function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # the cell is empty
            yield f".__closure__[{index}].cell_contents", cell.cell_contents
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__
    yield ".__dict__", function.__dict__
    codes = [function.__code__]
    for code in codes:
        codes.extend(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
        for name in code.co_names:
            if name in function.__globals__:
                yield f".__globals__[{name!r}]", function.__globals__[name]


def _object_children(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        reduced: Any = value.__reduce_ex__(5)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return
    if not isinstance(reduced, tuple):
        return
    attributes: dict[str, Any] = {}
    parts: list[Any] = [*reduced, None, None, None]
    _, arguments, state, items, pairs = parts[:5]
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):  # the class has __slots__
        attributes = {**(state[0] or {}), **state[1]}
    elif isinstance(state, list) and dataclasses.is_dataclass(value):
        attributes = dict(zip((field.name for field in dataclasses.fields(value)), state, strict=False))
    elif isinstance(state, dict):
        attributes = state
    else:
        yield ".__getstate__()", state
    yield from ((f".{name}", item) for name, item in attributes.items())
    for index, argument in enumerate(arguments):
        if argument is type(value):
            yield ".__class__", argument
        elif isinstance(value, BaseException):
            yield f".args[{index}]", argument
        else:
            yield f".__reduce_ex__(5)[1][{index}]", argument
    yield from ((f"[{index}]", item) for index, item in enumerate(items or ()))
    yield from ((f"[{_short(key)}]", item) for key, item in pairs or ())


def _short(key: Any) -> str:
    try:
        text = repr(key)
    except Exception:
        text = f"<{_name(type(key))}>"
    return text if len(text) <= 80 else text[:77] + "..."

"""Lazy public names: executes a module's imports under ``if TYPE_CHECKING`` when a name is first used.

These imports are the module's only table of public names. Type checkers and editors read the table as ordinary imports,
and this module derives ``__getattr__``, ``__dir__`` and ``__all__`` from it. Each name is imported as ``from its.module
import Name as Name``; names from ``from another.table import *`` are found, too, but not listed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


@functools.cache
def read_table(module: str) -> tuple[dict[str, str], list[str]]:
    """Return a dict that maps a module's public names to their defining modules, and a list of the tables it includes.

    The module's compiled code is executed again with ``TYPE_CHECKING`` true and an ``__import__`` that only records
    imports, so no source file is needed. The table begins after the import of ``lazy_names``.
    """
    homes: dict[str, str] = {}
    others: list[str] = []

    def note(name: str, scope: Any, _: Any, names: tuple[str, ...], __: int) -> SimpleNamespace:
        if names == ("*",):
            others.append(name)
        elif lazy_names.__name__ in scope:
            homes.update(dict.fromkeys(names, name))
        return SimpleNamespace(**dict.fromkeys(names, True), __all__=())

    loader: Any = getattr(importlib.util.find_spec(module), "loader", None)
    exec(loader.get_code(module), {"__builtins__": {"__import__": note}, "__name__": module})
    return homes, others


def lazy_names(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a module's ``__getattr__`` and ``__dir__``, derived from its table."""

    def get(name: str) -> Any:
        homes, others = read_table(module)
        if name == "__all__":
            return sorted(homes)
        home = homes.get(name) or next((other for other in others if name in read_table(other)[0]), None)
        found = getattr(importlib.import_module(home), name) if home else _submodule(module, name)
        setattr(sys.modules[module], name, found)
        return found

    def show() -> list[str]:
        return [name for name in vars(sys.modules[module]) if name.startswith("__")] + sorted(read_table(module)[0])

    return get, show


def _submodule(package: str, name: str) -> Any:
    path = f"{package}.{name}"
    try:
        if name.isidentifier() and not name.startswith("__"):  # importing a submodule looks up such names, too
            return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
    raise AttributeError(f"module {package!r} has no attribute {name!r}")

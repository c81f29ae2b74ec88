"""Builds a worker's ``__main__`` with the driver script's path and classes, for pickling and spawned children.

Classes of the driver's script travel by value.  They are put into a fresh ``__main__``, whose ``__file__`` is the
script where it exists on this node, so that what user code pickles by reference (a dataset for ``DataLoader`` workers
started by spawn) is found, and spawned children import the script as ``__mp_main__``, as they do everywhere.  What a
spawned child launches comes from its ``__mp_main__``: that is the same module here, as it is in such a child.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Final

_NAMES: Final = ("__main__", "__mp_main__")


def renew(script: str | None) -> None:
    """Replaces the template's ``__main__``."""
    module = ModuleType("__main__")
    if script is not None:
        if Path(script).is_file():
            module.__file__ = script
        sys.argv = [script]
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def adopt(cls: type) -> None:
    """Makes a class that arrived by value a member of ``__main__``, with what its methods refer to."""
    for ancestor in cls.__mro__:
        if ancestor.__module__ not in _NAMES or "." in ancestor.__qualname__:
            continue
        main = sys.modules["__main__"]
        ancestor.__module__ = "__main__"
        setattr(main, ancestor.__name__, ancestor)
        for member in vars(ancestor).values():
            function = getattr(member, "__func__", member)
            for name, value in getattr(function, "__globals__", {}).items():
                definition = isinstance(value, type | FunctionType)
                ours = definition and value.__module__ in _NAMES and value.__name__ == name
                if ours:
                    value.__module__ = "__main__"
                    main.__dict__.setdefault(name, value)

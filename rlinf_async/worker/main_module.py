"""A worker's ``__main__``: as if the driver's script had been imported there.

Classes of the driver's script travel by value.  They are put into a fresh ``__main__``, whose ``__file__`` is the
script where it exists on this node, so that what user code pickles by reference (a dataset for ``DataLoader`` workers
started by spawn) is found, and spawned children import the script as ``__mp_main__``, as they do everywhere.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FunctionType, ModuleType


def renew(script: str | None) -> None:
    """Replaces the template's ``__main__``."""
    module = ModuleType("__main__")
    if script is not None:
        if Path(script).is_file():
            module.__file__ = script
        sys.argv = [script]
    sys.modules["__main__"] = module


def adopt(cls: type) -> None:
    """Makes a class that arrived by value a member of ``__main__``, with what its methods refer to."""
    for ancestor in cls.__mro__:
        if ancestor.__module__ != "__main__" or "." in ancestor.__qualname__:
            continue
        main = sys.modules["__main__"]
        setattr(main, ancestor.__name__, ancestor)
        for member in vars(ancestor).values():
            function = getattr(member, "__func__", member)
            for name, value in getattr(function, "__globals__", {}).items():
                definition = isinstance(value, type | FunctionType)
                ours = definition and value.__module__ == "__main__" and value.__name__ == name
                if ours:
                    main.__dict__.setdefault(name, value)

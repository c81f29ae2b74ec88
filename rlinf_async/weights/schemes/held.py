"""A reference that does not keep alive what it refers to, where that can be."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def held(thing: Any) -> Callable[[], Any]:
    """Gives the thing when it is called, or None once that is gone; what takes no weak references is kept alive."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing

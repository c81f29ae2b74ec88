"""Type variables of a group's worker class and of its results, which may be omitted: ``WorkerGroup``, ``Handle``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # the type checker bundles it; defaults need Python 3.13

    R = TypeVar("R", default=Any)
    W_co = TypeVar("W_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    R = TypeVar("R")
    W_co = TypeVar("W_co", covariant=True)

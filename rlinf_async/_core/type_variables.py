"""Type variables for a group's worker class and for its results; ``WorkerGroup`` and ``Handle`` may omit them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # the type checker bundles it; defaults would need Python 3.13

    R = TypeVar("R", default=Any)
    W_co = TypeVar("W_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    R = TypeVar("R")
    W_co = TypeVar("W_co", covariant=True)

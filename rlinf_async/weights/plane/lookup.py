"""A destination that is looked for anew before each version: what a path leads to may be another object by then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.model.param_tree import Path
from rlinf_async.weights.plane.destination import Destination, Function, Views


class Lookup:
    """Writes to whatever was found last, and fits.

    Args:
        find: gives it, or raises why there is none; called where versions are received.
        make: what writes to it.
    """

    def __init__(self, find: Callable[[], Any], make: Callable[[Any], Destination]) -> None:
        self._find = find
        self._make = make
        self._found: Any = None
        self._holder: Any = self
        """What ``_current`` writes to; at first nothing that could be found."""
        self._current: Destination = Function(None)

    @property
    def places(self) -> set[torch.device]:
        return self._current.places

    @property
    def device(self) -> torch.device | None:
        return self._current.device

    @property
    def is_copied(self) -> bool:
        return self._current.is_copied

    @property
    def is_whole(self) -> bool:
        return self._current.is_whole

    def has_moved(self) -> bool:
        self._found = self._find()
        return self._found is not self._holder

    def check(self, manifest: Manifest) -> None:
        """Of what was found last; if it fits, it takes the place of what was there before."""
        if self._found is self._holder:
            self._current.check(manifest)
            return
        coming = self._make(self._found)
        coming.check(manifest)
        self._current.detach()  # what others may have of it is not overwritten with the slot that it stands in
        self._current.forget()
        self._current, self._holder = coming, self._found

    def compare(self, views: Views) -> None:
        self._current.compare(views)

    def write(self, views: Views, extra: Mapping[Path, Any]) -> None:
        self._current.write(views, extra)

    def detach(self) -> None:
        self._current.detach()

    def forget(self) -> None:
        self._current.forget()
        self._find, self._found, self._holder = _nothing, None, None


def _nothing() -> None:
    pass

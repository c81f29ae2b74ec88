"""Choice between a delta and the whole version, for receivers on other machines."""

from __future__ import annotations

import math
from typing import Final

from rlinf_async._core.own_logger import own_logger
from rlinf_async.weights.memory.store import Store
from rlinf_async.weights.model.delta import Delta

logger = own_logger(__name__)

_WORTH: Final = 0.8
"""The part of all bytes from which on a delta does not pay: making it costs a pass over the memory."""

_PAUSE: Final = 8
"""Versions after one that has changed nearly everywhere, before the next is compared."""


class Comparing:
    """
    Args:
        delta: ``"off"``, ``"on"`` or ``"auto"``, as of ``Publisher``.
        label: of the model.
    """

    def __init__(self, delta: str, label: str) -> None:
        self._delta = delta
        self._label = label
        self._from = 0
        """The version with which it is tried again whether little has changed."""

    def is_due(self, version: int) -> bool:
        return self._delta != "off" and version >= self._from

    def compare(self, store: Store, version: int) -> tuple[int, Delta] | None:
        """What has changed in the latest version and since which, where that is worth sending instead of everything."""
        if not self.is_due(version):
            return None
        try:
            found = store.delta(_WORTH * store.manifest.nbytes if self._delta == "auto" else math.inf)
        except Exception:
            logger.exception("version %d of '%s' could not be compared with the one before", version, self._label)
            return None
        if found is None:
            return None
        base, delta = found
        if delta is None:
            self._from = version + _PAUSE
            return None
        return base, delta

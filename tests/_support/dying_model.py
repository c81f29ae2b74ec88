"""A model that dies or stops in the middle of an update, on command."""

from __future__ import annotations

import os
from typing import Any

from tests.weights.ends import Tied


class Fragile(Tied):
    """Its extra state is an order: ``{"victim": me, "signal": number}``, carried out by the one that is meant, half way
    in the update that brings it."""

    def __init__(self, value: float = 0.0, width: int = 100, me: int = -1) -> None:
        super().__init__(value, width)
        self.me = me
        self.order: Any = None

    def get_extra_state(self) -> Any:
        return self.order

    def set_extra_state(self, state: Any) -> None:
        if state is not None and state["victim"] == self.me:
            os.kill(os.getpid(), state["signal"])
        self.order = state

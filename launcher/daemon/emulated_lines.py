"""Node 0's reservations of lines that workers of an emulated network share."""

from __future__ import annotations

import time

from rlinf_async._core import operations
from rlinf_async._messaging.state.emulated_delay import Line, Lines

from .handlers import Requester


class EmulatedLines:
    """Reservations of lines, first come first served among all nodes."""

    def __init__(self) -> None:
        self._lines = Lines()

    async def reserve_lines(self, requester: Requester, op: operations.ReserveLines) -> float:
        """Seconds until these lines, ``[name, bytes per second]``, have carried so many bytes more."""
        lines = [Line(str(name), float(rate)) for name, rate in op.lines]
        if any(line.rate <= 0 for line in lines):
            raise ValueError(f"a line must carry more than nothing: {lines}")
        return self._lines.reserve(lines, max(0, op.nbytes), time.monotonic())

"""Bandwidth reservations on emulated network links that workers of several nodes share; kept on node 0."""

from __future__ import annotations

from rlinf_async._core import clock, operations
from rlinf_async._messaging.state.emulated_delay import SharedLink, SharedLinks

from .handlers import Requester


class SharedLinkService:
    """Reservations of links, first come first served among all nodes."""

    def __init__(self) -> None:
        self._links = SharedLinks()

    async def reserve_lines(self, requester: Requester, op: operations.ReserveLines) -> float:
        """Seconds until these links, ``[name, bytes per second]``, have carried so many bytes more."""
        links = [SharedLink(str(name), float(rate)) for name, rate in op.lines]
        if any(link.rate <= 0 for link in links):
            raise ValueError(f"a link must carry more than nothing: {links}")
        return self._links.reserve(links, max(0, op.nbytes), clock.monotonic())

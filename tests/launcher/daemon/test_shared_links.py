"""Reservations of emulated links that several nodes share."""

from __future__ import annotations

import pytest

from rlinf_async._core import operations
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.shared_links import SharedLinkService


async def test_who_comes_second_waits_for_both_and_a_link_that_carries_nothing_is_refused() -> None:
    service, requester = SharedLinkService(), Requester(9, 1)
    reserve = operations.ReserveLines(lines=[["uplink", 100.0]], nbytes=1000)
    assert await service.reserve_lines(requester, reserve) == pytest.approx(10, abs=0.5)
    assert await service.reserve_lines(requester, reserve) == pytest.approx(20, abs=0.5)
    with pytest.raises(ValueError, match="must carry more than nothing"):
        await service.reserve_lines(requester, operations.ReserveLines(lines=[["a", 1.0], ["b", 0.0]], nbytes=1))

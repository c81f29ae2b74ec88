"""Reservations of emulated links among nodes."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.daemon.shared_links import SharedLinkService
from rlinf_async._core.operations import ReserveLines


async def test_a_link_is_reserved_only_where_it_carries_something() -> None:
    service = SharedLinkService()
    nobody: Any = None
    assert await service.reserve_lines(nobody, ReserveLines([["cable", 100.0]], 200)) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="more than nothing"):
        await service.reserve_lines(nobody, ReserveLines([["cable", 100.0], ["cut", 0.0]], 200))

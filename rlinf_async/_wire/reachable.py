"""Probe of a daemon's address: whether it is reached, and whether a machine that is there has no daemon any more."""

from __future__ import annotations

import asyncio
from typing import Final

from rlinf_async._wire.listen_address import split_endpoint

TIMEOUT_S: Final = 0.5


async def accepts_connections(address: str, timeout: float = TIMEOUT_S) -> bool | None:
    """Whether something listens at ``"ip:port"``; None where the machine does not say so within so many seconds."""
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(*split_endpoint(address))
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return None
    # On the loopback a connection to a free port may be given that very port, and meets itself.
    met_itself = writer.get_extra_info("sockname") == writer.get_extra_info("peername")
    writer.transport.abort()
    return not met_itself

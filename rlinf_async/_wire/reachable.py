"""Probes a daemon's address: distinguishes reachable daemons, machines without a daemon, and unreachable machines."""

from __future__ import annotations

import asyncio
from typing import Final

from rlinf_async._wire.listen_address import split_endpoint

TIMEOUT_S: Final = 0.5


async def accepts_connections(address: str, timeout: float = TIMEOUT_S) -> bool | None:
    """True if ``"ip:port"`` accepts connections, False if it refuses them, None if there is no answer in time."""
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(*split_endpoint(address))
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return None
    # On the loopback interface, a connection to a free port may get the same port as its source, and connect to itself.
    met_itself = writer.get_extra_info("sockname") == writer.get_extra_info("peername")
    writer.transport.abort()
    return not met_itself

"""Probe of a daemon's address: a machine that is there and refuses connections has no daemon any more."""

from __future__ import annotations

import asyncio
from typing import Final

from rlinf_async._wire.listen_address import split_endpoint

_TIMEOUT_S: Final = 0.5


async def refuses_connections(address: str) -> bool:
    """Whether the machine at ``"ip:port"`` answers that nothing listens there; False where nothing answers."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            _, writer = await asyncio.open_connection(*split_endpoint(address))
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    # On the loopback a connection to a free port may be given that very port, and meets itself.
    met_itself = writer.get_extra_info("sockname") == writer.get_extra_info("peername")
    writer.transport.abort()
    return bool(met_itself)

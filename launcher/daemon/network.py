"""``Network``: links between the daemons of a run, over gRPC and TLS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from rlinf_async import settings
from rlinf_async._wire.daemon_link import PeerLink
from rlinf_async._wire.node_config import NodeConfig


class Network(Protocol):
    """Interface for links to other nodes' daemons."""

    async def serve(self, on_link: Callable[[PeerLink], None]) -> str | None:
        """Listen for daemons with lower numbers; return the address, or None for a single node."""

    async def dial(self, peer: int, address: str) -> PeerLink:
        """Connect to a daemon with a higher number.  Raises RLinfAsyncError."""

    async def stop(self) -> None:
        """Stop listening."""


class GrpcNetwork:
    """Links over gRPC, with the addresses and credentials from the node's configuration."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._server: Any = None
        self._address = ""

    async def serve(self, on_link: Callable[[PeerLink], None]) -> str | None:
        config = self._config
        if config.bind is None:
            return None
        from rlinf_async._wire.peer_server import PeerServer

        assert config.credentials is not None
        self._server = PeerServer(
            config.node,
            config.run,
            config.credentials,
            config.bind,
            on_link,
            lease=settings.LEASE_S(),
            greeting_timeout=settings.GREETING_TIMEOUT_S(),
            most_connections=2 * (config.num_nodes + 1) + int(settings.UNAUTHENTICATED_CONNECTIONS()),
            ports=config.ports,
        )
        self._address = await self._server.start()
        return self._address

    async def dial(self, peer: int, address: str) -> PeerLink:
        from rlinf_async._wire.dial import dial

        config = self._config
        assert config.credentials is not None
        return await dial(
            address,
            node=config.node,
            peer=peer,
            run=config.run,
            credentials=config.credentials,
            timeout=settings.NODE_LINK_TIMEOUT_S(),
            lease=settings.LEASE_S(),
            own_address=self._address,
        )

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()

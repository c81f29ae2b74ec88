"""The metrics of the whole run, served by node 0, which asks all daemons at each scrape and omits silent ones."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rlinf_async._core import operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async._wire.listen_address import parse_ip, split_endpoint
from rlinf_async.errors import ConfigError

from .handlers import Requester
from .router import Router

if TYPE_CHECKING:
    from .metrics_server import MetricsServer

logger = own_logger(__name__)

_NODE_TIMEOUT_S: Final = 2.0
"""Seconds to wait for all nodes' answers to one scrape; less than a scraper's default timeout (10 s)."""


class RunMetrics:
    """Node 0's handler that serves a run's metrics on request; ``address`` is empty while there is no server."""

    def __init__(self, router: Router, name: str, welcome: Callable[[], dict[str, Any]]) -> None:
        self._router = router
        self._name = name
        self._welcome = welcome
        self._server: MetricsServer | None = None
        self._opening = asyncio.Lock()
        self._asked = ""
        self.address = ""

    async def serve_metrics(self, requester: Requester, op: operations.ServeMetrics) -> str:
        """Start serving metrics; return the address with its port.  Raises ConfigError if served elsewhere already."""
        async with self._opening:  # two drivers may ask at the same time
            if op.address in (self._asked, self.address) and self.address:
                return self.address
            if self.address:
                raise ConfigError(
                    f"this run's metrics are served at {self.address} already: they cannot be at {op.address} as well"
                )
            from .metrics_server import MetricsServer  # importing its library takes 0.1 s

            host, port = split_endpoint(op.address)
            server = MetricsServer(self._ask)
            try:
                self.address = await server.open(str(parse_ip(host)), port)
            except (OSError, OverflowError) as error:
                reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
                raise ConfigError(
                    f"metrics cannot be served at {op.address} of {self._name}: {reason}; write an address of that "
                    "machine and a port that is free, or port 0 for any, into cluster.metrics.address of the "
                    "configuration or metrics= of Cluster()"
                ) from error
            self._asked, self._server = op.address, server
            self._welcome()["metrics"] = self.address  # where operators find the address
            logger.info("metrics are served at http://%s/metrics", self.address)
            return self.address

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    async def _ask(self) -> dict[str, dict[str, Any] | None]:
        asked = {
            str(node["name"]): self._router.ask(node["node"], operations.ScrapeNode())
            for node in self._welcome()["nodes"]
        }
        try:
            await asyncio.wait(asked.values(), timeout=_NODE_TIMEOUT_S)
            return {
                name: answer.result() if answer.done() and answer.exception() is None else None
                for name, answer in asked.items()
            }
        finally:
            for answer in asked.values():
                answer.cancel()

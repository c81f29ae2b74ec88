"""``MasterStore``: torch's ``TCPStore`` at MASTER_ADDR, opened in a group's first worker when a client connects.

The daemon of the group's first rank creates the listening socket on the node's own address, so that the port is known
before any worker exists and no socket listens on a wildcard address. torch's store has no authentication: any process
that can reach this address can write keys.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from rlinf_async._core.own_logger import own_logger

logger = own_logger(__name__)


class MasterStore:
    """A ``TCPStore`` of torch on a socket that already listens; nothing is imported until a client connects."""

    def __init__(self, loop: asyncio.AbstractEventLoop, listen_fd: int) -> None:
        self._loop = loop
        self._listener = socket.socket(fileno=listen_fd)
        self._store: Any = None
        loop.add_reader(listen_fd, self._open)

    def _open(self) -> None:
        address, port = self._listener.getsockname()[:2]
        self._loop.remove_reader(self._listener.fileno())
        try:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it

            self._store = TCPStore(
                host_name=address,
                port=port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=self._listener.detach(),
            )
        except Exception:
            logger.exception("the store at MASTER_PORT %d could not be opened; init_process_group will fail", port)

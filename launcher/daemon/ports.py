"""Port allocator of a node: finds free ports, and leases them to processes until those end."""

from __future__ import annotations

import contextlib
import ipaddress
import random
import socket
from pathlib import Path
from typing import Final

from rlinf_async._core import operations
from rlinf_async._core.resource_locks import PortLeases, port_range

from .handlers import Requester

_MAX_TRIES: Final = 10_000

_KERNELS_CHOICE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Ports:
    """Port allocator: a port leased to one process goes to no other until that process has ended.

    Args:
        address: this node's own.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._leases = PortLeases()

    async def free_port(self, requester: Requester, op: operations.FreePort) -> int:
        """A port that was free on this node's address a moment ago, and is promised to nobody."""
        while True:
            with contextlib.closing(socket.socket(_family(self._address))) as probe:
                probe.bind((self._address, 0))
                port = int(probe.getsockname()[1])
            if port not in self._leases.owners:
                return port

    async def lease_port(self, requester: Requester, op: operations.LeasePort) -> int:
        """A port that nobody uses now, promised to the requester for as long as it lives.

        Raises:
            RuntimeError: there is none; ValueError: there can be none.
        """
        ports = port_range(_ephemeral(), op.max_port)
        first = random.randrange(len(ports))  # not where the last run had its own, whose connections may still linger
        for index in range(min(_MAX_TRIES, len(ports))):
            port = ports[(first + index) % len(ports)]
            if port not in self._leases.owners and self._is_free(port):
                self._leases.lease(port, requester.endpoint)
                return port
        raise RuntimeError(
            f"no port of {ports[0]}-{ports[-1]} is free on {self._address} ({len(self._leases.owners)} are promised to "
            "workers): give a higher max_port_num, or none"
        )

    def drop(self, owner: int) -> None:
        """A process is no more."""
        self._leases.drop(owner)

    def owners(self) -> set[int]:
        return set(self._leases.owners.values())

    def status(self) -> list[int]:
        """The ports that are promised."""
        return sorted(self._leases.owners)

    def _is_free(self, port: int) -> bool:
        loopback = "::1" if _family(self._address) == socket.AF_INET6 else "127.0.0.1"
        try:
            for address in {self._address, loopback}:
                with contextlib.closing(socket.socket(_family(address))) as probe:
                    probe.bind((address, port))
        except OSError:
            return False
        return True


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET


def _ephemeral() -> tuple[int, int]:
    """First and last port that the kernel chooses by itself."""
    first, last = _KERNELS_CHOICE.read_text().split()
    return int(first), int(last)

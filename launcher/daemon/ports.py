"""Port allocator of a node: opens listening sockets, finds free ports, leases them to processes until those end."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rlinf_async._core import operations
from rlinf_async._core.resource_locks import PortLeases, port_range
from rlinf_async._wire.listen_ports import family, listening_sockets, promise

from .handlers import Requester

_MAX_TRIES: Final = 10_000

_KERNELS_CHOICE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Ports:
    """Port allocator: a port leased to one process goes to no other until that process has ended.

    Args:
        address: this node's own.
        ports: those that may be listened on; None for the kernel's choice.
    """

    def __init__(self, address: str, ports: Sequence[int] | None = None) -> None:
        self._address = address
        self._ports = ports
        self._leases = PortLeases()
        self._marks: dict[int, socket.socket] = {}
        """By leased port: what tells other nodes of this machine."""

    def listen(self, what: str) -> socket.socket:
        """A listening socket on this node's address, on a port that is promised to nobody.

        Raises:
            LaunchError, OSError: as `listening_sockets`.
        """
        return next(listening_sockets(self._address, self._ports, what))

    async def free_port(self, requester: Requester, op: operations.FreePort) -> int:
        """A port that was free on this node's address a moment ago, and is promised to nobody."""
        while True:
            with self.listen("find_free_port()") as probe:
                port = int(probe.getsockname()[1])
            if port not in self._leases.owners:
                return port

    async def lease_port(self, requester: Requester, op: operations.LeasePort) -> int:
        """A port that nobody uses now, promised to the requester for as long as it lives.

        Raises:
            RuntimeError: there is none; ValueError: there can be none.
            OSError: no descriptor is free to look for one.
        """
        ports: Sequence[int] = port_range(_ephemeral(), op.max_port)
        if self._ports is not None:
            ports = [port for port in self._ports if port <= (op.max_port or port)]
            if not ports:
                raise ValueError(f"max_port_num={op.max_port} is below --port-range {self._ports[0]}-{self._ports[-1]}")
        first = random.randrange(len(ports))  # not where the last run had its own, whose connections may still linger
        for index in range(min(_MAX_TRIES, len(ports))):
            port = ports[(first + index) % len(ports)]
            if port in self._leases.owners or (mark := promise(port)) is None:
                continue
            with contextlib.ExitStack() as undo:
                undo.enter_context(mark)
                if self._is_free(port):
                    undo.pop_all()
                    self._leases.lease(port, requester.endpoint)
                    self._marks[port] = mark
                    return port
        raise RuntimeError(
            f"no port of {ports[0]}-{ports[-1]} is free on {self._address} ({len(self._leases.owners)} are promised to "
            "workers): give a higher max_port_num, or none, or a wider --port-range"
        )

    def drop(self, owner: int) -> None:
        """A process is no more."""
        for port in self._leases.drop(owner):
            self._marks.pop(port).close()

    def owners(self) -> set[int]:
        return set(self._leases.owners.values())

    def status(self) -> list[int]:
        """The ports that are promised."""
        return sorted(self._leases.owners)

    def _is_free(self, port: int) -> bool:
        loopback = "::1" if family(self._address) == socket.AF_INET6 else "127.0.0.1"
        try:
            for address in {self._address, loopback}:
                with contextlib.closing(socket.socket(family(address))) as probe:
                    probe.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # it says nothing of the port, nor of the thousands that would be tried next
            return False
        return True


def _ephemeral() -> tuple[int, int]:
    """First and last port that the kernel chooses by itself."""
    first, last = _KERNELS_CHOICE.read_text().split()
    return int(first), int(last)

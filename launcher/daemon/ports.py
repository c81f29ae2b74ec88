"""``Ports``: a node's port allocator; opens listening sockets, finds free ports, and leases ports to processes."""

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
    """Port allocator; no other process gets a leased port until the lessee has ended.

    Args:
        address: this node's address.
        ports: allowed ports; None lets the kernel choose.
    """

    def __init__(self, address: str, ports: Sequence[int] | None = None) -> None:
        self._address = address
        self._ports = ports
        self._leases = PortLeases()
        self._marks: dict[int, socket.socket] = {}
        """Maps each leased port to a socket that marks it as taken for other nodes on this machine."""

    def listen(self, purpose: str) -> socket.socket:
        """Listen on this node's address, on an unleased port.  Raises LaunchError or OSError."""
        return next(listening_sockets(self._address, self._ports, purpose))

    async def free_port(self, requester: Requester, op: operations.FreePort) -> int:
        """Return an unleased port that was just found free on this node's address."""
        while True:
            with self.listen("find_free_port()") as probe:
                port = int(probe.getsockname()[1])
            if port not in self._leases.owners:
                return port

    async def lease_port(self, requester: Requester, op: operations.LeasePort) -> int:
        """Lease a free port to the requester for its lifetime; return the port.

        Raises:
            RuntimeError: no port is free.
            ValueError: the allowed range is empty.
            OSError: no descriptor is free for the search.
        """
        ports: Sequence[int] = port_range(_kernel_port_range(), op.max_port)
        if self._ports is not None:
            ports = [port for port in self._ports if port <= (op.max_port or port)]
            if not ports:
                raise ValueError(f"max_port_num={op.max_port} is below --port-range {self._ports[0]}-{self._ports[-1]}")
        first = random.randrange(len(ports))  # start at random: connections to the last run's ports may linger
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
        for port in self._leases.drop(owner):
            self._marks.pop(port).close()

    def owners(self) -> set[int]:
        return set(self._leases.owners.values())

    def status(self) -> list[int]:
        return sorted(self._leases.owners)

    def _is_free(self, port: int) -> bool:
        loopback = "::1" if family(self._address) == socket.AF_INET6 else "127.0.0.1"
        try:
            for address in {self._address, loopback}:
                with contextlib.closing(socket.socket(family(address))) as probe:
                    probe.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # every other port would fail, too, for lack of descriptors
            return False
        return True


def _kernel_port_range() -> tuple[int, int]:
    first, last = _KERNELS_CHOICE.read_text().split()
    return int(first), int(last)

"""Chooses TCP ports to listen on: any port that the kernel picks, or a free port of ``--port-range``."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import random
import socket
from collections.abc import Iterator, Sequence
from typing import Final

from rlinf_async.errors import LaunchError

_MAX_NAMED: Final = 8


def promise(port: int) -> socket.socket | None:
    """Reserve a port until the returned socket is closed; return None if the port is already reserved.

    All nodes and runs on this machine, of any user, see the reservation, an abstract socket that receives nothing.
    """
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        mark.bind(f"\0rlinf-port-{port}")
    except OSError as error:
        mark.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return mark


def listening_sockets(address: str, ports: Sequence[int] | None, what: str) -> Iterator[socket.socket]:
    """Yield listening sockets on ``address``, one at a time; the caller closes each.

    The search begins at a random port of the range, so that two nodes on one machine rarely try the same ports.

    Raises:
        LaunchError: no port of the range is free; the text names the known holders.
        OSError: the address is not this machine's, or no descriptor is free.
    """
    if ports is None:
        yield _listening(address, 0)
    first = random.randrange(len(ports)) if ports else 0
    for port in [*(ports or ())[first:], *(ports or ())[:first]]:
        if (mark := promise(port)) is None:
            continue
        with mark:  # held until the caller resumes this generator: a library may rebind the port meanwhile
            try:
                listener = _listening(address, port)
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                continue
            yield listener
    raise LaunchError(_exhausted(address, ports or (), what))


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET


def _listening(address: str, port: int) -> socket.socket:
    listener = socket.socket(family(address), socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # SO_REUSEADDR allows binding despite lingering connections of the last run. It also lets two sockets bind the
        # same port, although only one can listen, so listen before treating the port as free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener


def _exhausted(address: str, ports: Sequence[int], what: str) -> str:
    if not ports:
        return f"no port is free on {address} for {what}"
    named = [f"{port} {holder}" for port, holder in sorted(_holders(ports).items())]
    shown = named[:_MAX_NAMED] + ([f"and {len(named) - _MAX_NAMED} more"] if len(named) > _MAX_NAMED else [])
    held = f"\n  held: {', '.join(shown)}" if shown else ""
    return (
        f"no port of {ports[0]}-{ports[-1]} (--port-range) is free on {address} for {what}{held}\n"
        "  fix: a wider --port-range: each node needs a port where there are others, each group of workers one"
    )


def _holders(ports: Sequence[int]) -> dict[int, str]:
    import psutil

    found = {}
    for port in ports:
        if (mark := promise(port)) is None:
            found[port] = "promised by acquire_free_port()"
        else:
            mark.close()
    with contextlib.suppress(OSError, psutil.Error):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port in ports:
                found[connection.laddr.port] = "by another user's process"
                with contextlib.suppress(psutil.Error):
                    if connection.pid:
                        found[connection.laddr.port] = (
                            f"by pid {connection.pid} ({psutil.Process(connection.pid).name()})"
                        )
    return found

"""Connector for this machine, without ssh; recognises hosts that are this machine, and finds its own address."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_async._wire.remote_exit import RemoteExit, describe_exit

from .bootstrap import BOOTSTRAP, TOO_OLD
from .host import Host


@dataclass(frozen=True)
class LocalConnector:
    """This machine; ``python`` is the interpreter to run."""

    python: str

    is_here: bool = True

    @property
    def argv(self) -> Sequence[str]:
        return (self.python, "-c", BOOTSTRAP)

    @property
    def probe(self) -> Sequence[str]:
        return (self.python, "-V")

    def explain(self, exited: RemoteExit) -> str:
        for line in exited.stderr:
            if line.startswith(TOO_OLD):
                return f"{line.removeprefix(TOO_OLD)}, which is too old\nfix: --python PATH"
        return describe_exit(exited)


def is_here(host: Host) -> bool:
    """Whether a host is meant to be this machine: by one of its names, and nothing that only ssh would need."""
    if host.is_local:
        return True
    own = socket.gethostname().lower()
    names = {own, own.split(".")[0]}
    return host.user is None and host.port is None and host.name.lower() in names


def address_towards(address: str) -> str | None:
    """Our address on the way to ``address``, as the routing table has it; no packet is sent.  None without a way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return None

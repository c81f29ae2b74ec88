"""``cluster.metrics``: the address at which a run's metrics are served."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.configuration.document import Origin, Steps
from rlinf_async.configuration.section import Section, misplaced
from rlinf_async.errors import ConfigError


@dataclass(frozen=True)
class MetricsConfig:
    """Address of the metrics server.

    Attributes:
        address: IP address of node 0 and a port, such as ``127.0.0.1:9090`` or ``[::1]:0``; port 0 picks a free
            port.

    Raises:
        ConfigError: the address is malformed.
    """

    address: str

    def __post_init__(self) -> None:
        host, _, port = str(self.address).rpartition(":")
        try:
            ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
            is_port = port.isascii() and port.isdecimal() and int(port) < 1 << 16
            is_address = isinstance(self.address, str) and is_port and host.startswith("[") == host.endswith("]")
        except ValueError:
            is_address = False
        if not is_address:
            raise ConfigError(
                f"metrics are served at an IP address and a port, such as '127.0.0.1:9090' (port 0: any that is free), "
                f"got {self.address!r}"
            )

    @property
    def is_open(self) -> bool:
        """True if the server listens on an address other than loopback."""
        return not ipaddress.ip_address(self.address.rpartition(":")[0].strip("[]")).is_loopback


def read_metrics(value: Any, steps: Steps, origin: Origin | None) -> MetricsConfig | None:
    """Read the section; return None if it is missing. Raises ConfigError."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        text = f"metrics must be a mapping such as {{address: '127.0.0.1:9090'}}, got {value!r}"
        raise misplaced(steps, origin, text)
    section = Section(value, steps, origin, kind="metrics", known=("address",), needed=("address",))
    try:
        return MetricsConfig(section.get("address"))
    except ConfigError as error:
        raise section.error(str(error), "address") from None

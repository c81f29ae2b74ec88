"""Parses a daemon's listening address, ``"ip:port"``, into an IP address and a port."""

from __future__ import annotations

import ipaddress

from rlinf_async.errors import ConfigError


def split_endpoint(address: str) -> tuple[str, int]:
    """Split ``"ip:port"`` into IP address and port. Raise ConfigError if the address is malformed."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ConfigError(f"{address!r} is no address of a node: expected 'ip:port'")
    return host.strip("[]"), int(port)


def parse_ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an IP address. Raise ConfigError if the text is not one."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no IP address: nodes listen on addresses, not on names") from None

"""Handshake message of links between daemons (run, node, protocol and Python version): packing and checks.

The sender's certificate is known to belong to the run, but none of the message's fields is trusted.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Final

import msgpack

from rlinf_async._core.frames import PROTOCOL
from rlinf_async._core.own_logger import own_logger
from rlinf_async._wire.credentials import node_name
from rlinf_async.errors import AuthError, VersionMismatch

_MAX_HELLO_BYTES = 64 << 10  # far more than any Hello needs
_WARN_CLOCK_SKEW_S = 5.0  # a smaller skew is not worth a warning

INCARNATION: Final = secrets.token_hex(8)

_log = own_logger(__name__)


@dataclass(frozen=True)
class Hello:
    """First message in each direction of a control stream: the sender's identity and versions.

    Attributes:
        incarnation: id of the daemon process; a restarted daemon has a new id.
        address: the daemon's listening address; empty if it does not listen.
        received: number of messages received on each stream, if a connection is being replaced; empty for a new link.
        bulk: the key that the dialling side must send on the bulk stream; set only in answers.
    """

    magic: str
    protocol: int
    run: str
    node: int
    python: str
    version: str
    time: float
    incarnation: str
    address: str
    received: list[int]
    bulk: str

    @classmethod
    def own(
        cls,
        run: str,
        node: int,
        *,
        incarnation: str = "",
        address: str = "",
        received: Sequence[int] = (),
        bulk: str = "",
    ) -> Hello:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        who = (incarnation or INCARNATION, address, list(received), bulk)
        return cls("rlinf", PROTOCOL, run, node, python, _package_version(), time.time(), *who)

    def pack(self) -> bytes:
        packed: bytes = msgpack.packb(asdict(self))
        return packed

    def check(self, data: bytes, identities: list[str]) -> Hello:
        """Decode the peer's untrusted Hello, and compare it with this Hello and the peer's certificate names.

        Raises:
            AuthError: the data is not a Hello, comes from another run, or names another node than the certificate.
            VersionMismatch: the peer uses another protocol or another minor version of Python.
        """
        fields = _decode(data)
        if fields.get("magic") != self.magic:
            raise AuthError(f"node {self.node} of run {self.run} got something else than a Hello")
        if fields.get("protocol") != self.protocol:
            raise VersionMismatch(
                f"node {_shown(fields, 'node')} speaks protocol {_shown(fields, 'protocol')} (rlinf_async "
                f"{_shown(fields, 'version')}), node {self.node} speaks protocol {self.protocol} (rlinf_async "
                f"{self.version}): install one version of rlinf_async on all nodes"
            )
        for field, kind in _FIELDS.items():
            if type(fields.get(field)) is not kind:
                raise AuthError(f"node {self.node} of run {self.run} got a Hello whose {field} is no {kind.__name__}")
        received = fields["received"]
        if len(received) not in (0, 2) or any(type(number) is not int or number < 0 for number in received):
            raise AuthError(f"node {self.node} of run {self.run} got a Hello whose received is no two numbers")
        peer = Hello(**{field: fields[field] for field in _FIELDS})
        if peer.run != self.run:
            raise AuthError(f"node {peer.node} is of run {peer.run!a}, node {self.node} is of run {self.run!r}")
        if peer.node < 0 or identities != [node_name(self.run, peer.node)]:
            raise AuthError(
                f"the peer of node {self.node} calls itself node {peer.node}, "
                f"but its certificate names {', '.join(identities) or 'nobody'}"
            )
        if peer.python != self.python:
            raise VersionMismatch(
                f"node {peer.node} runs Python {_shown(fields, 'python')} (rlinf_async {_shown(fields, 'version')}), "
                f"node {self.node} runs Python {self.python} (rlinf_async {self.version}): what is pickled on one "
                "cannot be trusted to load on the other; use the same minor version on all nodes"
            )
        if abs(peer.time - self.time) > _WARN_CLOCK_SKEW_S:
            _log.warning(
                "the clocks of node %d and node %d differ by %.0f s", peer.node, self.node, peer.time - self.time
            )
        return peer


_FIELDS: dict[str, type] = {
    "magic": str, "protocol": int, "run": str, "node": int, "python": str, "version": str, "time": float,
    "incarnation": str, "address": str, "received": list, "bulk": str,
}  # fmt: skip


def _decode(data: bytes) -> dict[str, Any]:
    if len(data) > _MAX_HELLO_BYTES:
        return {}
    try:
        fields = msgpack.unpackb(
            data, max_str_len=256, max_bin_len=0, max_ext_len=0, max_array_len=16, max_map_len=32, strict_map_key=True
        )
    except (ValueError, msgpack.UnpackException):
        return {}
    return fields if isinstance(fields, dict) else {}


def _shown(fields: dict[str, Any], field: str) -> str:
    """Return a peer's value as short printable text, without control characters."""
    value = fields.get(field, "?")
    return ascii(value).strip("'")[:80]


def _package_version() -> str:
    try:
        return metadata.version("rlinf-async")
    except metadata.PackageNotFoundError:  # a checkout that is on the path but not installed
        return "unknown"

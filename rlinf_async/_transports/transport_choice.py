"""A table of transports for CPU memory outside frames (Gloo, pieces): choice by size and node, creation of links."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from rlinf_async._transports.inline import InlineLink
from rlinf_async._transports.link import Link, Post
from rlinf_async._transports.shared_memory import fits

IN_FRAME: Final = ""
"""Transport within the frame: small messages inline, large ones in attached memory or, between daemons, in pieces."""

PIECES: Final = "pieces"


class Transport(NamedTuple):
    """A transport outside the frames.

    Attributes:
        make: creates the ``Link``; the first call imports its modules.
        min_bytes: size from which two workers on different machines use it.
        is_authenticated: True if the peer is authenticated, so that received bytes may be unpickled.
    """

    make: Callable[[Post, bool, str], Link]
    min_bytes: float
    is_authenticated: bool


def _gloo(post: Post, first: bool, address: str) -> Link:
    from rlinf_async._transports.gloo_link import GlooLink

    return GlooLink(post, first, address)


TRANSPORTS: Final = {
    "gloo": Transport(_gloo, 1 << 20, is_authenticated=False),
    PIECES: Transport(InlineLink, math.inf, is_authenticated=True),
}


def choose(nbytes: int, *, same_node: bool, direct: bool) -> str:
    """Return the transport for a message; ``direct`` means a single receiver to which a connection is possible."""
    if not same_node and direct:
        for name, transport in TRANSPORTS.items():
            if nbytes >= transport.min_bytes:
                return name
    return IN_FRAME if fits(nbytes) else PIECES


def make_link(name: str, post: Post, first: bool, address: str) -> Link:
    """Create a link of the named kind. Raise ValueError if it is unknown, as the peer's version may differ."""
    if name not in TRANSPORTS:
        raise ValueError(f"there is no link {name!r} between workers")
    return TRANSPORTS[name].make(post, first, address)

"""The choice of a transport for a message's content."""

from __future__ import annotations

import logging
from typing import Final

from rlinf_async._transports.inline import InlineLink
from rlinf_async._transports.link import Link, Post
from rlinf_async._transports.shared_memory import fits

logger = logging.getLogger(__name__)

IN_FRAME: Final = ""
"""In the frame itself: small messages inline, others as memory that rides on it, or in pieces between two daemons."""

PIECES: Final = "pieces"
GLOO: Final = "gloo"

MIN_GLOO_BYTES: Final = 1 << 20
"""From this size on two workers on different machines use a connection of their own."""


def choose(nbytes: int, *, same_node: bool, gloo: bool) -> str:
    """The transport of a message of so many bytes.

    Args:
        same_node: its receivers are all on this machine.
        gloo: it has one receiver, and a connection to it can be had.
    """
    if not same_node and gloo and nbytes >= MIN_GLOO_BYTES:
        return GLOO
    return IN_FRAME if fits(nbytes) else PIECES


def make_link(name: str, post: Post, first: bool, address: str) -> Link:
    """The link of that name; see ``Link``.

    Raises:
        ValueError: the peer speaks of a link that is not known here.
    """
    if name == PIECES:
        return InlineLink(post, first, address)
    if name == GLOO:
        from rlinf_async._transports.gloo_link import GlooLink

        return GlooLink(post, first, address)
    raise ValueError(f"there is no link {name!r} between workers")

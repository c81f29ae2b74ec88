"""The choice of a transport for a message's content."""

from __future__ import annotations

import logging
from typing import Final

from rlinf_async._transports.inline import InlineLink
from rlinf_async._transports.link import Link, Post
from rlinf_async._transports.shared_memory import fits

logger = logging.getLogger(__name__)

FRAME: Final = ""
"""In the frame itself: small ones inline, others as memory that rides on it, or in pieces between two daemons."""

PIECES: Final = "pieces"
COLLECTIVE: Final = "gloo"

COLLECTIVE_FROM: Final = 1 << 20
"""Bytes from which on a connection of their own is worth its while to two workers on different machines."""


def choose(nbytes: int, *, near: bool, collective: bool) -> str:
    """The way of a message of so many bytes.

    Args:
        near: its receivers are all on this machine.
        collective: it has one receiver, and a connection to it can be had.
    """
    if not near and collective and nbytes >= COLLECTIVE_FROM:
        return COLLECTIVE
    return FRAME if fits(nbytes) else PIECES


def make_link(name: str, post: Post, first: bool, address: str) -> Link:
    """The link of that name; see ``Link``.

    Raises:
        ValueError: the peer speaks of a link that is not known here.
    """
    if name == PIECES:
        return InlineLink(post, first, address)
    if name == COLLECTIVE:
        from rlinf_async._transports.gloo_link import GlooLink

        return GlooLink(post, first, address)
    raise ValueError(f"there is no link {name!r} between workers")

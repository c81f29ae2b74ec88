"""Both ends of a link over a private socket, which meet by a notice in a pipe."""

from __future__ import annotations

import threading
from typing import Any

from tests._support.weight_parts import OWN, SocketLink


def inviting(pipe: Any, label: str | None = None) -> SocketLink:
    """The sender's end; its notice is in the pipe."""
    link = SocketLink.invite("policy", label)
    pipe.send(link.notice(0))
    return link


def joining(pipe: Any) -> SocketLink:
    """The receiver's end, once there is a notice in the pipe."""
    link = SocketLink("policy")
    link.join(pipe.recv(), OWN)
    return link


def pair() -> tuple[SocketLink, SocketLink]:
    """Both ends in this process; they have met."""
    one, other = SocketLink.invite("policy"), SocketLink("policy")
    other.join(one.notice(0), OWN)
    met = threading.Event()
    one.opened._follow(met.set)
    assert met.wait(10)
    return one, other

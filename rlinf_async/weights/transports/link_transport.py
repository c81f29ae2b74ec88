"""A transport whose ends share memory: a link between them carries words only."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

from rlinf_async.weights.links.link import Link


class LinkTransport:
    """What a sender gives to its publisher, and a receiver to its subscriber, in the place of sending by itself."""

    def invite(self, name: str) -> Link:
        """The sender's end for the model of that name; made when it is first asked for."""
        return self.open_link(name)

    def open_link(self, name: str) -> Link:
        """The receiver's end, likewise."""
        raise NotImplementedError

    def announce(self, version: int) -> None:
        """Has a receiver that has not met the sender know of a version, or one that has to be told of each."""

    def watching(self) -> AbstractContextManager[None]:
        """To be entered around each wait for the other side: what has to be read or written meanwhile is."""
        return contextlib.nullcontext()

    async def leads_to_link(self, timeout: float | None) -> bool:
        """Whether both ends have met, within ``timeout`` seconds."""
        return True

    def check_connection(self) -> bool:
        raise NotImplementedError

    def receive_weights(self, timeout: float = 1.0) -> Any:
        """What comes past the link."""
        raise NotImplementedError

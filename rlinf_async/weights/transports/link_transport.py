"""A transport whose ends share memory: a link between them carries words only."""

from __future__ import annotations

from typing import Any

from rlinf_async.weights.links.link import Link


class LinkTransport:
    """What a sender gives to its publisher, and a receiver to its subscriber, in the place of sending by itself."""

    def open_link(self, name: str) -> Link:
        """The link for the model of that name; made when it is first asked for."""
        raise NotImplementedError

    async def leads_to_link(self, timeout: float | None) -> bool:
        """Whether the sender speaks over the link, as far as is known after ``timeout`` seconds."""
        return True

    def look(self) -> None:
        """Whoever waits for words looks whether there are some."""

    def check_connection(self) -> bool:
        raise NotImplementedError

    def receive_weights(self, timeout: float = 1.0) -> Any:
        """What comes past the link."""
        raise NotImplementedError

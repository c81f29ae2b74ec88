"""The interface of transports, which carry weights from a sender to one receiver."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from rlinf_async.weights.links.weight_link import WeightLink
from rlinf_async.weights.waiting.execution import at_once


@runtime_checkable
class TransportBackend(Protocol):
    """A transport to one receiver (TorchRL's interface).

    In a coroutine, this package's transports start immediately and return a ``Work`` to await; elsewhere they block. A
    user's transports may do either, may be plain blocking code, and may return any awaitable.

    A transport may have further members, which callers look up:

    ``send_weights_async(model_id, weights)``
        Like ``send_weights``, but returns once ``weights`` may change; ``wait_ack()`` then waits for the receiver.
    ``wait_ack()``
        Waits for the receiver; raises its error if the update failed there.
    ``send_ack(message="updated")``, ``check_ack(message="updated")``
        The receiver's acknowledgement that it has applied the last weights, and the sender's check of it.
    ``carries_version``
        True if ``send_weights`` and ``send_weights_async`` take the version and its time limit in seconds as further
        arguments, and the receiver's transport has an attribute ``version``. Otherwise the receiver counts versions.
    ``nbytes``
        Size in bytes of the last weights, as sent.
    ``give_up()``
        Abandons the last send; must not wait, because it is called within a loop.
    ``check_connection() -> bool``
        True if the other side can be reached, as far as known.
    ``close()``
        Releases the transport's resources; idempotent.
    """

    def send_weights(self, model_id: str, weights: Any) -> Any:
        """Deliver weights; return once the receiver has applied them."""

    def receive_weights(self, timeout: float = 1.0) -> Any:
        """Return ``(model_id, weights)``, or None if nothing has arrived within ``timeout`` seconds."""


class LinkTransport:
    """A transport whose ends share memory, because its link connects a publisher and a subscriber."""

    _link: Any = None

    def invite(self, name: str) -> WeightLink:
        """Return the sender's end of the link for the model with that name, created at first use."""
        return self.open_link(name)

    def open_link(self, name: str) -> WeightLink:
        """Return the receiver's end of the link for the model with that name, created at first use."""
        if self._link is None:
            self._link = self._make_link(name)
        link: WeightLink = self._link
        return link

    def _make_link(self, name: str) -> WeightLink:
        raise NotImplementedError

    def announce(self, version: int) -> None:
        """Announce a version to a receiver that has not connected, or that needs a notice of each version."""

    def watching(self) -> AbstractContextManager[None]:
        """Context manager: services the pipe during waits for the other side."""
        return contextlib.nullcontext()

    def check_connection(self) -> bool:
        raise NotImplementedError

    def close(self) -> Any:
        """Close the link but no shared resources; in a coroutine, return a ``Work``."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
        return at_once()


class SilentTransport:
    """The base class of transports that only send."""

    def receive_weights(self, timeout: float = 1.0) -> Any:
        """Return None, because weights do not arrive as messages."""
        return at_once()

    def send_ack(self, message: str = "updated") -> Any:
        """Do nothing, because acknowledgements do not use this transport."""
        return at_once()

    def check_ack(self, message: str = "updated") -> Any:
        """Do nothing, because acknowledgements do not use this transport."""
        return at_once()

    def check_connection(self) -> bool:
        return True

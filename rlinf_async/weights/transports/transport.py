"""Interface of transports, which carry weights from a sender to one receiver."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from rlinf_async.weights.links.weight_link import WeightLink
from rlinf_async.weights.waiting.execution import at_once


@runtime_checkable
class TransportBackend(Protocol):
    """One way to one receiver (TorchRL's interface).

    The transports of this package, called in a coroutine, start at once and return a ``Work`` to be awaited; elsewhere
    they block.  Transports of a user's own may do either, may be plain blocking code, and may return any awaitable.

    A transport can do more, which is found by looking for it:

    ``send_weights_async(model_id, weights)``
        As ``send_weights``, but finished when ``weights`` may change; then ``wait_ack()`` waits for the receiver.
    ``wait_ack()``
        Raises whatever has become of the update at the receiver.
    ``send_ack(message="updated")``, ``check_ack(message="updated")``
        The receiver's word that it has applied what it received last, and the sender's look at it.
    ``carries_version``
        True: ``send_weights`` and ``send_weights_async`` take the version and the seconds that there are for it as
        further arguments, and the receiver's transport has it as ``version``.  Else the receiver counts.
    ``nbytes``
        Bytes of the weights that were sent last, as they travelled.
    ``give_up()``
        Nobody waits for the end of what was sent last; called from within a loop, and does not wait.
    ``check_connection() -> bool``
        Whether the other side can be reached, as far as that is known.
    ``close()``
        Gives up what the transport holds; a second time is nothing.
    """

    def send_weights(self, model_id: str, weights: Any) -> Any:
        """Delivers weights; finished when the receiver has applied them."""

    def receive_weights(self, timeout: float = 1.0) -> Any:
        """``(model_id, weights)``, or None if nothing has arrived within ``timeout`` seconds."""


class LinkTransport:
    """A transport whose ends share memory: a publisher and a subscriber announce versions by its link."""

    _link: Any = None

    def invite(self, name: str) -> WeightLink:
        """Return the sender's end for the model of that name; made at its first use."""
        return self.open_link(name)

    def open_link(self, name: str) -> WeightLink:
        """Return the receiver's end, likewise."""
        if self._link is None:
            self._link = self._make_link(name)
        link: WeightLink = self._link
        return link

    def _make_link(self, name: str) -> WeightLink:
        raise NotImplementedError

    def announce(self, version: int) -> None:
        """Announce a version to a receiver that has not connected, or that needs a notice of each version."""

    def watching(self) -> AbstractContextManager[None]:
        """Context manager for waits for the other side: services the pipe meanwhile."""
        return contextlib.nullcontext()

    def check_connection(self) -> bool:
        raise NotImplementedError

    def close(self) -> Any:
        """Closes the link, and nothing that others use too; in a coroutine a ``Work``."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
        return at_once()


class SilentTransport:
    """Base of transports over which nothing comes back."""

    def receive_weights(self, timeout: float = 1.0) -> Any:
        """None: weights do not come as a message."""
        return at_once()

    def send_ack(self, message: str = "updated") -> Any:
        """Nothing: the sender hears of it in another way, or does not."""
        return at_once()

    def check_ack(self, message: str = "updated") -> Any:
        """Nothing: the sender hears of it in another way, or does not."""
        return at_once()

    def check_connection(self) -> bool:
        return True

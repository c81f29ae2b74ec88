"""``Receiving``: the versions of a receiver's model, under ``follow`` and the schemes."""

from __future__ import annotations

from rlinf_async.weights.plane.subscriber import Subscriber


class Receiving:
    """Base of receivers that have a subscriber."""

    _subscriber: Subscriber

    @property
    def version(self) -> int:
        """The version in the model; 0 before the first."""
        return self._subscriber.version

    @property
    def published(self) -> int:
        """The latest version that this receiver has heard of."""
        return self._subscriber.published

    @property
    def staleness(self) -> int:
        """Versions that the model is behind."""
        return self._subscriber.staleness

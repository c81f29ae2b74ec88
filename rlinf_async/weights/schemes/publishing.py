"""What a sender publishes with: the publisher of all its workers that have links."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rlinf_async.weights.plane.publisher import Publisher
from rlinf_async.weights.schemes.ways import PublisherWay
from rlinf_async.weights.transports.link_transport import LinkTransport

if TYPE_CHECKING:
    from rlinf_async.weights.schemes.scheme import WeightSyncScheme


class Publishing:
    """One model's; there is a publisher once somebody is to be published to."""

    def __init__(self, scheme: WeightSyncScheme) -> None:
        self._scheme = scheme
        self._publisher: Publisher | None = None

    def way(self, model_id: str, linked: Mapping[int, LinkTransport], model: Callable[[], Any]) -> PublisherWay:
        """To these.

        Args:
            model: gives the weights of the sender's model, or None.
        """
        return PublisherWay(self._to(model_id, linked), linked, model)

    async def connect(
        self, model_id: str, linked: Mapping[int, LinkTransport], source: Any, timeout: float | None
    ) -> None:
        """Meets these; the errors are those of ``Publisher.connect``."""
        publisher = self._to(model_id, linked, source)
        with contextlib.ExitStack() as stack:
            for transport in linked.values():
                transport.announce(publisher.version)
                stack.enter_context(transport.watching())
            await publisher.connect(timeout)

    def _to(self, model_id: str, linked: Mapping[int, LinkTransport], source: Any = None) -> Publisher:
        if self._publisher is None:
            self._publisher = Publisher(source, model_id=model_id, **self._scheme.options.for_publisher())
        known = self._publisher.worker_ids
        for worker_id, transport in linked.items():
            if worker_id not in known:
                self._publisher.add(worker_id, transport.invite(model_id))
        return self._publisher

    def leave(self, worker_id: int) -> None:
        """Nothing goes to that worker any more."""
        if self._publisher is not None and worker_id in self._publisher.worker_ids:
            self._publisher.remove(worker_id)

    def meet(self, model_id: str, worker_id: int, transport: Any) -> None:
        """A worker is there again; the latest version is for it too."""
        if self._publisher is not None and isinstance(transport, LinkTransport):
            self._publisher.add(worker_id, transport.invite(model_id))
            transport.announce(self._publisher.version)

    async def close(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await publisher.close()

"""``NoWeightSyncScheme``: the usual interface, but nothing is synchronised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf_async.weights.plane.sync_handle import SyncHandle
from rlinf_async.weights.schemes.receiver import WeightReceiver
from rlinf_async.weights.schemes.scheme import WeightSyncScheme, register_weight_sync_backend
from rlinf_async.weights.schemes.sender import SendRequest, WeightSender
from rlinf_async.weights.schemes.weight_strategy import WeightStrategy
from rlinf_async.weights.state.sync_report import SyncReport
from rlinf_async.weights.transports.transport import SilentTransport, TransportBackend
from rlinf_async.weights.waiting.execution import at_once


class NoTransport(SilentTransport):
    """No-op transport: methods immediately return None or, in a coroutine, a ``Work`` that resolves to None."""

    def send_weights(self, model_id: str, weights: Any) -> Any:
        return at_once()

    def send_weights_async(self, model_id: str, weights: Any) -> Any:
        return at_once()

    def wait_ack(self) -> Any:
        return at_once()


@register_weight_sync_backend("none")
class NoWeightSyncScheme(WeightSyncScheme):
    """A scheme in which every model keeps its own weights: ``send`` returns immediately, ``receive`` returns False.

    It replaces another scheme to switch synchronisation off without changing other code.
    """

    needs_weights = False

    def init_on_sender(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        self._become_sender(_SendsNothing(self), model_id, None)

    def init_on_worker(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        self._become_receiver(_KeepsItsOwn(self), model_id, None, model_id)

    def create_transport(self, pipe_or_context: Any) -> NoTransport:
        return NoTransport()

    def prepare_weights(self, weights: Any, model_id: str, strategy: WeightStrategy, context: Any = None) -> Any:
        """Return the weights unchanged."""
        return weights


class _SendsNothing(WeightSender):
    """A sender that has no receivers."""

    def _targets(self, worker_ids: int | Sequence[int] | None) -> dict[int, TransportBackend]:
        return {}

    async def _publish(self, wanted: SendRequest) -> SyncHandle:
        handle = SyncHandle(0, wanted.timeout, lambda _: None, lambda _: None)
        handle.finish(SyncReport(0))
        return handle


class _KeepsItsOwn(WeightReceiver):
    """A receiver that never receives weights."""

    async def _take(self, *weights: Any, **how: Any) -> bool:
        return True

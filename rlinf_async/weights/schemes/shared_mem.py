"""``SharedMemWeightSyncScheme``, for processes connected by pipes, with one buffer per model at the sender."""

from __future__ import annotations

from typing import Any

from rlinf_async.weights.schemes.multi_process import PipeScheme
from rlinf_async.weights.schemes.scheme import register_weight_sync_backend
from rlinf_async.weights.schemes.sender import SendRequest, WeightSender
from rlinf_async.weights.schemes.weight_strategy import WeightStrategy
from rlinf_async.weights.transports.buffers import SharedMemTransport
from rlinf_async.weights.transports.mp import MPTransport
from rlinf_async.weights.transports.transport import TransportBackend


class _SharedSender(WeightSender):
    """A sender that notifies workers of registered weights."""

    def __init__(self, scheme: SharedMemWeightSyncScheme) -> None:
        super().__init__(scheme)
        self._transport = self._shared = scheme.transport

    def _targets(self, worker_ids: Any) -> dict[int, TransportBackend]:
        return {} if worker_ids is None and not self._transports else super()._targets(worker_ids)

    def _way_to(self, pipe_or_context: Any) -> TransportBackend:
        self._shared.register_pipe(pipe_or_context)
        return MPTransport(pipe_or_context, self._scheme.options.ack_timeout, self._shared.registered)

    def _prepare(self, *wanted: Any) -> SendRequest:
        self._shared.check_registered(self._model_id)
        return super()._prepare(*wanted)


@register_weight_sync_backend("thread")
@register_weight_sync_backend("direct")
@register_weight_sync_backend("shared")
class SharedMemWeightSyncScheme(PipeScheme):
    """A scheme for processes on this machine that read weights in shared memory and are notified through pipes.

    In contrast to ``MultiProcessWeightSyncScheme``, the sender has one transport for all workers, and shows the last
    packed weights. A worker has new weights once it has called ``receive`` or ``apply_weights``, or serves. The message
    ``((model_id, notice), "register_shared_weights")`` notifies a worker's loop of registered weights; the loop answers
    ``(None, "registered")``.

    Args:
        policy_weights: maps each model id to a TensorDict, which declares the model; sends do not write to it.
        auto_register: True allows unregistered models to be sent.

    Raises:
        ConfigError: an option would have no effect here.
    """

    def __init__(
        self,
        policy_weights: dict[str, Any] | None = None,
        strategy: Any = "tensordict",
        auto_register: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(strategy, **options)
        self.transport = SharedMemTransport(policy_weights, auto_register)

    @property
    def policy_weights(self) -> dict[str, Any]:
        """Maps each model id to the last weights sent; before the first send, to the registered weights. These are
        views of the memory that workers read and that later versions overwrite; do not write to them."""
        found = dict(self.transport.registered)
        sender = self._sender
        if sender is not None and (shown := sender._shown()) is not None:
            found[sender._model_id] = shown
        return found

    def register_shared_weights(self, model_id: str, weights: Any) -> None:
        """Register weights; errors as for ``SharedMemTransport.register_weights``."""
        self.transport.register_weights(model_id, weights)

    def init_on_sender(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        """
        Args:
            kwargs: ``pipes``; ``cached_weights`` to register; ``source_model``.

        Raises:
            ValueError: there are no pipes.
        """
        get_cached = getattr(context, "get_cached_weights", None)
        cached = kwargs.get("cached_weights") if get_cached is None else get_cached(model_id)
        if cached is not None and model_id not in self.transport.registered:
            self.transport.register_weights(model_id, cached)
        super().init_on_sender(model_id, context, **kwargs)
        for transport in self.get_sender()._transports.values():
            if isinstance(transport, MPTransport) and model_id in self.transport.registered:
                transport.register(model_id)

    def create_sender(self) -> WeightSender:
        return _SharedSender(self)

    def create_transport(self, pipe: Any) -> SharedMemTransport:
        """Return the shared transport, and register the pipe with it."""
        if pipe is not None:
            self.transport.register_pipe(pipe)
        return self.transport

    def prepare_weights(self, weights: Any, model_id: str, strategy: WeightStrategy, context: Any = None) -> Any:
        """Return the weights to send, as in the base class; for ``"policy"`` the context's ``_policy_weights_dict``
        takes precedence."""
        if weights is None and model_id == "policy":
            known = getattr(context, "_policy_weights_dict", None)
            device = getattr(context, "policy_device", None)
            if known is not None and device in known:
                return known[device]
        return super().prepare_weights(weights, model_id, strategy, context)

"""``DistributedWeightSyncScheme``: sends weights between the processes of a torch.distributed job."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from rlinf_async._core.own_logger import own_logger
from rlinf_async.errors import DeadlineExceeded
from rlinf_async.weights.model.writing import adopt
from rlinf_async.weights.schemes.receiver import WeightReceiver
from rlinf_async.weights.schemes.scheme import WeightSyncScheme, from_either, register_weight_sync_backend
from rlinf_async.weights.transports.distributed import DistributedTransport

logger = own_logger(__name__)

_MAX_WAIT_S: Final = 3600.0
"""Limit in seconds on one wait without a deadline."""


class _DistributedReceiver(WeightReceiver):
    """The worker's end, whose transport carries nothing before the first weights."""

    _is_told = False

    def connect(self, timeout: float | None = 60.0) -> Any:
        self._check_open()
        return self._adapter.run(self._connect(timeout), "the sender")

    async def _connect(self, timeout: float | None) -> None:
        while not self.version and not await self._receive(_MAX_WAIT_S if timeout is None else timeout):
            self._check_open()  # the receiver may have been closed during the wait
            if timeout is not None:
                raise DeadlineExceeded(f"the sender of '{self._model_id}' has sent nothing within {timeout:g} s")

    def _adopt(self, model: Any, weights: Any) -> None:
        if self._scheme.options.apply != "map":
            super()._adopt(model, weights)
            return
        why = adopt(model, weights, strict_dtype=self._scheme.options.strict_dtype)
        if why and not self._is_told:
            self._is_told = True
            logger.warning("weights of '%s' are copied and not mapped: %s", self._model_id, why)


@register_weight_sync_backend("distributed")
class DistributedWeightSyncScheme(WeightSyncScheme):
    """A scheme for the processes of a torch.distributed job; see ``DistributedTransport``.

    ``init_on_sender`` takes ``store``, and ``num_workers`` (ranks 1 to that number) or ``ranks``; a worker's id is its
    rank minus one. ``init_on_worker`` takes ``store``, its own ``rank``, counted from 1, and ``model``.

    Args:
        backend: ``"gloo"`` or ``"nccl"``.
        sync: accepted for TorchRL's callers; a send always waits until the workers have the bytes.
        options: ``ack_timeout``; ``transport_dtype``; ``strict_dtype``; ``apply``, where ``"map"`` maps a worker's
            tensors to the memory in which the weights arrived. Options for shared memory are refused.

    Raises:
        ConfigError: an option would have no effect here.
    """

    missing: ClassVar[str] = "store and num_workers (or ranks) must be provided via context or kwargs"

    def __init__(self, backend: str = "gloo", sync: bool = True, strategy: Any = "state_dict", **options: Any) -> None:
        super().__init__(strategy, **options)
        self.options.refuse_others(
            "ack_timeout",
            "apply",
            "strict_dtype",
            "transport_dtype",
            owner=type(self).__name__,
            why="all of every version goes to each worker, into memory of its own; leave it out, or have workers of "
            "this framework, and WorkerWeightSyncScheme",
        )
        self.backend = backend
        self.sync = sync

    def _ways_to_workers(self, model_id: str, context: Any, kwargs: dict[str, Any]) -> Any:
        store = from_either(context, kwargs, "store", "_store")
        workers = from_either(context, kwargs, "num_workers", "num_collectors")
        ranks = from_either(context, kwargs, "ranks") or (range(1, workers + 1) if workers else None)
        return None if store is None or ranks is None else [(rank - 1, (store, rank)) for rank in ranks]

    def _way_to_sender(self, context: Any, kwargs: dict[str, Any]) -> DistributedTransport:
        store, rank = from_either(context, kwargs, "store", "_store"), from_either(context, kwargs, "rank", "_rank")
        if store is None or rank is None:
            raise ValueError("store and rank must be provided via context or kwargs")
        return self.create_transport((store, rank))

    def create_receiver(self) -> WeightReceiver:
        return _DistributedReceiver(self)

    def create_transport(self, pipe_or_context: Any) -> DistributedTransport:
        """
        Args:
            pipe_or_context: ``(store, rank)``; for anything else the transport does nothing."""
        is_pair = isinstance(pipe_or_context, tuple) and len(pipe_or_context) == 2
        store, rank = pipe_or_context if is_pair else (None, None)
        return DistributedTransport(
            store,
            rank,
            self.sync,
            backend=self.backend,
            timeout=self.options.ack_timeout,
            transport_dtype=self.options.transport_dtype,
        )

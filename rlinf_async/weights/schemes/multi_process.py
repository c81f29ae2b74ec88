"""Schemes for processes started with ``multiprocessing``, each of which has a pipe."""

from __future__ import annotations

from typing import Any, ClassVar

from rlinf_async.weights.schemes.scheme import WeightSyncScheme, from_either, register_weight_sync_backend
from rlinf_async.weights.transports.mp import MPTransport


class PipeScheme(WeightSyncScheme):
    """The base class of schemes for processes that each have a pipe to the trainer."""

    publishes = True

    missing: ClassVar[str] = "pipes must be provided via context or kwargs"
    needs_pipe: ClassVar[bool] = False
    """False if the worker's own loop may pass notices to ``apply_weights``."""

    def _ways_to_workers(self, model_id: str, context: Any, kwargs: dict[str, Any]) -> Any:
        pipes = from_either(context, kwargs, "pipes")
        return None if pipes is None else enumerate(pipes)

    def _way_to_sender(self, context: Any, kwargs: dict[str, Any]) -> MPTransport | None:
        pipe = from_either(context, kwargs, "pipe")
        if pipe is None and self.needs_pipe:
            raise ValueError("pipe must be provided via context or kwargs")
        return None if pipe is None else MPTransport(pipe, timeout=self.options.ack_timeout)


@register_weight_sync_backend("multiprocessing")
@register_weight_sync_backend("process")
class MultiProcessWeightSyncScheme(PipeScheme):
    """A scheme for processes on this machine, each with a ``multiprocessing.Pipe`` to the trainer.

    The weights are copied once into shared memory that belongs to the sender alone, from which every worker reads them.
    The pipe carries ``((model_id, notice), "update_weights")``: once, to a worker that calls ``receive``, ``connect``
    or ``serve``; for every version, to a worker whose own loop reads the pipe and calls ``apply_weights(notice)``. All
    other traffic uses a private socket, and the user's other messages stay in the pipe.

    Example:
        scheme = MultiProcessWeightSyncScheme()                      # in the trainer
        scheme.init_on_sender("policy", pipes=[parent_end, ...], source_model=model)
        scheme.get_sender().send()

        scheme.init_on_worker("policy", pipe=child_end, model=model)      # in a worker
        scheme.get_receiver().receive(timeout=1.0)

    ``init_on_sender`` takes ``pipes``, in the order of the workers' ids, and ``source_model``; ``init_on_worker`` takes
    ``pipe`` and ``model``.

    Raises:
        ConfigError: an option would have no effect here.
    """

    needs_pipe = True

    def __init__(self, strategy: Any = "state_dict", **options: Any) -> None:
        super().__init__(strategy, **options)

    def create_transport(self, pipe_or_context: Any) -> MPTransport:
        """
        Args:
            pipe_or_context: one end of a pipe."""
        return MPTransport(pipe_or_context, timeout=self.options.ack_timeout)

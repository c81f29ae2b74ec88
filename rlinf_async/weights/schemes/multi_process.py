"""Weights for processes of ``multiprocessing``, over their pipes."""

from __future__ import annotations

from typing import Any

from rlinf_async.weights.schemes.scheme import WeightSyncScheme, from_either, model_of, register_weight_sync_backend
from rlinf_async.weights.transports.mp import MPTransport


class PipeScheme(WeightSyncScheme):
    """Base of the schemes for processes that each have a pipe to the trainer."""

    publishes = True

    def init_on_sender(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        """
        Args:
            kwargs: ``pipes``, in the order of the workers' ids; ``source_model``.

        Raises:
            ValueError: there are no pipes.
        """
        pipes = from_either(context, kwargs, "pipes")
        if pipes is None:
            raise ValueError("pipes must be provided via context or kwargs")
        sender = self.create_sender()
        for worker_id, pipe in enumerate(pipes):
            sender._register_worker(worker_id, pipe)
        self._become_sender(sender, model_id, context, kwargs.get("source_model", kwargs.get("model")))

    def init_on_worker(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        """
        Args:
            kwargs: ``pipe``; without it a loop of the worker's own hands its notices to ``apply_weights``.  ``model``.
        """
        receiver = self.create_receiver()
        pipe = from_either(context, kwargs, "pipe")
        if pipe is not None:
            receiver._transport = MPTransport(pipe, timeout=self.options.ack_timeout)
        self._become_receiver(receiver, model_id, context, model_of(context, kwargs, model_id))


@register_weight_sync_backend("multiprocessing")
@register_weight_sync_backend("process")
class MultiProcessWeightSyncScheme(PipeScheme):
    """Synchronises processes of this machine that each have a ``multiprocessing.Pipe`` to the trainer.

    The weights are copied once into shared memory that belongs to the sender alone, and read there by every worker.
    The pipe carries ``((model_id, notice), "update_weights")``: once, to a worker that calls ``receive``, ``connect``
    or ``serve``; for every version to one whose own loop reads the pipe and calls ``apply_weights(notice)``.  All else
    is said over a private socket, and whatever else is sent over the pipe stays in it.

    Example:
        scheme = MultiProcessWeightSyncScheme()                      # in the trainer
        scheme.init_on_sender("policy", pipes=[parent_end, ...], source_model=model)
        scheme.get_sender().send()

        scheme.init_on_worker("policy", pipe=child_end, model=model)      # in a worker
        scheme.get_receiver().receive(timeout=1.0)

    Raises:
        ConfigError: an option would do nothing here.
    """

    def __init__(self, strategy: Any = "state_dict", **options: Any) -> None:
        super().__init__(strategy, **options)

    def init_on_worker(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        """
        Args:
            kwargs: ``pipe``; ``model``.

        Raises:
            ValueError: there is no pipe.
        """
        if from_either(context, kwargs, "pipe") is None:
            raise ValueError("pipe must be provided via context or kwargs")
        super().init_on_worker(model_id, context, **kwargs)

    def create_transport(self, pipe_or_context: Any) -> MPTransport:
        """
        Args:
            pipe_or_context: one end of a pipe.
        """
        return MPTransport(pipe_or_context, timeout=self.options.ack_timeout)

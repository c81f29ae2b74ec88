"""Base of schemes that call their workers' methods."""

from __future__ import annotations

from typing import Any, ClassVar

from rlinf_async.weights.schemes.scheme import WeightSyncScheme, from_either


class HandleScheme(WeightSyncScheme):
    """Sends by calling the workers: their end needs no transport, because the call itself brings the weights."""

    handles: ClassVar[tuple[str, ...]] = ("remote_collectors",)
    """What the workers are called, in the context or among the arguments; the first that is there counts."""

    missing: ClassVar[str] = "remote_collectors must be provided via context or kwargs"

    models: ClassVar[tuple[str, ...]] = ("policy",)
    """Where the worker's model stands in its context."""

    instead: ClassVar[str] = "leave it out, or use MultiProcessWeightSyncScheme or SharedMemWeightSyncScheme"
    """What to do if something is wanted that a call cannot do."""

    def _refuse_options(self) -> None:
        self.options.refuse_others(
            "ack_timeout",
            "policy",  # every version is called with, and applied
            "strict_dtype",
            owner=type(self).__name__,
            why=f"its weights come as the argument of a call, and are copied into the model; {self.instead}",
        )

    def init_on_sender(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        """
        Args:
            kwargs: the workers, in the order of their ids: a worker group, or a list of groups of one rank or of other
                objects with the method that is called; ``source_model``.

        Raises:
            ValueError: there are none.
            ConfigError: an option was given that has no meaning for weights that a call brings.
        """
        self._refuse_options()
        workers = self._workers(model_id, context, kwargs)
        if workers is None:
            raise ValueError(self.missing)
        sender = self.create_sender()
        for worker_id, worker in enumerate(workers):
            sender._register_worker(worker_id, worker)
        self._become_sender(sender, model_id, context, kwargs.get("source_model", kwargs.get("model")))

    def _workers(self, model_id: str, context: Any, kwargs: dict[str, Any]) -> Any:
        return from_either(context, kwargs, *self.handles)

    def init_on_worker(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        """
        Args:
            kwargs: ``model``; by default the context's own.

        Raises:
            ConfigError: as ``init_on_sender``.
        """
        self._refuse_options()
        receiver = self.create_receiver()
        model = kwargs.get("model")
        if model is None and context is not None:
            model = from_either(context, {}, *self.models)
        self._become_receiver(receiver, model_id, context, model)

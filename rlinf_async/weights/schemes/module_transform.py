"""One model that lives in a worker of its own and is shared by everybody: a module transform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rlinf_async.errors import ConfigError
from rlinf_async.group import WorkerGroup
from rlinf_async.weights.model.resolve import _resolve_model
from rlinf_async.weights.schemes.handle_scheme import HandleScheme
from rlinf_async.weights.schemes.receiver import WeightReceiver
from rlinf_async.weights.schemes.scheme import WeightSyncScheme, register_weight_sync_backend
from rlinf_async.weights.schemes.sender import WeightSender
from rlinf_async.weights.transports.actor import WorkerActorTransport
from rlinf_async.weights.transports.transport import TransportBackend


class WorkerModuleTransformSender(WeightSender):
    """Sends to the one worker that hosts the model, which has the id 0.

    That is what stands in the context under the path that is the model's id, ``"env.transform[0]"`` for example, once
    it is needed; else the one that ``init_on_sender`` was given (TorchRL's RayModuleTransformSender).
    """

    def __init__(self, scheme: WeightSyncScheme) -> None:
        super().__init__(scheme)
        self._given: list[Any] = []

    @property
    def worker_ids(self) -> list[int]:
        return [0]

    def _register_worker(self, worker_idx: int, pipe_or_context: Any) -> None:
        """All workers share one host, and may each be said to have it."""
        self._given.append(pipe_or_context)

    def _targets(self, worker_ids: int | Sequence[int] | None) -> dict[int, TransportBackend]:
        if not self._transports:
            context = None if self._context_ref is None else self._context_ref()
            host = host_in(context, self._model_id) if context is not None else None
            if host is None:
                host = the_host(self._given, self._model_id)
            if host is None:
                raise RuntimeError(
                    f"the worker that hosts '{self._model_id}' is not known: init_on_sender() takes actor_refs=, or a "
                    "context in which that path leads to it"
                )
            self._transports[0] = self._scheme.create_transport(host)
        return super()._targets(worker_ids)


def the_host(workers: Sequence[Any], model_id: str) -> Any:
    """The one of these, which may be there several times; None if there is none.

    Raises:
        ConfigError: there are several.
    """
    hosts = {id(worker): worker for worker in workers}
    if len(hosts) > 1:
        raise ConfigError(
            f"'{model_id}' is hosted by one worker, and {len(hosts)} were given: give the one that has it. To workers "
            "that have a model each, WorkerWeightSyncScheme sends"
        )
    return next(iter(hosts.values()), None)


def host_in(context: Any, path: str) -> Any:
    """The worker, or what has one as its ``_actor``, that stands there; None if that leads to something else."""
    try:
        host = _resolve_model(context, path)
    except (AttributeError, IndexError, KeyError, TypeError):
        return None
    is_host = isinstance(host, WorkerGroup) or hasattr(host, "_actor") or type(host).__name__ == "ActorHandle"
    return host if is_host else None


class WorkerModuleTransformReceiver(WeightReceiver):
    """Applies what the calls to this worker bring; the end of the call is the acknowledgement (TorchRL's
    RayModuleTransformReceiver)."""

    async def _answer(self, how: str, what: Any) -> None:
        pass


@register_weight_sync_backend("module_transform")
class WorkerModuleTransformScheme(HandleScheme):
    """Synchronises a model that is hosted by a worker (TorchRL's RayModuleTransformScheme).

    The worker has public methods ``update_weights_tensordict(params)`` or ``update_weights_state_dict(state_dict)``,
    according to the strategy, in which it calls ``receiver.apply_weights``.

    Args:
        strategy: ``"tensordict"`` or ``"state_dict"``.
        options: ``ack_timeout``; ``strict_dtype``.  ``apply="map"`` and others are refused: what a call brings is
            copied.

    Raises:
        ConfigError: ``init_on_sender`` was given several workers, of which none is the host.
    """

    handles: ClassVar[tuple[str, ...]] = ("actor_refs", "actors", "remote_collectors")
    missing: ClassVar[str] = "actor_refs (or actors) must be provided via context or kwargs"
    models: ClassVar[tuple[str, ...]] = ("_actor_module", "module")

    def __init__(self, strategy: Any = "tensordict", **options: Any) -> None:
        super().__init__(strategy, **options)

    def _workers(self, model_id: str, context: Any, kwargs: dict[str, Any]) -> Any:
        found = super()._workers(model_id, context, kwargs)
        if context is None:
            return found if found is None else [the_host(list(found), model_id)]
        if found is not None:
            return found  # while the path may come to lead to the host later
        host = host_in(context, model_id)
        return None if host is None else [host]

    def create_transport(self, pipe_or_context: Any) -> WorkerActorTransport:
        """
        Args:
            pipe_or_context: the worker, or an object with the worker as its ``_actor``.
        """
        actor = pipe_or_context
        if not isinstance(actor, WorkerGroup) and hasattr(actor, "_actor"):
            actor = actor._actor
        return WorkerActorTransport(actor, self.strategy, timeout=self.options.ack_timeout)

    def create_sender(self) -> WorkerModuleTransformSender:
        return WorkerModuleTransformSender(self)

    def create_receiver(self) -> WorkerModuleTransformReceiver:
        return WorkerModuleTransformReceiver(self)


# TorchRL's names, without Ray and with it.
ModuleTransformReceiver = WorkerModuleTransformReceiver
ModuleTransformScheme = WorkerModuleTransformScheme
ModuleTransformSender = WorkerModuleTransformSender
RayModuleTransformReceiver = WorkerModuleTransformReceiver
RayModuleTransformScheme = WorkerModuleTransformScheme
RayModuleTransformSender = WorkerModuleTransformSender

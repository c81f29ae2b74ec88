"""Schemes that call workers: each worker remotely, or one worker that hosts the model for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from rlinf_async.errors import ConfigError
from rlinf_async.group import WorkerGroup
from rlinf_async.weights.schemes.configuration import Configuration, _resolve_model
from rlinf_async.weights.schemes.receiver import WeightReceiver
from rlinf_async.weights.schemes.scheme import WeightSyncScheme, from_either, register_weight_sync_backend
from rlinf_async.weights.schemes.sender import WeightSender
from rlinf_async.weights.transports.call_transports import RPCTransport, WorkerActorTransport
from rlinf_async.weights.transports.transport import TransportBackend


class CallingScheme(WeightSyncScheme):
    """A scheme that sends by calling the workers, which need no transport because the call carries the weights.

    ``init_on_sender`` takes the workers, in the order of their ids: a worker group, or a list of groups of one rank or
    of other objects with the called method; and ``source_model``. ``init_on_worker`` takes ``model``, by default the
    context's model. Both raise ``ConfigError`` for options that have no effect on such weights.

    Attributes:
        handles: names under which the context or the arguments may hold the workers; the first one present is used.
        missing: error text if none of these names is present.
        models: names under which the worker's context may hold its model.
        instead: advice for an option that a call cannot support.
    """

    handles: ClassVar[tuple[str, ...]] = ("remote_collectors",)
    missing: ClassVar[str] = "remote_collectors must be provided via context or kwargs"
    models: ClassVar[tuple[str, ...]] = ("policy",)
    instead: ClassVar[str] = "leave it out, or use MultiProcessWeightSyncScheme or SharedMemWeightSyncScheme"

    def _refuse_options(self) -> None:
        self.options.refuse_others(
            "ack_timeout",
            "strict_dtype",
            owner=type(self).__name__,
            why=f"its weights come as the argument of a call, and are copied into the model; {self.instead}",
        )

    def _ways_to_workers(self, model_id: str, context: Any, kwargs: dict[str, Any]) -> Any:
        self._refuse_options()
        workers = self._workers(model_id, context, kwargs)
        return None if workers is None else enumerate(workers)

    def _workers(self, model_id: str, context: Any, kwargs: dict[str, Any]) -> Any:
        return from_either(context, kwargs, *self.handles)

    def _way_to_sender(self, context: Any, kwargs: dict[str, Any]) -> TransportBackend | None:
        self._refuse_options()
        return None

    def _model_of(self, model_id: str, context: Any, kwargs: dict[str, Any]) -> Any:
        model = kwargs.get("model")
        return from_either(context, {}, *self.models) if model is None and context is not None else model


@register_weight_sync_backend("rpc")
class RPCWeightSyncScheme(CallingScheme):
    """A scheme that calls the workers' ``update_policy_weights_`` remotely; see ``RPCTransport``.

    It takes the option ``ack_timeout``, and refuses options such as ``apply="map"``, because a call copies its
    argument.
    """

    missing: ClassVar[str] = "remote_collectors (or collector_infos) must be provided via context or kwargs"

    def create_transport(self, pipe_or_context: Any) -> RPCTransport:
        """
        Args:
            pipe_or_context: a group of one rank, or torch's ``(collector_info, collector_rref, collector_class)``; None
                for no worker.

        Raises:
            ConfigError: the argument is something else, which cannot be called.
        """
        is_triple = isinstance(pipe_or_context, tuple) and len(pipe_or_context) == 3
        info, rref, collector_class = pipe_or_context if is_triple else (pipe_or_context, None, None)
        is_torchs = None not in (info, rref) and hasattr(collector_class, "update_policy_weights_")
        if not (isinstance(info, WorkerGroup) or is_torchs or pipe_or_context is None):
            raise ConfigError(
                f"{pipe_or_context!r} cannot be called by RPCWeightSyncScheme: a worker is a group of one rank, or is "
                "found by collector_infos=, collector_rrefs= and collector_class= (which has update_policy_weights_) "
                "together; other objects are called by WorkerWeightSyncScheme"
            )
        return RPCTransport(info, rref, collector_class, timeout=self.options.ack_timeout)

    def _workers(self, model_id: str, context: Any, kwargs: dict[str, Any]) -> Any:
        found = super()._workers(model_id, context, kwargs)
        if found is not None:
            return found
        infos, rrefs, collector_class = (
            from_either(context, kwargs, name) for name in ("collector_infos", "collector_rrefs", "collector_class")
        )
        if infos is None or rrefs is None:
            return infos
        return [(info, rref, collector_class) for info, rref in zip(infos, rrefs, strict=True)]


class WorkerModuleTransformSender(WeightSender):
    """A sender to the one worker that hosts the model. This worker has id 0.

    At first use, the worker is looked up in the context under the model's id (``"env.transform[0]"``); if it is not
    there, the worker given to ``init_on_sender`` is used (TorchRL's RayModuleTransformSender).
    """

    def __init__(self, scheme: Configuration) -> None:
        super().__init__(scheme)
        self._given: list[Any] = []

    @property
    def worker_ids(self) -> list[int]:
        return [0]

    def _register_worker(self, worker_idx: int, pipe_or_context: Any) -> None:
        """Add a candidate: all workers share one host, and any of them may be the host."""
        self._given.append(pipe_or_context)

    def _targets(self, worker_ids: int | Sequence[int] | None) -> dict[int, TransportBackend]:
        if not self._transports:
            context = None if self._context_ref is None else self._context_ref()
            host = _host_in(context, self._model_id)
            if host is None and (host := _the_host(self._given, self._model_id)) is None:
                raise RuntimeError(
                    f"the worker that hosts '{self._model_id}' is not known: init_on_sender() takes actor_refs=, or a "
                    "context in which that path leads to it"
                )
            self._transports[0] = self._scheme.create_transport(host)
        return super()._targets(worker_ids)


class WorkerModuleTransformReceiver(WeightReceiver):
    """A receiver of weights that calls pass to this worker; a call that returns has acknowledged them (TorchRL's
    RayModuleTransformReceiver)."""


@register_weight_sync_backend("module_transform")
class WorkerModuleTransformScheme(CallingScheme):
    """A scheme for a model hosted by one worker (TorchRL's RayModuleTransformScheme).

    The worker has a public method ``update_weights_tensordict(params)`` or ``update_weights_state_dict(state_dict)``,
    depending on the strategy, which calls ``receiver.apply_weights``.

    Args:
        strategy: ``"tensordict"`` or ``"state_dict"``.
        options: ``ack_timeout`` and ``strict_dtype``. Others, such as ``apply="map"``, are refused, because a call
            copies its argument.

    Raises:
        ConfigError: ``init_on_sender`` was given several workers, none of which is the host.
    """

    handles: ClassVar[tuple[str, ...]] = ("actor_refs", "actors", "remote_collectors")
    missing: ClassVar[str] = "actor_refs (or actors) must be provided via context or kwargs"
    models: ClassVar[tuple[str, ...]] = ("_actor_module", "module")

    def __init__(self, strategy: Any = "tensordict", **options: Any) -> None:
        super().__init__(strategy, **options)

    def _workers(self, model_id: str, context: Any, kwargs: dict[str, Any]) -> Any:
        found = super()._workers(model_id, context, kwargs)
        if found is None:
            host = _host_in(context, model_id)
            return None if host is None else [host]
        # Refuse several workers in a context only at first use, because by then the path may resolve to the host.
        return found if context is not None else [_the_host(found, model_id)]

    def create_transport(self, pipe_or_context: Any) -> WorkerActorTransport:
        """
        Args:
            pipe_or_context: the worker, or an object whose ``_actor`` is the worker."""
        is_wrapped = not isinstance(pipe_or_context, WorkerGroup) and hasattr(pipe_or_context, "_actor")
        actor = pipe_or_context._actor if is_wrapped else pipe_or_context
        return WorkerActorTransport(actor, self.strategy, timeout=self.options.ack_timeout)

    def create_sender(self) -> WorkerModuleTransformSender:
        return WorkerModuleTransformSender(self)

    def create_receiver(self) -> WorkerModuleTransformReceiver:
        return WorkerModuleTransformReceiver(self)


def _the_host(workers: Iterable[Any], model_id: str) -> Any:
    """Return the only worker in ``workers``, which may contain it several times; None if there is none."""
    hosts = {id(worker): worker for worker in workers}
    if len(hosts) > 1:
        raise ConfigError(
            f"'{model_id}' is hosted by one worker, and {len(hosts)} were given: give the one that has it. To workers "
            "that have a model each, WorkerWeightSyncScheme sends"
        )
    return next(iter(hosts.values()), None)


def _host_in(context: Any, path: str) -> Any:
    """Return the worker, or the object whose ``_actor`` is one, at that path; None for anything else."""
    try:
        host = _resolve_model(context, path)
    except (AttributeError, IndexError, KeyError, TypeError):
        return None
    is_host = isinstance(host, WorkerGroup) or hasattr(host, "_actor") or type(host).__name__ == "ActorHandle"
    return host if is_host else None


# TorchRL's names, with and without Ray.
ModuleTransformReceiver = RayModuleTransformReceiver = WorkerModuleTransformReceiver
ModuleTransformScheme = RayModuleTransformScheme = WorkerModuleTransformScheme
ModuleTransformSender = RayModuleTransformSender = WorkerModuleTransformSender

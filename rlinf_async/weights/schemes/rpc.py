"""Weights that are delivered by a remote call: the framework's, or torch.distributed.rpc's."""

from __future__ import annotations

from typing import Any, ClassVar

from rlinf_async.group import WorkerGroup
from rlinf_async.weights.schemes.handle_scheme import HandleScheme
from rlinf_async.weights.schemes.scheme import from_either, register_weight_sync_backend
from rlinf_async.weights.transports.calls import CallTransport, detached, is_reachable, method_of, nothing, told
from rlinf_async.work import Work


class RPCTransport(CallTransport):
    """The way to one worker by remote call.

    Of this framework: ``collector_info`` is the worker, a group of one rank, and its ``update_policy_weights_`` is
    called.  Of torch.distributed.rpc, which torch maintains no more: ``collector_info`` says which process,
    ``collector_rref`` which object there, and ``collector_class.update_policy_weights_`` is called with that; where one
    of the first two is missing, sending does nothing.  A method that has a parameter ``version`` is told it.

    Args:
        timeout: seconds that the worker has to take the weights.
    """

    def __init__(
        self,
        collector_info: Any = None,
        collector_rref: Any = None,
        collector_class: Any = None,
        *,
        timeout: float | None = 60.0,
    ) -> None:
        super().__init__(timeout)
        self._collector_info = collector_info
        self._collector_rref = collector_rref
        self._collector_class = collector_class

    def __repr__(self) -> str:
        return f"<RPCTransport to {self._collector_info!r}>"

    def _describe(self) -> str:
        return f"update_policy_weights_() of {self._collector_info!r}"

    @property
    def callee(self) -> Any:
        info = self._collector_info
        return None if self._collector_rref is None and not isinstance(info, WorkerGroup) else info

    @property
    def how(self) -> Any:
        return self._collector_class

    def call(self, callee: Any, weights: Any, version: int | None = None) -> Any:
        if isinstance(callee, WorkerGroup):
            more = told(method_of(callee, "update_policy_weights_"), version)
            return callee.update_policy_weights_(policy_or_weights=weights, **more)
        from torch.distributed import rpc

        update = self._collector_class.update_policy_weights_
        args = self._collector_rref, detached(weights)
        return _TorchCall(rpc.rpc_async(callee, update, args=args, kwargs=told(update, version)))

    def wait_ack(self) -> Any:
        """Waits for the end of the call; without one it returns at once."""
        return super().wait_ack() if self.is_pending else self._bridge.run(nothing(), self._describe())

    def check_connection(self) -> bool:
        if isinstance(self._collector_info, WorkerGroup):
            return is_reachable(self._collector_info)
        from torch.distributed import rpc

        is_initialized = getattr(rpc, "is_initialized", None)
        return bool(is_initialized()) if is_initialized is not None else True


class _TorchCall(Work[Any]):
    """A call of torch.distributed.rpc."""

    def __init__(self, future: Any) -> None:
        super().__init__()
        future.add_done_callback(self._ended)

    def _describe(self) -> str:
        return "a call of torch.distributed.rpc"

    def _ended(self, future: Any) -> None:
        try:
            self._settle(future.value())
        except Exception as error:
            self._settle(error=error)


@register_weight_sync_backend("rpc")
class RPCWeightSyncScheme(HandleScheme):
    """Synchronises by remote calls of the workers' ``update_policy_weights_``; see ``RPCTransport``.

    Of the options it takes ``ack_timeout``; ``apply="map"`` and others are refused: what a call brings is copied.
    """

    missing: ClassVar[str] = "remote_collectors (or collector_infos) must be provided via context or kwargs"

    def create_transport(self, pipe_or_context: Any) -> RPCTransport:
        """
        Args:
            pipe_or_context: a group of one rank, or torch's ``(collector_info, collector_rref, collector_class)``.
        """
        timeout = self.options.ack_timeout
        if isinstance(pipe_or_context, tuple) and len(pipe_or_context) == 3:
            return RPCTransport(*pipe_or_context, timeout=timeout)
        return RPCTransport(pipe_or_context, timeout=timeout)

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

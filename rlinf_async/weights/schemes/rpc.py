"""Weights that are delivered by a remote call: the framework's, or torch.distributed.rpc's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from rlinf_async.errors import ClosedError, ConfigError
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
    of the first two is missing, sending does nothing.  A method that has a parameter ``version`` is told it.  Torch can
    take back no call and runs several in any order: one begins when the one before it has ended, also one that was
    given up.

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
        # Without torch's deadline: the transport has one of its own, and the end of a late call has to be known.
        begin = functools.partial(rpc.rpc_async, callee, update, args=args, kwargs=told(update, version), timeout=0)
        before = self._open.last if isinstance(self._open, _TorchCall) else None
        return _TorchCall(begin, self._describe(), before)

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
    """A call of torch.distributed.rpc.

    Args:
        begin: makes it; returns torch's future.
        before: the call that has to end first.
    """

    def __init__(self, begin: Callable[[], Any], what: str, before: _TorchCall | None) -> None:
        super().__init__()
        self._begin: Callable[[], Any] | None = begin
        self._what = what
        self._before = before
        self._has_begun = False
        if before is None:
            self._go()
        else:
            before._follow(self._go)

    def _describe(self) -> str:
        if self._has_begun:
            return self._what
        return f"{self._what}, which waits for the end of an earlier call,"

    @property
    def last(self) -> _TorchCall | None:
        """This one; or, if it will not begin, the last one before it that has begun or will."""
        call: _TorchCall | None = self
        while call is not None and not call._has_begun and call._begin is None:
            call = call._before
        return call

    def _abandon(self) -> None:
        self._begin = None  # and with it the weights; what has begun goes on

    def _go(self) -> None:
        begin, self._before = self._begin, None
        if begin is None:
            self._settle(error=ClosedError(f"{self._what} was given up before it began"))
            return
        self._has_begun, self._begin = True, None
        try:
            begin().add_done_callback(self._ended)
        except Exception as error:
            self._settle(error=error)

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
            pipe_or_context: a group of one rank, or torch's ``(collector_info, collector_rref, collector_class)``; None
                for nobody.

        Raises:
            ConfigError: it is something else, so that nobody could be called.
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

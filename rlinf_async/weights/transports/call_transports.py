"""Transports that call a method of a worker: of its collector, of a model that it hosts, or through torch's rpc."""

from __future__ import annotations

from typing import Any, Final

from rlinf_async.group import WorkerGroup
from rlinf_async.weights.transports.calls import CallTransport, detached, method_of, told
from rlinf_async.weights.waiting.execution import at_once
from rlinf_async.work import Work

_METHODS: Final = {
    "tensordict": ("_update_weights_tensordict", "params"),
    "state_dict": ("_update_weights_state_dict", "state_dict"),
}


class WorkerTransport(CallTransport):
    """A transport to a worker with a method ``update_policy_weights_(policy_or_weights)`` (TorchRL's RayTransport).

    If the method also has a parameter ``version``, it receives the version, and may pass both on to
    ``receiver.apply_weights``. ``model_id`` is not forwarded, because the worker knows its model. ``send_weights`` and
    ``wait_ack`` raise the method's errors.

    Args:
        remote_collector: the worker: a group of one rank, ``group[3]``, or any object with that method. Without a
            worker, a send does nothing.
        tensor_transport: accepted for TorchRL's callers; the framework chooses how tensors are sent.
        timeout: seconds within which the worker must accept the weights.
    """

    callee: Any = None
    how: Any = None

    def __init__(
        self, remote_collector: Any = None, tensor_transport: str = "object_store", *, timeout: float | None = 60.0
    ) -> None:
        super().__init__(timeout)
        self.callee = remote_collector
        self._tensor_transport = tensor_transport

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.callee!r}>"

    def _describe(self) -> str:
        return f"{self._method[0]}() of {self.callee!r}"

    @property
    def _method(self) -> tuple[str, str]:
        """Names of the method and of its argument."""
        return "update_policy_weights_", "policy_or_weights"

    def call(self, callee: Any, weights: Any, version: int | None = None) -> Any:
        name, argument = self._method
        name = name.removeprefix("_") if isinstance(callee, WorkerGroup) else name
        return getattr(callee, name)(**{argument: weights}, **told(method_of(callee, name), version))


class WorkerActorTransport(WorkerTransport):
    """A transport to a model inside a worker, instead of the worker's collector (TorchRL's RayActorTransport).

    It calls the actor's ``_update_weights_tensordict(params=...)`` or ``_update_weights_state_dict(state_dict=...)``. A
    worker group's methods with a leading underscore cannot be called from outside, so for a group the underscore is
    omitted. A method with a parameter ``version`` receives the version.

    Args:
        actor_ref: a group of one rank, or any object with these methods. Without an actor, a send does nothing.
        update_method: ``"tensordict"`` or ``"state_dict"``.
        tensor_transport: accepted for TorchRL's callers; the framework chooses how tensors are sent.
        timeout: seconds within which the actor must accept the weights.
    """

    def __init__(
        self,
        actor_ref: Any = None,
        update_method: str = "tensordict",
        tensor_transport: str = "object_store",
        *,
        timeout: float | None = 60.0,
    ) -> None:
        super().__init__(actor_ref, tensor_transport, timeout=timeout)
        self.how = update_method

    def set_actor(self, actor_ref: Any) -> None:
        self.callee = actor_ref

    @property
    def _method(self) -> tuple[str, str]:
        if self.how not in _METHODS:
            raise ValueError(f"Unknown update method: {self.how}")
        return _METHODS[self.how]

    def send_ack(self, message: str = "updated") -> Any:
        """Do nothing, because the end of the call is the acknowledgement."""
        return at_once()

    def check_ack(self, message: str = "updated") -> Any:
        """Do nothing, because the end of the call is the acknowledgement."""
        return at_once()


class RPCTransport(WorkerTransport):
    """A transport to one worker by remote calls of this framework or of torch.distributed.rpc.

    For a worker of this framework, ``collector_info`` is a group of one rank, whose ``update_policy_weights_`` is
    called. For torch.distributed.rpc, which torch no longer maintains, ``collector_info`` names the process and
    ``collector_rref`` the object in it with which ``collector_class.update_policy_weights_`` is called; if either is
    missing, a send does nothing. A method with a parameter ``version`` receives the version. Torch cannot cancel calls,
    and runs them in any order; ``receiver.apply_weights``, given the version, refuses older weights.

    Args:
        timeout: seconds within which the worker must accept the weights.
    """

    def __init__(
        self,
        collector_info: Any = None,
        collector_rref: Any = None,
        collector_class: Any = None,
        *,
        timeout: float | None = 60.0,
    ) -> None:
        is_known = collector_rref is not None or isinstance(collector_info, WorkerGroup)
        super().__init__(collector_info if is_known else None, timeout=timeout)
        self._object = collector_rref
        self.how = collector_class

    def call(self, callee: Any, weights: Any, version: int | None = None) -> Any:
        if isinstance(callee, WorkerGroup):
            return super().call(callee, weights, version)
        from torch.distributed import rpc

        update = self.how.update_policy_weights_
        args = self._object, detached(weights)
        # Disable torch's deadline, because the transport has its own.
        future = rpc.rpc_async(callee, update, args=args, kwargs=told(update, version), timeout=0)
        return _TorchCall(future, self._describe())

    def wait_ack(self) -> Any:
        """Wait for the end of the call; if there is none, return immediately."""
        return super().wait_ack() if self.is_pending else at_once()


class _TorchCall(Work[Any]):
    """A call of torch.distributed.rpc, which cannot be cancelled.

    Args:
        future: torch's future.
    """

    def __init__(self, future: Any, what: str) -> None:
        super().__init__()
        self._what = what
        future.add_done_callback(self._ended)

    def _describe(self) -> str:
        return self._what

    def _ended(self, future: Any) -> None:
        try:
            self._settle(future.value())
        except Exception as error:
            self._settle(error=error)


# TorchRL's names.
RayTransport = WorkerTransport
RayActorTransport = WorkerActorTransport

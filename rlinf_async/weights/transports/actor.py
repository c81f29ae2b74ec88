"""Weights that are delivered by calling the update method of a worker that hosts one model."""

from __future__ import annotations

from typing import Any, Final

from rlinf_async.group import WorkerGroup
from rlinf_async.weights.transports.calls import CallTransport, method_of, told
from rlinf_async.weights.waiting.bridge import at_once

_METHODS: Final = {
    "tensordict": ("_update_weights_tensordict", "params"),
    "state_dict": ("_update_weights_state_dict", "state_dict"),
}


class WorkerActorTransport(CallTransport):
    """The way to a model inside a worker, not to its collector (TorchRL's RayActorTransport).

    It calls ``_update_weights_tensordict(params=...)`` or ``_update_weights_state_dict(state_dict=...)`` of the actor.
    Methods with a leading underscore of a worker group cannot be called from outside, so there it calls those names
    without it.  One that has a parameter ``version`` is told it.

    Args:
        actor_ref: a group of one rank, or any object with these methods.  Without one, sending does nothing.
        update_method: ``"tensordict"`` or ``"state_dict"``.
        tensor_transport: for callers of TorchRL's; where tensors travel is the framework's choice.
        timeout: seconds that the actor has to take the weights.
    """

    def __init__(
        self,
        actor_ref: Any = None,
        update_method: str = "tensordict",
        tensor_transport: str = "object_store",
        *,
        timeout: float | None = 60.0,
    ) -> None:
        super().__init__(timeout)
        self._actor_ref = actor_ref
        self._update_method = update_method
        self._tensor_transport = tensor_transport

    def __repr__(self) -> str:
        return f"<WorkerActorTransport to {self._actor_ref!r}>"

    def set_actor(self, actor_ref: Any) -> None:
        self._actor_ref = actor_ref

    def _describe(self) -> str:
        return f"the update of the {self._update_method} of {self._actor_ref!r}"

    @property
    def callee(self) -> Any:
        return self._actor_ref

    @property
    def how(self) -> str:
        return self._update_method

    def call(self, callee: Any, weights: Any, version: int | None = None) -> Any:
        if self._update_method not in _METHODS:
            raise ValueError(f"Unknown update method: {self._update_method}")
        name, argument = _METHODS[self._update_method]
        name = name.removeprefix("_") if isinstance(callee, WorkerGroup) else name
        return getattr(callee, name)(**{argument: weights}, **told(method_of(callee, name), version))

    def send_ack(self, message: str = "updated") -> Any:
        """Nothing: the end of the call says it."""
        return at_once(f"the answer of {self!r}")

    def check_ack(self, message: str = "updated") -> Any:
        """Nothing: the end of the call says it."""
        return at_once(f"the answer to {self!r}")


RayActorTransport = WorkerActorTransport
"""TorchRL's name."""

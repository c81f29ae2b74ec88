"""``SharedMemTransport``: holds a sender's registered weights and its workers' pipes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf_async.weights.model.param_tree import ParamTree, is_tensordict
from rlinf_async.weights.model.writing import plan_update
from rlinf_async.weights.transports.calls import copied
from rlinf_async.weights.transports.transport import SilentTransport
from rlinf_async.weights.waiting.execution import at_once

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class SharedMemTransport(SilentTransport):
    """A transport that holds each model's registered weights, and the pipes of the workers to notify.

    Within a scheme the workers read the memory that the sender has packed, which
    ``SharedMemWeightSyncScheme.policy_weights`` shows. By itself this transport writes to the registered weights, in
    the calling thread, and notifies no worker.

    Args:
        policy_weights: maps each model id to a TensorDict.
        auto_register: True to register a model when it is first sent, with a copy of the sent weights.

    Raises:
        ValueError: a value is not a TensorDict.
    """

    def __init__(self, policy_weights: dict[str, Any] | None = None, auto_register: bool = True) -> None:
        self.registered: dict[str, Any] = {}
        self._auto_register = auto_register
        self.pipes: list[Connection[Any, Any]] = []
        for model_id, weights in (policy_weights or {}).items():
            self.register_weights(model_id, weights)

    def __repr__(self) -> str:
        return f"<SharedMemTransport of {', '.join(self.registered) or 'no model'} to {len(self.pipes)} pipes>"

    def register_pipe(self, pipe: Connection[Any, Any]) -> None:
        """Add a worker's pipe. Idempotent."""
        if pipe not in self.pipes:
            self.pipes.append(pipe)

    def register_weights(self, model_id: str, weights: Any) -> None:
        """Register a model's weights.

        Raises:
            ValueError: the weights are not a TensorDict.
            RuntimeError: the model is already registered.
        """
        if not is_tensordict(weights):
            raise ValueError(f"Weights must be a TensorDictBase, got {type(weights)}")
        if model_id in self.registered:
            raise RuntimeError("Re-registering weights is not supported.")
        self.registered[model_id] = weights

    def check_registered(self, model_id: str) -> None:
        """Check that a model is registered, or that a send would register it.

        Raises:
            KeyError: the model is not registered, and a send would not register it.
        """
        if not self._auto_register and model_id not in self.registered:
            raise KeyError(f"Model '{model_id}' not registered, and auto_register is off: register_weights() first")

    def send_weights(self, model_id: str, weights: Any) -> Any:
        """Write weights into the registered ones; in a coroutine, return a completed ``Work``.

        Raises:
            KeyError: the model is not registered, and a send does not register it; or the weights do not fit. Nothing
                was written.
            ValueError: the weights are neither a dict nor a TensorDict.
        """
        self.check_registered(model_id)
        if model_id in self.registered:
            if self.registered[model_id] is not weights:
                plan_update(self.registered[model_id], weights).write()
        elif isinstance(weights, dict) or is_tensordict(weights):
            copy = copied(ParamTree.of(weights).to_nested())
            self.registered[model_id] = ParamTree.of(copy).to_tensordict() if is_tensordict(weights) else copy
        else:
            raise ValueError(f"Unsupported weights type: {type(weights)}. Expected dict or TensorDictBase.")
        return at_once()

    def close(self) -> Any:
        """Do nothing, because registered weights stay."""
        return at_once()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the pipes, which belong to one process."""
        return {**self.__dict__, "pipes": []}

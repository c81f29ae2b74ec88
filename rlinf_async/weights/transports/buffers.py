"""``SharedMemTransport``: registered weights of a sender and its workers, by model."""

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
    """Registered weights by model, and the pipes of the workers that are told of them.

    Within a scheme the workers read what the sender has packed, and ``SharedMemWeightSyncScheme.policy_weights`` shows
    it.  By itself this transport writes into what was registered, in the calling thread, and tells nobody.

    Args:
        policy_weights: TensorDicts by model id.
        auto_register: whether a model that is sent for the first time is registered, with a copy of what is sent.

    Raises:
        ValueError: one of them is no TensorDict.
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
        """A worker's; a second time is nothing."""
        if pipe not in self.pipes:
            self.pipes.append(pipe)

    def register_weights(self, model_id: str, weights: Any) -> None:
        """
        Raises:
            ValueError: they are no TensorDict.
            RuntimeError: the model is registered already."""
        if not is_tensordict(weights):
            raise ValueError(f"Weights must be a TensorDictBase, got {type(weights)}")
        if model_id in self.registered:
            raise RuntimeError("Re-registering weights is not supported.")
        self.registered[model_id] = weights

    def check_registered(self, model_id: str) -> None:
        """
        Raises:
            KeyError: the model is not registered, and is not by being sent."""
        if not self._auto_register and model_id not in self.registered:
            raise KeyError(f"Model '{model_id}' not registered, and auto_register is off: register_weights() first")

    def send_weights(self, model_id: str, weights: Any) -> Any:
        """Writes them into what is registered; in a coroutine a ``Work`` that is done.

        Raises:
            KeyError: the model is not registered, and is not by being sent; or they do not fit: nothing was written.
            ValueError: they are neither a dict nor a TensorDict.
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
        """Nothing: what is registered stays."""
        return at_once()

    def __getstate__(self) -> dict[str, Any]:
        """Without the pipes, which belong to one process."""
        return {**self.__dict__, "pipes": []}

"""``SharedMemTransport``: a sender's buffers, one per model, which show what was sent last."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.model.param_tree import ParamTree, is_tensordict
from rlinf_async.weights.model.partial import TELL_THE_MODEL
from rlinf_async.weights.model.writing import Update, plan_update
from rlinf_async.weights.transports.calls import copied, nothing
from rlinf_async.weights.waiting.aside import Aside
from rlinf_async.weights.waiting.bridge import Bridge, at_once

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_COPYING: Final = "weights of a buffer"


class SharedMemTransport:
    """What a sender and its workers share, by model.

    A registered buffer shows what was sent last, or, if that did not fit, what was sent before.  It is written in a
    thread, unless it is small: it is whole again once the send that writes it has ended, or ``send_async`` has.  The
    workers do not read that one: what they get is a version in memory that nobody writes to while they do.

    Args:
        policy_weights: buffers by model id.
        auto_register: whether a model that is sent for the first time gets a buffer, a copy of what is sent.

    Raises:
        ValueError: a buffer is no TensorDict.
    """

    def __init__(self, policy_weights: dict[str, Any] | None = None, auto_register: bool = True) -> None:
        self._buffers: dict[str, Any] = {}
        self._auto_register = auto_register
        self._bridge, self._aside = Bridge(), Aside(_COPYING)
        self.pipes: list[Connection[Any, Any]] = []
        self.registered: set[str] = set()
        """Models whose buffers were given, and not made here: their workers are told of that."""
        for model_id, weights in (policy_weights or {}).items():
            self.register_weights(model_id, weights)

    def __repr__(self) -> str:
        return f"<SharedMemTransport of {', '.join(self._buffers) or 'no model'} to {len(self.pipes)} pipes>"

    def register_pipe(self, pipe: Connection[Any, Any]) -> None:
        """A worker's; a second time is nothing."""
        if pipe not in self.pipes:
            self.pipes.append(pipe)

    def register_weights(self, model_id: str, weights: Any) -> None:
        """
        Raises:
            ValueError: they are no TensorDict.
            RuntimeError: the model has a buffer already.
        """
        if not is_tensordict(weights):
            raise ValueError(f"Weights must be a TensorDictBase, got {type(weights)}")
        if model_id in self._buffers:
            raise RuntimeError("Re-registering weights is not supported.")
        self._buffers[model_id] = weights
        self.registered.add(model_id)

    def send_weights(self, model_id: str, weights: Any) -> Any:
        """Writes them into the model's buffer; in a coroutine a ``Work``, during which they must not change.

        Raises:
            KeyError: the model has no buffer, and gets none by itself; or they do not fit, and nothing was written.
            ValueError: they are neither a dict nor a TensorDict.
        """
        return self._bridge.run(self.plan(model_id, weights)(), f"the buffer of '{model_id}'")

    def plan(self, model_id: str, weights: Any, first: Any = None) -> Callable[[], Coroutine[Any, Any, None]]:
        """What ``send_weights`` does once its errors are out of the way: to be called and awaited.

        Args:
            first: what a model without a buffer gets one of, if these are only some of its weights.
        """
        buffer = self._buffers.get(model_id)
        if buffer is weights and buffer is not None:
            return nothing
        if buffer is not None:
            update = self._update(model_id, weights)
            nbytes, write = sum(target.nbytes for target in update.targets), update.write
        elif not self._auto_register:
            raise KeyError(f"Model '{model_id}' not registered, and auto_register is off: register_weights() first")
        elif not isinstance(weights, dict) and not is_tensordict(weights):
            raise ValueError(f"Unsupported weights type: {type(weights)}. Expected dict or TensorDictBase.")
        else:
            tree = ParamTree.of(weights if first is None else first)
            nbytes, write = tree.nbytes, partial(self._begin, model_id, weights, tree)
        return lambda: self._aside.do(write, nbytes=nbytes)

    def _update(self, model_id: str, weights: Any) -> Update:
        try:
            return plan_update(self._buffers[model_id], weights)
        except WeightMismatch as error:
            error.add_note(f"the buffer of '{model_id}' has what was registered or sent first; {TELL_THE_MODEL}")
            raise

    def _begin(self, model_id: str, weights: Any, tree: ParamTree) -> None:
        if model_id in self._buffers:  # made since this was planned
            self._update(model_id, weights).write()
            return
        copy = copied(tree.to_nested())
        self._buffers[model_id] = ParamTree.of(copy).to_tensordict() if is_tensordict(weights) else copy

    def buffer(self, model_id: str) -> Any:
        """A model's; None if it has none."""
        return self._buffers.get(model_id)

    def receive_weights(self, timeout: float = 1.0) -> Any:
        """None: they do not come as a message."""
        return self._bridge.run(nothing(), "nothing")

    def send_ack(self, message: str = "updated") -> Any:
        """Nothing: the workers answer over their pipes."""
        return at_once("nothing")

    def check_ack(self, message: str = "updated") -> Any:
        """Nothing: the workers answer over their pipes."""
        return at_once("nothing")

    def check_connection(self) -> bool:
        return True

    def close(self) -> Any:
        """Waits for the end of what is being written, and gives the thread back; the buffers stay.  In a coroutine a
        ``Work``."""
        work = self._bridge.run(self._aside.end(), f"the closing of {self!r}")
        self._bridge.release()
        return work

    def __getstate__(self) -> dict[str, Any]:
        """Without the pipes, which belong to one process."""
        return {**self.__dict__, "pipes": [], "_bridge": None, "_aside": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bridge, self._aside = Bridge(), Aside(_COPYING)

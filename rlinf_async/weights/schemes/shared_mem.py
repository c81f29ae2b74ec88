"""Weights in shared memory: one transport for all workers of a machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from rlinf_async.errors import WeightMismatch
from rlinf_async.weights.model.param_tree import ParamTree, is_tensordict
from rlinf_async.weights.model.writing import plan_update
from rlinf_async.weights.schemes.options import NOTHING_TRAVELS
from rlinf_async.weights.schemes.scheme import WeightSyncScheme, from_either, model_of, register_weight_sync_backend
from rlinf_async.weights.schemes.sender import WeightSender
from rlinf_async.weights.schemes.staged import Staged
from rlinf_async.weights.schemes.strategy import WeightStrategy
from rlinf_async.weights.schemes.updates import TELL_THE_MODEL, Update, chosen, whole
from rlinf_async.weights.schemes.ways import Way
from rlinf_async.weights.state.report import Ack
from rlinf_async.weights.transports.calls import nothing
from rlinf_async.weights.transports.mp import MPTransport
from rlinf_async.weights.transports.transport import TransportBackend
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
        if buffer is None:
            self._check_new(model_id, weights)
            tree = ParamTree.of(weights if first is None else first)
            return lambda: self._aside.do(self._make_buffer, model_id, weights, tree, nbytes=tree.nbytes)
        if buffer is weights:
            return nothing
        try:
            update = plan_update(buffer, weights)
        except WeightMismatch as error:
            error.add_note(f"the buffer of '{model_id}' has what was registered or sent first; {TELL_THE_MODEL}")
            raise
        nbytes = sum(target.nbytes for target in update.targets)
        return lambda: self._aside.do(update.write, nbytes=nbytes)

    def _check_new(self, model_id: str, weights: Any) -> None:
        if not self._auto_register:
            raise KeyError(f"Model '{model_id}' not registered, and auto_register is off: register_weights() first")
        if not isinstance(weights, dict) and not is_tensordict(weights):
            raise ValueError(f"Unsupported weights type: {type(weights)}. Expected dict or TensorDictBase.")

    def _make_buffer(self, model_id: str, weights: Any, tree: ParamTree) -> None:
        if model_id in self._buffers:  # made since this was planned
            plan_update(self._buffers[model_id], weights).write()
            return
        copies = ParamTree(
            {path: tensor.detach().clone() for path, tensor in tree.tensors.items()}, tree.aliases, tree.extra
        )
        self._buffers[model_id] = copies.to_tensordict() if is_tensordict(weights) else copies.to_nested()

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


class _SharedSender(WeightSender):
    """Keeps the model's buffer up to date beside what it publishes."""

    def _targets(self, worker_ids: Any) -> dict[int, TransportBackend]:
        return {} if worker_ids is None and not self._transports else super()._targets(worker_ids)

    def _replaced(self, worker_id: int, pipe_or_context: Any) -> TransportBackend:
        old = self._targets(worker_id)[worker_id]
        scheme = self._scheme
        assert isinstance(scheme, SharedMemWeightSyncScheme)
        scheme.transport.register_pipe(pipe_or_context)
        self._transports[worker_id] = MPTransport(pipe_or_context, timeout=scheme.options.ack_timeout)
        return old

    def _prepare(self, *wanted: Any) -> tuple[Update, list[Way]]:
        update, ways = super()._prepare(*wanted)
        transport = self._shared
        is_new = transport.buffer(self._model_id) is None
        first = whole(update, self._model_weights(), self._scheme.options.select).weights if is_new else None
        return update, [_BufferWay(transport.plan(self._model_id, chosen(update), first)), *ways]

    def _model_weights(self) -> Any:
        """A buffer that was registered stands for the model where there is no other."""
        found = super()._model_weights()
        return self._shared.buffer(self._model_id) if found is None else found

    @property
    def _shared(self) -> SharedMemTransport:
        scheme = self._scheme
        assert isinstance(scheme, SharedMemWeightSyncScheme)
        return scheme.transport

    async def _stage(self, update: Update, ways: list[Way]) -> Staged:
        since = time.perf_counter()
        buffer, *others = ways
        for transport in self._transports.values():
            if isinstance(transport, MPTransport):
                transport.registers = self._model_id in self._shared.registered
        await buffer.stage(update)  # before anybody hears of the version, and to the end, whatever becomes of that
        staged = await super()._stage(update, others)
        staged.since, staged.t_stage = since, time.perf_counter() - since
        return staged


class _BufferWay:
    """Into the sender's own buffer: to nobody."""

    worker_ids = ()
    can_stage = True
    nbytes = 0
    has_begun = False

    def __init__(self, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._write = write

    async def stage(self, update: Update) -> None:
        await self._write()

    async def acks(self, update: Update) -> dict[int, Ack]:
        return {}

    def give_up(self) -> None:
        pass


@register_weight_sync_backend("thread")
@register_weight_sync_backend("direct")
@register_weight_sync_backend("shared")
class SharedMemWeightSyncScheme(WeightSyncScheme):
    """Synchronises processes of this machine through shared memory, which each has been told of over a pipe.

    It differs from ``MultiProcessWeightSyncScheme`` in that the sender has one transport for all workers, with a buffer
    per model that shows what was sent last.  A worker has new weights once it has called ``receive`` or
    ``apply_weights``, or serves.  Of a buffer that was registered, and not made by the first ``send``, a worker's loop
    is told by ``((model_id, notice), "register_shared_weights")``, which it answers by ``(None, "registered")``.

    Args:
        policy_weights: buffers by model id.
        auto_register: whether a model without one gets one with the first ``send``: a copy.

    Raises:
        ConfigError: an option would do nothing here.
    """

    publishes = True

    def __init__(
        self,
        policy_weights: dict[str, Any] | None = None,
        strategy: Any = "tensordict",
        auto_register: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(strategy, **options)
        self.options.refuse("delta", owner=type(self).__name__, why=NOTHING_TRAVELS)
        self.transport = SharedMemTransport(policy_weights, auto_register)

    @property
    def policy_weights(self) -> dict[str, Any]:
        """The buffers by model id."""
        return self.transport._buffers

    def register_shared_weights(self, model_id: str, weights: Any) -> None:
        """The errors are those of ``SharedMemTransport.register_weights``."""
        self.transport.register_weights(model_id, weights)

    def init_on_sender(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        """
        Args:
            kwargs: ``pipes``; ``cached_weights``, a buffer for the model; ``source_model``.

        Raises:
            ValueError: there are no pipes.
        """
        pipes = from_either(context, kwargs, "pipes")
        if pipes is None:
            raise ValueError("pipes must be provided via context or kwargs")
        get_cached = getattr(context, "get_cached_weights", None)
        cached = kwargs.get("cached_weights") if get_cached is None else get_cached(model_id)
        if cached is not None and self.transport.buffer(model_id) is None:
            self.transport.register_weights(model_id, cached)
        sender = self.create_sender()
        for worker_id, pipe in enumerate(pipes):
            self.transport.register_pipe(pipe)
            sender._transports[worker_id] = MPTransport(pipe, timeout=self.options.ack_timeout)
        sender._transport = self.transport
        self._become_sender(sender, model_id, context, kwargs.get("source_model", kwargs.get("model")))

    def init_on_worker(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        """
        Args:
            kwargs: ``pipe``; without it nothing is received.  ``model``.
        """
        receiver = self.create_receiver()
        pipe = from_either(context, kwargs, "pipe")
        if pipe is not None:
            receiver._transport = MPTransport(pipe, timeout=self.options.ack_timeout)
        self._become_receiver(receiver, model_id, context, model_of(context, kwargs, model_id))

    def create_sender(self) -> WeightSender:
        return _SharedSender(self)

    def create_transport(self, pipe: Any) -> SharedMemTransport:
        """The one transport, which is told of the pipe, if that is one."""
        if pipe is not None:
            self.transport.register_pipe(pipe)
        return self.transport

    def prepare_weights(self, weights: Any, model_id: str, strategy: WeightStrategy, context: Any = None) -> Any:
        """As in the base class; for ``"policy"`` the context's ``_policy_weights_dict`` comes first."""
        if weights is None and model_id == "policy":
            known = getattr(context, "_policy_weights_dict", None)
            device = getattr(context, "policy_device", None)
            if known is not None and device in known:
                return known[device]
        return super().prepare_weights(weights, model_id, strategy, context)

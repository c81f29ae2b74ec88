"""``WeightSyncScheme``: synchronises one model's weights from a trainer to its workers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, TypeVar

from rlinf_async.errors import ConfigError
from rlinf_async.weights.schemes.configuration import Configuration
from rlinf_async.weights.schemes.receiver import WeightReceiver
from rlinf_async.weights.schemes.sender import WeightSender
from rlinf_async.weights.schemes.weight_strategy import _get_strategy
from rlinf_async.weights.transports.transport import TransportBackend
from rlinf_async.weights.waiting.execution import SyncAdapter
from rlinf_async.work import Work

S = TypeVar("S", bound="type[WeightSyncScheme]")

_BACKENDS: dict[str, str | type[WeightSyncScheme]] = {
    "none": "none",
    "direct": "shared_mem",
    "shared": "shared_mem",
    "thread": "shared_mem",
    "process": "multi_process",
    "multiprocessing": "multi_process",
    "worker": "worker_scheme",
    "ray": "worker_scheme",
    "module_transform": "called",
    "rpc": "called",
    "distributed": "distributed_scheme",
}
"""Maps each name to its scheme, or to the name of the module in this package that registers the scheme."""


class WeightSyncScheme(Configuration):
    """The synchronisation of one model: a picklable configuration, with one end in each process.

    ``init_on_sender`` and ``init_on_worker`` only record the other sides; the two sides meet in ``connect``, or at the
    first ``send`` and ``receive``. Both sides use the same scheme, or a pickled copy. In a coroutine, ``connect``,
    ``close`` and the methods of sender and receiver start immediately and return a ``Work``; elsewhere they block.

    Args:
        strategy: form of extracted weights: ``"state_dict"`` or ``"tensordict"``.
        options: see ``SyncOptions``; ``apply``, ``slots``, ``transport_dtype``, ``ack_timeout``, ``verify``,
            ``select``.

    Raises:
        ConfigError: an option is unknown, or its value is invalid.
        ValueError: the strategy is unknown.
    """

    def __init__(self, strategy: Literal["state_dict", "tensordict"] = "state_dict", **options: Any) -> None:
        super().__init__(strategy, options)
        self._sender: WeightSender | None = None
        self._receiver: WeightReceiver | None = None
        self._initialized_on_sender = False
        self._initialized_on_worker = False

    def __repr__(self) -> str:
        ends = [end for end, there in (("sender", self._sender), ("receiver", self._receiver)) if there is not None]
        return f"<{type(self).__name__} {self.strategy} [{', '.join(ends) or 'not initialised'}]>"

    # -- by name ------------------------------------------------------------------------------------------------

    @staticmethod
    def from_backend(name: str, **arguments: Any) -> WeightSyncScheme:
        """Return a scheme by name: ``none``, ``shared`` (or ``direct``, ``thread``), ``process`` (or
        ``multiprocessing``), ``worker`` (or ``ray``), ``module_transform``, ``rpc``, ``distributed``, or a registered
        name.

        Raises:
            ValueError: no scheme has that name.
        """
        found = _BACKENDS.get(name)
        if found is None:
            raise ValueError(f"Unknown weight sync backend: {name!r}. There are: {', '.join(sorted(_BACKENDS))}")
        if isinstance(found, str):
            importlib.import_module(f"{__package__}.{found}")
            found = _BACKENDS[name]
        assert not isinstance(found, str)
        return found(**arguments)

    # -- ends ---------------------------------------------------------------------------------------------------

    missing: ClassVar[str] = ""
    """Error text for missing workers."""

    def init_on_sender(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        """Make this the trainer's end.

        Args:
            model_id: id of the model: its path from the context, such as ``"policy"``.
            context: object with the model and the connections to the workers as attributes; held weakly.
            kwargs: the same values if there is no context; each scheme documents its own. ``source_model`` (or
                ``model``) is the model that ``send()`` sends by default, if the context has none.

        Raises:
            ValueError: there are no workers.
        """
        ways = self._ways_to_workers(model_id, context, kwargs)
        if ways is None:
            raise ValueError(self.missing)
        sender = self.create_sender()
        for worker_id, way in ways:
            sender._register_worker(worker_id, way)
        self._become_sender(sender, model_id, context, kwargs.get("source_model", kwargs.get("model")))

    def init_on_worker(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        """Make this the worker's end.

        Args:
            model_id: as at the sender; the worker's model is looked up under that path when weights are applied, unless
                the context's ``get_model`` or ``model=`` provides it.
            context, kwargs: as at the sender.

        Raises:
            ValueError: no connection to the sender was given.
        """
        receiver = self.create_receiver()
        receiver._transport = self._way_to_sender(context, kwargs)
        self._become_receiver(receiver, model_id, context, self._model_of(model_id, context, kwargs))

    def _ways_to_workers(self, model_id: str, context: Any, kwargs: dict[str, Any]) -> Iterable[tuple[int, Any]] | None:
        """Return the workers' ids, each with the argument for ``create_transport``; None if there are no workers."""
        raise NotImplementedError

    def _way_to_sender(self, context: Any, kwargs: dict[str, Any]) -> TransportBackend | None:
        """Return the transport from the sender; None if weights arrive only by calls."""
        raise NotImplementedError

    def _model_of(self, model_id: str, context: Any, kwargs: dict[str, Any]) -> Any:
        """Return the worker's model: the context's ``get_model``, ``model=``, or the id, for later lookup."""
        get_model = getattr(context, "get_model", None)
        found = get_model(model_id) if get_model is not None else kwargs.get("model")
        return model_id if found is None else found

    def init_on_receiver(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        """Make this the worker's end (newer TorchRL's name for ``init_on_worker``)."""
        self.init_on_worker(model_id, context, **kwargs)

    def get_sender(self) -> WeightSender:
        """Return the trainer's end of this scheme.

        Raises:
            RuntimeError: ``init_on_sender`` has not been called.
        """
        if not self._initialized_on_sender or self._sender is None:
            raise RuntimeError(f"Must call init_on_sender() before get_sender() on {type(self).__name__}")
        return self._sender

    def get_receiver(self) -> WeightReceiver:
        """Return the worker's end of this scheme.

        Raises:
            RuntimeError: ``init_on_worker`` has not been called.
        """
        if not self._initialized_on_worker or self._receiver is None:
            raise RuntimeError(f"Must call init_on_worker() before get_receiver() on {type(self).__name__}")
        return self._receiver

    def _become_sender(self, sender: WeightSender, model_id: str, context: Any, source_model: Any = None) -> None:
        sender._model_id = model_id
        if context is not None:
            sender._set_context(context, model_id)
        sender._source_model = source_model
        if self.options.select != "all":  # ``select`` needs the parameters themselves
            sender._strategy = _get_strategy(self.strategy, keep_vars=True)  # type: ignore[arg-type]  # checked before
        self._sender = sender
        self._initialized_on_sender = True

    def _become_receiver(self, receiver: WeightReceiver, model_id: str, context: Any, model: Any = None) -> None:
        receiver._model_id = model_id
        if context is not None:
            receiver._set_context(context)
        if model is not None:
            receiver._register_model(model)
        self._receiver = receiver
        self._initialized_on_worker = True

    # -- life ---------------------------------------------------------------------------------------------------

    def connect(self, *, weights: Any = None, timeout: float | None = 60.0) -> Any:
        """Connect to the other side; afterwards the workers have the trainer's weights.

        The other side must connect, too; a worker may ``receive`` or ``serve`` instead.

        Args:
            weights: at the sender: the workers' initial weights, version 1; by default the model's weights.
            timeout: seconds to wait for the other side.

        Returns:
            None; in a coroutine, a ``Work``.

        Raises:
            DeadlineExceeded: a peer did not connect; the error names it.
            ValueError: the sender has no model, and no ``weights`` were given.
            RuntimeError: neither end has been initialised.
        """
        if self._sender is not None:
            return self._sender.connect(weights, timeout=timeout)
        return self.get_receiver().connect(timeout=timeout)

    def close(self) -> Any:
        """Release both ends' resources; in a coroutine, return a ``Work``. Idempotent."""
        ends: list[WeightSender | WeightReceiver] = [end for end in (self._sender, self._receiver) if end is not None]
        self._sender = self._receiver = None
        self._initialized_on_sender = self._initialized_on_worker = False
        works = [work for end in ends if isinstance(work := end.close(), Work)]
        adapter = SyncAdapter()
        closing = adapter.run(_every(works), f"the closing of {type(self).__name__}")
        adapter.release()
        return closing

    async def __aenter__(self) -> WeightSyncScheme:
        try:
            await self.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is not None and self._sender is not None:
            self._sender._failure = f"{kind.__name__}: {error}"
        await self.close()

    # -- pickling -----------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Return the configuration; the copy must be initialised again."""
        return {
            **self.__dict__,
            "_sender": None,
            "_receiver": None,
            "_initialized_on_sender": False,
            "_initialized_on_worker": False,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    # -- hooks of subclasses ----------------------------------------------------------------------------------------

    def create_sender(self) -> WeightSender:
        """Return a new trainer's end; ``init_on_sender`` creates its own."""
        return WeightSender(self)

    def create_receiver(self) -> WeightReceiver:
        """Return a new worker's end; ``init_on_worker`` creates its own."""
        return WeightReceiver(self)


def register_weight_sync_backend(name: str) -> Callable[[S], S]:
    """Return a decorator that registers a scheme, which ``WeightSyncScheme.from_backend(name)`` then creates.

    Raises:
        ConfigError: another scheme has that name.
    """

    def register(scheme: S) -> S:
        known = _BACKENDS.get(name)
        if isinstance(known, type) and known is not scheme:
            raise ConfigError(f"weight sync backend {name!r} is {known.__name__} already")
        _BACKENDS[name] = scheme
        return scheme

    return register


def from_either(context: Any, kwargs: dict[str, Any], *names: str) -> Any:
    """Return the first of the named attributes of the context or, without a context, of the named arguments; None if
    there is none."""
    for name in names:
        found = kwargs.get(name) if context is None else getattr(context, name, None)
        if found is not None:
            return found
    return None


async def _every(works: list[Work[Any]]) -> None:
    for work in works:
        await work

"""An adapter from weight sync schemes to TorchRL's collectors (0.14.1; ``pip install rlinf-async[torchrl]``)."""

from __future__ import annotations

import copy
import multiprocessing
import socket
import sys
from asyncio import _get_running_loop as running_loop
from typing import Any, Final

from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it
from torchrl import weight_update

from rlinf_async._client.loop_thread import LoopThread
from rlinf_async._core import process
from rlinf_async.errors import ConfigError
from rlinf_async.weights.schemes.configuration import _resolve_model
from rlinf_async.weights.schemes.distributed_scheme import DistributedWeightSyncScheme
from rlinf_async.weights.schemes.multi_process import MultiProcessWeightSyncScheme
from rlinf_async.weights.schemes.receiver import WeightReceiver
from rlinf_async.weights.schemes.sender import WeightSender
from rlinf_async.weights.schemes.shared_mem import SharedMemWeightSyncScheme

_HOST: Final = "127.0.0.1"
_KINDS: Final = MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme, DistributedWeightSyncScheme
"""Schemes for processes outside this framework."""


class CollectorScheme(weight_update.WeightSyncScheme):  # type: ignore[misc]  # TorchRL has no type hints
    """A scheme that synchronises the workers of TorchRL's collectors through a scheme of this package.

    Workers begin with the collector's policy, or with its first factory's result.  They have new weights when
    ``update_policy_weights_`` or ``send`` returns: a thread in each worker applies them between two forward passes.

    Args:
        scheme: ``MultiProcessWeightSyncScheme``, ``SharedMemWeightSyncScheme`` or ``DistributedWeightSyncScheme``,
            which from now on sends all of a module's buffers, as TorchRL does.

    Raises:
        ConfigError: the scheme is of another class.
    """

    _pid = _port = _version = 0
    _listener: Any = None
    _receiver: WeightReceiver | None = None
    _thread: LoopThread | None = None

    def __init__(self, scheme: Any) -> None:
        if not isinstance(scheme, _KINDS):
            names = ", ".join(kind.__name__ for kind in _KINDS)
            raise ConfigError(f"{scheme!r} does not reach a collector's workers, other processes: use {names}")
        super().__init__("tensordict")
        scheme.strategy = "tensordict"
        self.scheme = scheme
        self._pipes: list[tuple[Any, Any]] = []

    def _init_on_sender_impl(
        self, *, model_id: str, context: Any = None, model: Any = None, num_workers: int = 0, ctx: Any = None
    ) -> None:
        """
        Args:
            context: a collector with workers; or instead ``model`` and ``num_workers``, for collectors in the user's
                own processes, which are not forked and have this scheme among their ``weight_recv_schemes``."""
        devices: Any = [None] * num_workers
        if context is not None:
            devices, num_workers = context.policy_device, getattr(context, "num_workers", 0)
            model = _resolve_model(context, model_id)
            if model is None:
                model = context.policy_factory[0]()
        if not isinstance(model, nn.Module) or not num_workers:
            raise ConfigError(
                f"a module is sent, and to workers; '{model_id}' is {type(model).__name__}, for {num_workers} workers: "
                "a Collector, which has none, takes weight_recv_schemes="
            )
        here = next((each.device for each in model.parameters()), None)
        self._devices = [each or here for each in devices]
        self.context, self._model_id, self._source, self._pid = context, model_id, model, process.pid
        if isinstance(self.scheme, DistributedWeightSyncScheme):
            self._listener = socket.create_server((_HOST, 0))
            self._port = self._listener.getsockname()[1]
        else:
            self._pipes = [multiprocessing.Pipe() for _ in devices]

    def _setup_connection_and_weights_on_sender_impl(self, *, weights: Any = None, **_: Any) -> None:
        """Begin only once the workers exist, so that none is forked from a process with this package's threads. Do not
        wait for the workers, because a worker that fails to start reports its error to the collector."""
        ways: dict[str, Any] = {"pipes": [ours for ours, _ in self._pipes]}
        if self._listener is not None:
            fd, self._listener = self._listener.detach(), None
            store = TCPStore(_HOST, self._port, is_master=True, wait_for_workers=False, master_listen_fd=fd)
            ways = {"store": store, "num_workers": len(self._devices)}
        self.scheme.init_on_sender(self._model_id, source_model=self._source, **ways)
        for _, theirs in self._pipes:
            theirs.close()  # so that the pipe closes when its worker ends
        self._sender().send_async(weights)

    def send(self, weights: Any = None, worker_ids: Any = None) -> Any:
        """Send weights and block until they are applied, as ``WeightSender.send`` does."""
        if not self.synchronized_on_sender:
            raise RuntimeError("connect() comes before send(), and after the workers have been started")
        sender = self._sender()
        if sender._pending is not None:  # the first version, or one whose wait was interrupted
            sender.wait_async()
        return sender.send(weights, worker_ids)

    def _sender(self) -> WeightSender:
        if running_loop() is not None:
            raise RuntimeError("TorchRL's collectors block: use them in a `def` method, or by asyncio.to_thread()")
        return self.scheme.get_sender()

    def _init_on_receiver_impl(
        self, *, model_id: str, context: Any = None, model: Any = None, worker_idx: int | None = None
    ) -> None:
        number, count = worker_idx or 0, len(self._devices)
        if number >= count or getattr(context, "_weight_sync_schemes", None):
            raise ConfigError(
                f"a collector cannot be worker {number} of {count} for '{model_id}': worker_idx= counts from 0, and a "
                "collector with workers of its own would pass nothing on to them"
            )
        if context is not None:
            model = _resolve_model(context, model_id)
        self.context, self._model_id, self.model, self._pid = context, model_id, model, process.pid
        if any(each.is_meta for each in model.parameters()):
            model.to_empty(device=self._devices[number] or "cpu")  # the first version provides the values
        self._guard(model)
        if self._pipes:
            self._pipes = self._pipes[number : number + 1]  # dropping the other workers' pipes closes them here
            self.pipe = self._pipes[0][1]
        else:
            self.store, self.rank = TCPStore(_HOST, self._port), number + 1
        # The path "model" matters: if the collector copies the policy to another device, the copy is stored there.
        self.scheme.init_on_worker(model_id, context=self, model="model")

    def _guard(self, model: nn.Module) -> None:
        """Make every forward pass use one whole version, which the collector counts; copies have these hooks, too."""
        readings: list[Any] = []

        def enter(*_: Any) -> None:
            if self._receiver is not None:
                reading = self._receiver.reading()
                version = reading.__enter__()
                readings.append(reading)
                if version != self._version and self.context is not None:
                    self._version = version
                    self.context.increment_version()

        def leave(*_: Any) -> None:
            if readings:
                readings.pop().__exit__()

        model.register_forward_pre_hook(enter)
        model.register_forward_hook(leave, always_call=True)

    def _setup_connection_and_weights_on_receiver_impl(self, *, worker_idx: int | None = None) -> None:
        receiver = self._receiver = self.scheme.get_receiver()
        receiver.connect()
        self._version = receiver.version
        self._thread = LoopThread("rlinf-collector")
        self._thread.call(self._serve)

    def _serve(self) -> None:
        self._serving = self.scheme.get_receiver().serve()

    def apply_weights(self, weights: Any, **_: Any) -> None:
        """Apply weights, as ``WeightReceiver.apply_weights`` does."""
        self.scheme.get_receiver().apply_weights(weights)

    def create_transport(self, **kwargs: Any) -> Any:
        """Return the scheme's transport, which no collector requests."""
        return self.scheme.create_transport(kwargs.get("pipe"))

    def shutdown(self) -> None:
        """Close this process's end. Idempotent."""
        if sys.is_finalizing() or self._pid != process.pid:  # the threads are stopped, or do not exist in this process
            return
        thread, self._thread, self._receiver, self._pid = self._thread, None, None, 0
        thread.stop(self._end_serving) if thread is not None else self.scheme.close()
        for end in (self._listener, *(end for pair in self._pipes for end in pair)):
            if end is not None:
                end.close()

    async def _end_serving(self) -> None:
        self._serving.cancel()
        await self.scheme.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a worker; TorchRL calls this for forked workers, too."""
        own = {"scheme": copy.copy(self.scheme), "_pipes": [(None, theirs) for _, theirs in self._pipes]}
        return {**super().__getstate__(), **own, "_source": None, "_listener": None, "_pid": 0}

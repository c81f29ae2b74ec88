"""Both ends of a scheme in one process, behind one interface for all schemes."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlinf_async import (
    DistributedWeightSyncScheme,
    ModuleTransformScheme,
    MultiProcessWeightSyncScheme,
    SharedMemWeightSyncScheme,
    WorkerWeightSyncScheme,
)
from rlinf_async.weights.model.places import Places


class Tied(nn.Module):
    """Two layers, of which the first one's weight is used twice, a buffer, and a deeper path."""

    def __init__(self, value: float = 0.0, width: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))
        self.head = nn.Linear(width, width, bias=False)
        self.head.weight = self.layers[0].weight
        self.register_buffer("steps", torch.zeros(1))
        self.fill(value)

    def fill(self, value: float) -> None:
        with torch.no_grad():
            for tensor in (*self.parameters(), *self.buffers()):
                tensor.fill_(value)

    def values(self) -> set[float]:
        """What it shows, the least and the most of each tensor: one value, or it is torn."""
        tensors = (*self.parameters(), *self.buffers())
        return {float(bound) for tensor in tensors for bound in torch.aminmax(tensor.detach())}


def shown(model: Any) -> set[float]:
    """The least and the most of every tensor of any destination that has values."""
    places = (place for found in Places.of(model).tensors.values() for place in found)
    tensors = (place.tensor.detach() for place in places if not place.tensor.is_meta)
    return {float(bound) for tensor in tensors for bound in torch.aminmax(tensor)}


class Both:
    """A sender, and one receiver that takes whatever is sent until it is closed."""

    def __init__(self, sending: Any, receiving: Any, model: Any) -> None:
        self.schemes = (sending, receiving)
        self.sender = sending.get_sender()
        self.receiver = receiving.get_receiver()
        self.model = model
        self.errors: list[Exception] = []

    @property
    def sees(self) -> set[float]:
        return shown(self.model)

    async def take(self, timeout: float = 20.0) -> bool:
        """What the worker's loop does with one update."""
        try:
            return bool(await self.receiver.receive(timeout))
        except Exception as error:
            self.errors.append(error)
            return False

    async def deliver(self, *weights: Any, **options: Any) -> Any:
        work = self.sender.send(*weights, **options)
        taking = asyncio.create_task(self.take())
        try:
            return await work
        finally:
            await taking


class Called(Both):
    """The worker is an object of this process whose methods are called."""

    async def take(self, timeout: float = 20.0) -> bool:
        return False


class Host:
    """What a worker offers to schemes that call."""

    def __init__(self, receiver: Any) -> None:
        self._receiver = receiver

    async def update_policy_weights_(self, policy_or_weights: Any, version: int | None = None) -> None:
        await self._receiver.apply_weights(policy_or_weights, version)

    async def _update_weights_tensordict(self, params: Any, version: int | None = None) -> None:
        await self._receiver.apply_weights(params, version)

    async def _update_weights_state_dict(self, state_dict: Any, version: int | None = None) -> None:
        await self._receiver.apply_weights(state_dict, version)


def _over_pipes(kind: Callable[..., Any]) -> Callable[..., Any]:
    @contextlib.contextmanager
    def make(model: Any, source: Any, **options: Any) -> Any:
        ours, theirs = multiprocessing.Pipe()
        with ours, theirs:
            sending, receiving = kind(**options), kind(**options)
            sending.init_on_sender("policy", pipes=[ours], source_model=source)
            receiving.init_on_worker("policy", pipe=theirs, model=model)
            yield Both(sending, receiving, model)

    return make


@contextlib.contextmanager
def _distributed(model: Any, source: Any, **options: Any) -> Any:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    sending, receiving = DistributedWeightSyncScheme(**options), DistributedWeightSyncScheme(**options)
    sending.init_on_sender("policy", store=store, num_workers=1, source_model=source)
    receiving.init_on_worker("policy", store=store, rank=1, model=model)
    yield Both(sending, receiving, model)


def _by_call(kind: Callable[..., Any], handles: str, wrap: Callable[[Host], Any]) -> Callable[..., Any]:
    @contextlib.contextmanager
    def make(model: Any, source: Any, **options: Any) -> Any:
        sending, receiving = kind(**options), kind(**options)
        receiving.init_on_worker("policy", model=model)
        host = Host(receiving.get_receiver())
        sending.init_on_sender("policy", **{handles: [wrap(host)]}, source_model=source)
        yield Called(sending, receiving, model)

    return make


SCHEMES: dict[str, Callable[..., Any]] = {
    "multiprocess": _over_pipes(MultiProcessWeightSyncScheme),
    "shared memory": _over_pipes(SharedMemWeightSyncScheme),
    "distributed": _distributed,
    "worker": _by_call(WorkerWeightSyncScheme, "remote_collectors", lambda host: host),
    "module transform": _by_call(ModuleTransformScheme, "actors", lambda host: SimpleNamespace(_actor=host)),
}

CALLED = ("worker", "module transform")
"""Those whose worker is called."""


@contextlib.asynccontextmanager
async def both(kind: str, model: Any = None, source: Any = None, **options: Any) -> AsyncIterator[Any]:
    """Both ends, initialised; closed at the end."""
    model, source = (Tied() if model is None else model), (Tied(1.0) if source is None else source)
    with SCHEMES[kind](model, source, **options) as ends:
        try:
            yield ends
        finally:
            for scheme in ends.schemes:
                await scheme.close()

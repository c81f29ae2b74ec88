"""RLinf's weight syncers: a protocol over two callbacks, ``send(obj)`` and ``recv()``, whatever they travel by."""

from __future__ import annotations

import abc
import asyncio
import difflib
import importlib
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeAlias

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from rlinf_async.errors import ConfigError, WeightMismatch
from rlinf_async.weights.gather import is_sharded
from rlinf_async.weights.manifest import dtype_of
from rlinf_async.weights.param_tree import EXTRA_STATE, ParamTree, name_of
from rlinf_async.worker.options import CollectiveGroupOptions

Send: TypeAlias = Callable[[Any], Awaitable[Any]]
Recv: TypeAlias = Callable[[], Awaitable[Any]]

_KINDS: Final = {"bucket": ("bucket_syncer", "BucketWeightSyncer"), "patch": ("patch_syncer", "PatchWeightSyncer")}
_COMMUNICATION: Final = {
    "use_ring_sync": "use_ring_broadcast",
    "nccl_max_ctas": "accel_max_ctas",
    "nccl_min_ctas": "accel_min_ctas",
}
_PRECISIONS: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}


class WeightSyncer(abc.ABC):
    """One end of a synchronisation; the same class with the same options is at the other.

    Both ends are initialised at the same time; after that, every ``sync`` of the sender is met by one ``apply`` of each
    receiver.  ``send`` may reach any number of receivers, for example by ``Worker.broadcast``.

    Attributes:
        comm_options: what the configuration says of the communication, for ``Worker.broadcast``; or None.
        version: of the last update that was sent, or applied, whole; -1 before the first.
    """

    comm_options: CollectiveGroupOptions | None = None

    def __init__(self) -> None:
        self.version = -1
        self._names: list[str] | None = None
        self._is_sender = True
        self._is_receiver = False
        self._busy = False

    @staticmethod
    def create(cfg: Any) -> WeightSyncer:
        """From a configuration.

        Args:
            cfg: a mapping or OmegaConf's: ``type: bucket`` or ``patch``, the arguments of that class, flat or in a
                section of that name (``init_sync: {enabled: true}`` is ``init_sync_enabled``), and for the
                communication ``use_ring_sync``, ``nccl_max_ctas``, ``nccl_min_ctas``.

        Raises:
            ValueError: there is no such type.
            ConfigError: an option is not known, or has a value that it cannot have.
        """
        plain: Any = OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else cfg
        options: dict[str, Any] = dict(plain)
        name = options.pop("type", None)
        if name not in _KINDS:
            raise ValueError(f"Unsupported weight syncer type: {name!r}; there are {', '.join(_KINDS)}")
        module, class_name = _KINDS[name]
        kind: type[WeightSyncer] = getattr(importlib.import_module(f"{__package__}.{module}"), class_name)
        sections = {each: options.pop(each, None) or {} for each in _KINDS}
        options |= sections[name]
        wishes = {
            ours: options.pop(theirs) for theirs, ours in _COMMUNICATION.items() if options.get(theirs) is not None
        }
        arguments = {key: value for key, value in _flat(options).items() if key not in _COMMUNICATION}
        known = list(inspect.signature(kind).parameters)
        for key in arguments:
            if key not in known:
                like = difflib.get_close_matches(key, known, 1)
                proposal = f": {like[0]!r}, perhaps?" if like else ""
                raise ConfigError(f"a {name} syncer has no option {key!r}{proposal} It has {', '.join(known)}")
        syncer = kind(**arguments)
        communication = CollectiveGroupOptions(**wishes)
        syncer.comm_options = None if communication.is_empty_options() else communication
        return syncer

    # -- the sender -----------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def init_sender(
        self,
        state_dict: Mapping[str, Any],
        param_names_need_sync: Collection[str] | None,
        send: Send,
        recv: Recv | None = None,
        is_sender: bool = True,
    ) -> None:
        """Agrees with the receivers on what will travel.

        Args:
            state_dict: the trainer's; DTensors are gathered, for which every rank of the trainer calls these methods.
            param_names_need_sync: which of its keys; None: all.
            is_sender: False on the ranks that only take part in gathering.

        Raises:
            WeightMismatch: the receiver's weights are others.
        """

    async def sync(self, state_dict: Mapping[str, Any], send: Send, version: int) -> None:
        """Sends a version; returns when ``send`` has taken all of it.

        What is sent is a copy.  The next part is prepared while one is sent; the event loop is not held up.  For as
        long as this takes, the weights must not change: ``stage`` is how to step the optimizer meanwhile.

        Raises:
            RuntimeError: not initialised, or another version is on its way.
            WeightMismatch: the weights are no more those that were agreed on.
            Exception: what ``send`` raises.  The next ``sync`` sends everything.
        """
        messages = self._begin(state_dict, version)
        try:
            message = await in_thread(next, messages, None)
            while message is not None:
                coming = asyncio.get_running_loop().run_in_executor(None, next, messages, None)
                try:
                    if self._is_sender:
                        await send(message)
                finally:
                    await asyncio.wait([coming])
                message = coming.result()
            self._sent(version)
        finally:
            self._busy = False

    async def stage(self, state_dict: Mapping[str, Any], version: int) -> StagedWeights:
        """Takes a copy of a version, or of what has changed in it; after that, the weights may change.

        Returns:
            What is to be delivered before the next ``stage`` or ``sync``.

        Raises:
            RuntimeError, WeightMismatch: as ``sync``.
        """
        messages = self._begin(state_dict, version)
        try:
            return StagedWeights(self, version, await in_thread(list, messages))
        except BaseException:
            self._busy = False
            raise

    def sender_initialized(self) -> bool:
        return self._names is not None

    @abc.abstractmethod
    def _produce(self, tree: ParamTree, version: int) -> Iterator[Any]:
        """The messages of one version, each made when it is asked for, in a thread."""

    def _sent(self, version: int) -> None:
        self.version = version

    def _begin(self, state_dict: Mapping[str, Any], version: int) -> Iterator[Any]:
        if self._names is None:
            raise RuntimeError("the sender is not initialised: await init_sender() first")
        if self._busy:
            raise RuntimeError("another version is on its way: await its sync(), or deliver() what was staged")
        tree = self._select(state_dict, self._names)
        check_rank(tree, self._is_sender)
        self._busy = True
        return self._produce(tree, version)

    def _select(self, state_dict: Mapping[str, Any], names: Collection[str] | None) -> ParamTree:
        """Those keys of it.

        Raises:
            WeightMismatch: one is missing.
        """
        tree = ParamTree.of(state_dict, lambda name, value: name.rpartition(".")[2] != EXTRA_STATE and is_tensor(value))
        if names is None:
            return tree
        there = {name_of(path): path for path, _ in tree.items()}
        if missing := sorted(set(names) - there.keys()):
            raise WeightMismatch(f"the weights lack {', '.join(map(repr, missing[:5]))}, which should be synchronised")
        return ParamTree.of({name: tree[there[name]] for name in names})

    # -- the receiver ---------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def init_receiver(self, state_dict: Mapping[str, Any], recv: Recv, send: Send | None = None) -> None:
        """
        Args:
            state_dict: the receiver's.

        Raises:
            WeightMismatch: the sender's weights do not fit.
        """

    @abc.abstractmethod
    async def apply(self, model: Any, recv: Recv) -> int:
        """Receives a version into a module, or a state dict, and returns its number.

        Writing goes on in a thread; until this returns, the model should not be read.

        Raises:
            RuntimeError: not initialised.
            WeightMismatch: what came does not fit; nothing was written.
        """

    def receiver_initialized(self) -> bool:
        return self._is_receiver

    def _check_receiver(self) -> None:
        if not self._is_receiver:
            raise RuntimeError("the receiver is not initialised: await init_receiver() first")


class StagedWeights:
    """A version that has been copied and not sent."""

    def __init__(self, syncer: WeightSyncer, version: int, messages: list[Any]) -> None:
        self.version = version
        self._syncer = syncer
        self._messages = messages

    async def deliver(self, send: Send) -> None:
        """Sends it, once.  If ``send`` raises, the next ``sync`` sends everything."""
        messages, self._messages = self._messages, []
        try:
            for message in messages if self._syncer._is_sender else []:
                await send(message)
            self._syncer._sent(self.version)
        finally:
            self._syncer._busy = False


def collect_param_names_need_sync(module: nn.Module) -> list[str]:
    """The names of what training changes: parameters that require a gradient, and persistent buffers."""
    trainable = ParamTree.of(module, "trainable")
    return [name_of(path) for path, _ in sorted(trainable.items())]


def check_rank(tree: ParamTree, is_sender: bool) -> None:
    """
    Raises:
        ConfigError: sharded tensors are gathered on rank 0, and another rank is to send.
    """
    if is_sender and any(map(is_sharded, tree.tensors.values())) and torch.distributed.get_rank() != 0:
        raise ConfigError(
            "sharded weights are gathered on rank 0 of torch.distributed: give the others is_sender=False"
        )


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def device_of(name: str | torch.device) -> torch.device:
    """That device; the CPU where there is no GPU, so that a configuration need not be changed to run there."""
    device = torch.device(name)
    return torch.device("cpu") if device.type == "cuda" and not torch.cuda.is_available() else device


def precision_of(name: str | torch.dtype | None) -> torch.dtype | None:
    """``"bf16"`` or ``"bfloat16"`` → ``torch.bfloat16``.

    Raises:
        ConfigError: there is none of that name, or it is no floating-point dtype.
    """
    if name is None:
        return None
    try:
        dtype = name if isinstance(name, torch.dtype) else dtype_of(_PRECISIONS.get(name, name))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not dtype.is_floating_point:
        raise ConfigError(f"weights are cast to a floating-point dtype; got {dtype}")
    return dtype


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """In a thread of the loop's own; also if nobody waits any more, it has ended when this ends."""
    future = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in options.items():
        found.update(
            {f"{key}_{below}": v for below, v in value.items()} if isinstance(value, Mapping) else {key: value}
        )
    return found

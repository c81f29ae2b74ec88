"""RLinf's bucket syncer: whole tensors, in buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn

from rlinf_async._core.own_logger import own_logger
from rlinf_async.errors import ConfigError
from rlinf_async.rlinf.buckets import IncomingBuckets, Marked, buckets_in_call
from rlinf_async.rlinf.sending import Sending
from rlinf_async.rlinf.syncer import Recv, Send, WeightSyncer, in_thread
from rlinf_async.rlinf.syncer_options import device_of, precision_of
from rlinf_async.weights.model.gather_calls import GatherCall
from rlinf_async.weights.model.param_tree import ParamTree, is_tensordict, name_of, path_of
from rlinf_async.weights.model.places import Places
from rlinf_async.weights.model.writing import in_turn, plan_update

_LARGEST: Final = (1 << 31) - 1  # versions are sent as int32
_OUTER: Final = "model.language_model."
_log: Final = own_logger(__name__)


class BucketWeightSyncer(WeightSyncer):
    """A syncer that sends all tensors in every version. Its two init methods send and receive nothing.

    Tensors that the receiver lacks are skipped, with one warning; the receiver's other tensors stay unchanged.

    Args:
        bucket_size: size in bytes at which a bucket is complete; the sender holds two buckets at a time.  Tensors are
            never split.
        bucket_dtype: dtype of floating-point tensors, ``"bf16"`` or a dtype; None sends them bit for bit.
        bucket_device: device of the buckets; ``"cuda"`` means the CPU on a machine without a GPU.
        is_agent: if a name contains ``visual.``, the receiver's model is the language model inside the sender's model,
            so that the prefix ``model.language_model.`` of a name becomes ``model.``.
        load_instant: if False, a receiver keeps the buckets in CPU memory, which takes as many bytes as the weights,
            and writes all of them once the last one has arrived. If True, it writes each bucket as it arrives and keeps
            none, which breaks the guarantee of ``apply``: from the first bucket until ``apply`` returns, the model
            contains parts of two versions. If the sender dies in that time, or a later bucket does not fit, the model
            stays in this state until a whole version has been applied.
    """

    _skips_missing = True

    def __init__(
        self,
        bucket_size: int = 512 << 20,
        bucket_dtype: str | torch.dtype | None = None,
        bucket_device: str | torch.device = "cpu",
        is_agent: bool = False,
        load_instant: bool = False,
    ) -> None:
        super().__init__()
        if not bucket_size > 0:
            raise ConfigError(f"bucket_size= is bytes, more than 0; got {bucket_size!r}")
        self.bucket_size = bucket_size
        self.bucket_dtype = precision_of(bucket_dtype)
        self.bucket_device = device_of(bucket_device)
        self.is_agent = is_agent
        self.load_instant = load_instant
        self._incoming = IncomingBuckets(holds=not load_instant)
        self._has_warned = False

    # -- the sender -----------------------------------------------------------------------------------------------

    def iter_buckets(
        self, state_dict: Mapping[str, Any], version: int | torch.Tensor
    ) -> Iterator[dict[str, torch.Tensor]]:
        """Yield a version's buckets, each created when it is requested; see ``iter_named_tensor_buckets``.

        Raises:
            RuntimeError: the sender is not initialised.
            ValueError: there is nothing to send, or two tensors would have the same name.
        """
        call = self._calls.next()
        if not self._sender_initialized:
            raise RuntimeError("the sender is not initialised: await init_sender() first")
        tree = self._select(state_dict, self._names)
        self._check_rank(tree, call)
        return self._buckets(tree, version, call)

    def _buckets(
        self, tree: ParamTree, version: int | torch.Tensor, call: GatherCall
    ) -> Iterator[dict[str, torch.Tensor]]:
        return buckets_in_call(
            call,
            self._named(tree).items(),
            version,
            self.bucket_size,
            self.bucket_device,
            lambda _, dtype: self.bucket_dtype if self.bucket_dtype and dtype.is_floating_point else dtype,
        )

    def _named(self, tree: ParamTree) -> dict[str, torch.Tensor]:
        """Return the tensors by the receiver's names, in the sender's order."""
        named = {name_of(path): tensor for path, tensor in tree.items()}
        renames = self.is_agent and any("visual." in name for name in named)
        found: dict[str, torch.Tensor] = {}
        for name in sorted(named):
            inner = f"model.{name.removeprefix(_OUTER)}" if renames and name.startswith(_OUTER) else name
            if inner in found:
                raise ValueError(f"is_agent= gives two tensors the name {inner!r}: synchronise one of them")
            found[inner] = named[name]
        return found

    def _check(self, tree: ParamTree, version: int) -> None:
        if version > _LARGEST:
            raise ValueError(f"a bucket syncer's version= is at most {_LARGEST}; got {version}")

    def _produce(self, tree: ParamTree, sending: Sending, call: GatherCall) -> Iterator[dict[str, torch.Tensor]]:
        for number, bucket in enumerate(self._buckets(tree, sending.version, call)):
            yield Marked(bucket, (sending, number))

    # -- the receiver ---------------------------------------------------------------------------------------------

    async def init_receiver(self, state_dict: Mapping[str, Any] | None, recv: Recv, send: Send | None = None) -> None:
        await super().init_receiver(state_dict, recv, send)
        self._incoming = IncomingBuckets(holds=not self.load_instant)

    async def _apply(self, model: Any, recv: Recv) -> int:
        # A cancelled apply() leaves received buckets here, and the next apply() continues from them.
        while not self._incoming.is_whole:
            await in_thread(self._take, model, await recv())
        await in_thread(self._finish, model)
        return self.version

    def _take(self, model: Any, message: Any) -> None:
        tensors = self._incoming.take(message)
        if self.load_instant:
            try:
                self._load(model, tensors)
            except BaseException:
                self._incoming.drop()
                raise

    def _finish(self, model: Any) -> None:
        version, weights = self._incoming.finish()
        self._load(model, weights)
        self.version = version

    def _load(self, model: Any, weights: dict[str, torch.Tensor]) -> None:
        """Load like ``model.load_state_dict(weights, strict=False)``, but write nothing if anything does not fit."""
        if not weights:
            return
        if _loads_its_own(model):
            with in_turn({tensor.device for tensor in model.parameters()}):
                model.load_state_dict(weights, strict=False)
            return
        places = Places.of(model)
        there = places.tensors.keys() | places.values.keys() | places.refused.keys()
        known = {name: tensor for name, tensor in weights.items() if path_of(name) in there}
        if len(known) < len(weights) and not self._has_warned:
            self._has_warned = True
            lacking = [name for name in weights if name not in known]
            _log.warning("%d tensors are skipped, which the receiver lacks: %s ...", len(lacking), lacking[:5])
        plan_update(model, known).write()


def _loads_its_own(model: Any) -> bool:
    """Return True if the model's class overrides ``load_state_dict``, as some classes in RLinf do to rename tensors."""
    return (
        isinstance(model, nn.Module)
        and not is_tensordict(model)
        and type(model).load_state_dict is not nn.Module.load_state_dict
    )

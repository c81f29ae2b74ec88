"""RLinf's bucket syncer: whole tensors, in buckets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from rlinf_async.errors import ConfigError, WeightMismatch
from rlinf_async.weights.gather import gather_buckets
from rlinf_async.weights.manifest import Manifest, dtype_of
from rlinf_async.weights.param_tree import ParamTree, Path, name_of
from rlinf_async.weights.syncer import Recv, Send, WeightSyncer, check_rank, device_of, in_thread, precision_of
from rlinf_async.weights.update import plan_update

TOTAL_BUCKETS: Final = "total_buckets"
SYNCER_VERSION: Final = "syncer_version"
_METADATA: Final = (TOTAL_BUCKETS, SYNCER_VERSION)


class BucketWeightSyncer(WeightSyncer):
    """Sends all tensors in every version.

    Args:
        bucket_size: bytes after which a bucket ends; two of them are in memory at a time.  Tensors are not divided.
        bucket_dtype: what floating-point tensors are cast to, ``"bf16"`` or a dtype; None sends them bit for bit.
        bucket_device: where buckets are made; ``"cuda"`` is the CPU where there is no GPU.
        is_agent: the receiver's model is the language model inside of the sender's: ``model.language_model.`` becomes
            ``model.`` in the names.
        load_instant: a receiver writes each bucket as it comes, which takes less memory; else it writes all at once.
            If the sender dies in between, only the latter leaves the receiver with a whole version.
    """

    def __init__(
        self,
        bucket_size: int = 512 << 20,
        bucket_dtype: str | torch.dtype | None = None,
        bucket_device: str | torch.device = "cpu",
        is_agent: bool = False,
        load_instant: bool = True,
    ) -> None:
        super().__init__()
        if not bucket_size > 0:
            raise ConfigError(f"bucket_size= is bytes, more than 0; got {bucket_size!r}")
        self.bucket_size = bucket_size
        self.bucket_dtype = precision_of(bucket_dtype)
        self.bucket_device = device_of(bucket_device)
        self.is_agent = is_agent
        self.load_instant = load_instant

    async def init_sender(
        self,
        state_dict: Mapping[str, Any],
        param_names_need_sync: Collection[str] | None,
        send: Send,
        recv: Recv | None = None,
        is_sender: bool = True,
    ) -> None:
        tree = self._select(state_dict, param_names_need_sync)
        check_rank(tree, is_sender)
        self._is_sender = is_sender
        for path, _ in tree.items():
            _check_name(self._renamed(name_of(path)))
        if is_sender:
            sent = ParamTree.of({self._renamed(name_of(path)): tensor for path, tensor in tree.items()})
            await send({"manifest": Manifest.of(sent, self.bucket_dtype).to_bytes()})
        self._names = [name_of(path) for path, _ in tree.items()]

    def _produce(self, tree: ParamTree, version: int) -> Iterator[dict[str, torch.Tensor]]:
        items = [(self._renamed(name_of(path)), tensor) for path, tensor in tree.items()]
        yield from iter_named_tensor_buckets(
            items,
            version,
            bucket_size=self.bucket_size,
            bucket_device=self.bucket_device,
            dtype_resolver=lambda name, dtype: self.bucket_dtype or dtype,
        )

    async def init_receiver(self, state_dict: Mapping[str, Any], recv: Recv, send: Send | None = None) -> None:
        hello = await recv()
        if not isinstance(hello, Mapping) or "manifest" not in hello:
            raise WeightMismatch(f"a bucket syncer's sender begins with its manifest; {type(hello).__name__} has come")
        manifest = Manifest.from_bytes(hello["manifest"])
        check_fit(manifest, state_dict)
        self._is_receiver = True

    async def apply(self, model: Any, recv: Recv) -> int:
        self._check_receiver()
        held: dict[str, torch.Tensor] = {}
        version, total, count = -1, 0, 0
        while version < 0 or count < total:
            bucket = dict(await recv())
            if TOTAL_BUCKETS in bucket:  # also in the middle of an update that a sender has given up
                total, version = int(bucket.pop(TOTAL_BUCKETS)), int(bucket.pop(SYNCER_VERSION))
                held, count = {}, 0
            elif version < 0:
                raise WeightMismatch("a bucket has come that is not the first of its version; sync() once more")
            count += 1
            if self.load_instant:
                await in_thread(_write, model, bucket)
            else:
                held |= {name: tensor.cpu() for name, tensor in bucket.items()}
        if held:
            await in_thread(_write, model, held)
        self.version = version
        return version

    def _renamed(self, name: str) -> str:
        return name.replace("model.language_model.", "model.", 1) if self.is_agent else name


def iter_named_tensor_buckets(
    items: Iterable[tuple[str, torch.Tensor]],
    version: int,
    *,
    bucket_size: int,
    bucket_device: str | torch.device,
    dtype_resolver: Callable[[str, torch.dtype], torch.dtype] | None = None,
) -> Iterator[dict[str, torch.Tensor]]:
    """Copies of tensors by name, in buckets that are made when they are asked for.

    Args:
        items: names and tensors; of DTensors rank 0 gets whole ones, and the other ranks have to iterate as well.
        version: goes into the first bucket as ``syncer_version``, beside ``total_buckets``; both int32.
        bucket_size: bytes, after the cast, after which a bucket ends.  Tensors are not divided.
        bucket_device: where the copies are.
        dtype_resolver: what a floating-point tensor is cast to, by name and dtype.

    Raises:
        ValueError: a tensor has the name of one of these two.
    """
    plan: list[list[tuple[str, torch.Tensor, torch.dtype]]] = [[]]
    filled = 0
    for name, tensor in items:
        _check_name(name)
        casts = dtype_resolver is not None and tensor.is_floating_point()
        dtype = dtype_resolver(name, tensor.dtype) if casts and dtype_resolver is not None else tensor.dtype
        if filled >= bucket_size:
            plan.append([])
            filled = 0
        plan[-1].append((name, tensor, dtype))
        filled += tensor.numel() * dtype.itemsize
    for number, part in enumerate(plan):
        bucket: dict[str, torch.Tensor] = {}
        if number == 0:
            bucket[TOTAL_BUCKETS] = torch.tensor(len(plan), dtype=torch.int32)
            bucket[SYNCER_VERSION] = torch.tensor(version, dtype=torch.int32)
        tensors: dict[Path, torch.Tensor] = {(name,): tensor for name, tensor, _ in part}
        dtypes: dict[Path, torch.dtype] = {(name,): dtype for name, _, dtype in part}
        for whole in gather_buckets(ParamTree(tensors)):
            for path, tensor in whole.items():
                bucket[path[0]] = tensor.to(device_of(bucket_device), dtypes[path], copy=True)
        yield bucket


def check_fit(manifest: Manifest, destination: Any) -> None:
    """
    Raises:
        WeightMismatch: what the manifest describes could not be written to the destination.
    """
    # Tensors that have the shapes and take no memory.
    zeros = {name: torch.zeros((), dtype=dtype_of(name)) for name in {leaf.transport_dtype for leaf in manifest.leaves}}
    plan_update(
        destination,
        {name_of(path): zeros[leaf.transport_dtype].expand(leaf.shape) for path, leaf in manifest.by_path.items()},
    )


def _write(model: Any, weights: dict[str, torch.Tensor]) -> None:
    plan_update(model, weights).write()


def _check_name(name: str) -> None:
    if name in _METADATA:
        raise ValueError(f"the tensor {name!r} conflicts with metadata key {name!r}: give it another name")

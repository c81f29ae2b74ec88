"""RLinf's patch syncer: the bytes that have changed since the version before."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import torch

from rlinf_async.errors import ConfigError, WeightMismatch, WrongBase
from rlinf_async.weights.bucket_syncer import check_fit, iter_named_tensor_buckets
from rlinf_async.weights.delta import PIECE, Delta, encode
from rlinf_async.weights.gather import gather_into, is_sharded
from rlinf_async.weights.leaf_memory import LeafMemory
from rlinf_async.weights.manifest import Manifest, dtype_name, dtype_of
from rlinf_async.weights.param_tree import ParamTree, Path, memory_of, name_of, path_of
from rlinf_async.weights.patch import CompressedWeightPatch, EmptyWeightPatch, WeightPatch, checksums, digest_of
from rlinf_async.weights.syncer import Recv, Send, WeightSyncer, check_rank, device_of, in_thread
from rlinf_async.weights.update import places_of, plan_update

_GPU_PIECE: Final = 64 << 20
_FIRST: Final = -1  # the version of both sides after they have been initialised


class PatchWeightSyncer(WeightSyncer):
    """Sends what has changed, in the receiver's dtypes, bit for bit; see ``delta`` for the form.

    The sender keeps a snapshot of what was sent last.  A patch says which version it is for, and the first one for
    which weights: a receiver that has others refuses it (``WrongBase``) and keeps what it has.  After a failed send, or
    ``request_full``, everything is sent once.

    Args:
        snapshot_device: where the snapshot is and versions are compared; ``"cuda"`` is the CPU where there is no GPU.
        transport_device: where patches are sent from; None: from there.
        delta_encoding: for RLinf's configurations; each part takes the smallest form in any case.
        compression_algorithm: ``"none"`` or ``"zlib"``; the latter pays on links below some 100 MB/s.
        init_sync_enabled: the first meeting brings the receiver's weights to the sender's, if they are not.
        init_sync_prefixes: only keys that begin with one of these; None: all keys, also those that are not
            synchronised later.
        init_sync_bucket_size: bytes; see ``BucketWeightSyncer``.
    """

    def __init__(
        self,
        snapshot_device: str | torch.device = "cpu",
        transport_device: str | torch.device | None = None,
        delta_encoding: bool = True,
        compression_algorithm: str = "none",
        init_sync_enabled: bool = False,
        init_sync_prefixes: Collection[str] | None = None,
        init_sync_bucket_size: int = 128 << 20,
    ) -> None:
        super().__init__()
        if compression_algorithm not in ("none", "zlib"):
            raise ConfigError(f"compression_algorithm= is 'none' or 'zlib'; got {compression_algorithm!r}")
        if not init_sync_bucket_size > 0:
            raise ConfigError(f"init_sync_bucket_size= is bytes, more than 0; got {init_sync_bucket_size!r}")
        self.snapshot_device = device_of(snapshot_device)
        self.transport_device = None if transport_device is None else device_of(transport_device)
        self.delta_encoding = delta_encoding
        self.compression_algorithm = compression_algorithm
        self.init_sync_enabled = init_sync_enabled
        self.init_sync_prefixes = None if init_sync_prefixes is None else tuple(init_sync_prefixes)
        self.init_sync_bucket_size = init_sync_bucket_size
        self._manifest: Manifest | None = None
        self._snapshot: torch.Tensor | None = None
        self._base: int | None = None
        self._digest = b""

    # -- the sender -----------------------------------------------------------------------------------------------

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
        self._names = None
        if not is_sender:
            self._manifest = Manifest.of(tree)
            await in_thread(_packed, self._manifest, tree, torch.device("cpu"), is_sender)
        else:
            if recv is None:
                raise ValueError("a patch syncer's sender needs recv=: the receiver says what it has")
            hello = await recv()
            dtypes = _receivers_dtypes(tree, hello)
            self._manifest = Manifest.of(tree, lambda name, dtype: dtypes.get(name))
            await send({"manifest": self._manifest.to_bytes(), "init_sync": self.init_sync_enabled})
            self._snapshot = await in_thread(_packed, self._manifest, tree, self.snapshot_device, is_sender)
            sums = await in_thread(checksums, self._manifest, self._manifest.views(self._snapshot))
            different = {name for name, value in sums.items() if hello["checksums"].get(name) != value}
            self._digest = digest_of(sums)
        if self.init_sync_enabled:
            everything = self._select(state_dict, None)
            items = [(name_of(p), tensor) for p, tensor in everything.items() if self._is_first(name_of(p))]
            buckets = iter_named_tensor_buckets(
                items, _FIRST, bucket_size=self.init_sync_bucket_size, bucket_device=self.transport_device or "cpu"
            )
            while (bucket := await in_thread(next, buckets, None)) is not None:
                if is_sender:
                    await send(bucket)
        if is_sender:
            left = {name for name in different if not (self.init_sync_enabled and self._is_first(name))}
            self._base = None if left else _FIRST
        self._names = [name_of(path) for path, _ in tree.items()]

    def _is_first(self, name: str) -> bool:
        return self.init_sync_prefixes is None or name.startswith(self.init_sync_prefixes)

    def request_full(self) -> None:
        """The next version is sent whole: a receiver does not have the one before."""
        self._base = None

    def _sent(self, version: int) -> None:
        super()._sent(version)
        self._base = version

    def _produce(self, tree: ParamTree, version: int) -> Iterator[Any]:
        manifest, base = self._manifest, self._base
        assert manifest is not None
        manifest_now = Manifest.of(tree, lambda name, dtype: manifest.by_path[path_of(name)].transport_dtype)
        if self._is_sender:
            manifest.check(manifest_now)
        self._base = None  # until it has been sent, nobody knows what the receivers have
        new: torch.Tensor | LeafMemory
        if any(is_sharded(tensor) for tensor in tree.tensors.values()):
            new = _packed(manifest, tree, self.snapshot_device, self._is_sender)
        else:
            tensors = {path: tensor.detach().to(self.snapshot_device) for path, tensor in tree.tensors.items()}
            new = LeafMemory(manifest, tensors, self.snapshot_device)
        if not self._is_sender:
            return
        assert self._snapshot is not None
        piece = PIECE if self.snapshot_device.type == "cpu" else _GPU_PIECE
        before = None if base is None else self._snapshot
        delta = encode(manifest, before, new, piece, snapshot=self._snapshot)
        digest = self._digest if base == _FIRST else b""
        if base is not None and not delta.body.numel():
            yield EmptyWeightPatch(version, base, digest)
            return
        body = delta.body if self.transport_device is None else delta.body.to(self.transport_device)
        patch = WeightPatch(version, base, digest, delta.head, body)
        if self.compression_algorithm == "zlib":
            compressed = zlib.compress(body.cpu().numpy().data, 1)
            patch = WeightPatch(version, base, digest, delta.head, body[:0].cpu())
            yield CompressedWeightPatch(patch, compressed)
            return
        yield patch

    # -- the receiver ---------------------------------------------------------------------------------------------

    async def init_receiver(self, state_dict: Mapping[str, Any], recv: Recv, send: Send | None = None) -> None:
        if send is None:
            raise ValueError("a patch syncer's receiver needs send=: it says what it has")
        self._is_receiver = False
        tree = self._select(state_dict, None)
        named = {name_of(path): tensor for path, tensor in tree.items()}
        own = Manifest.of(tree)
        sums = await in_thread(checksums, own, tree.tensors)
        await send(
            {
                "ordered_keys": list(named),
                "original_shapes": {name: list(tensor.shape) for name, tensor in named.items()},
                "receiver_dtypes": {name: dtype_name(tensor.dtype) for name, tensor in named.items()},
                "checksums": sums,
            }
        )
        hello = await recv()
        if not isinstance(hello, Mapping) or "init_sync" not in hello:
            raise WeightMismatch(f"a patch syncer's sender begins with its manifest; {type(hello).__name__} has come")
        manifest = Manifest.from_bytes(hello["manifest"])
        check_fit(manifest, state_dict)
        remaining = 1 if hello["init_sync"] else 0
        while remaining:
            bucket = dict(await recv())
            remaining = int(bucket.pop("total_buckets", remaining)) - 1
            bucket.pop("syncer_version", None)
            await in_thread(lambda weights: plan_update(state_dict, weights).write(), bucket)
        self._digest = digest_of(await in_thread(checksums, manifest, _leaves(manifest, state_dict)))
        self._manifest, self.version, self._is_receiver = manifest, _FIRST, True

    async def apply(self, model: Any, recv: Recv) -> int:
        self._check_receiver()
        patch = await recv()
        if isinstance(patch, CompressedWeightPatch):
            patch = await in_thread(patch.decompressed)
        if not isinstance(patch, (WeightPatch, EmptyWeightPatch)):
            raise WeightMismatch(f"a patch was expected; {type(patch).__name__} has come")
        if patch.base is not None and patch.base != self.version:
            raise WrongBase.of(patch.base, self.version)
        if patch.base == _FIRST and patch.digest != self._digest:
            raise WrongBase(
                "the first patch is for other weights than this receiver began with: sync() after request_full()"
            )
        if isinstance(patch, WeightPatch):
            await in_thread(self._write, model, patch)
        self.version = patch.version
        return patch.version

    def _write(self, model: Any, patch: WeightPatch) -> None:
        manifest = self._manifest
        assert manifest is not None
        there = dict(places_of(model))
        leaves = _leaves(manifest, there)
        device = next(iter(leaves.values())).device if leaves else torch.device("cpu")
        with torch.inference_mode(any(leaf.is_inference() for leaf in leaves.values())), torch.no_grad():
            Delta(patch.head, patch.body.to(device)).apply(manifest, LeafMemory(manifest, leaves, device))
            for path, owner in manifest.aliases.items():
                if path in there and memory_of(there[path]) != memory_of(leaves[owner]):
                    there[path].data.copy_(leaves[owner])  # tied at the sender only


def _receivers_dtypes(tree: ParamTree, hello: Any) -> dict[str, str]:
    """By name, for what is to be sent.

    Raises:
        WeightMismatch: the receiver does not have all of it, in these shapes.
    """
    try:
        shapes, dtypes = hello["original_shapes"], hello["receiver_dtypes"]
    except (KeyError, TypeError):
        raise WeightMismatch(
            f"a patch syncer's receiver begins with its keys; {type(hello).__name__} has come"
        ) from None
    problems = []
    for path, tensor in tree.items():
        name = name_of(path)
        if name not in shapes:
            problems.append(f"{name!r} is missing there")
        elif list(shapes[name]) != list(tensor.shape):
            problems.append(f"{name!r} has shape {list(tensor.shape)} here and {list(shapes[name])} there")
        elif not torch.can_cast(tensor.dtype, dtype_of(dtypes[name])):
            problems.append(f"{name!r} is {tensor.dtype} here, which cannot be cast to {dtypes[name]}")
    if problems:
        raise WeightMismatch(f"the receiver has other weights: {'; '.join(problems[:5])}")
    return dict(dtypes)


def _leaves(manifest: Manifest, model: Any) -> dict[Path, torch.Tensor]:
    """The tensors of a model that the manifest names.

    Raises:
        WeightMismatch: one is missing or has become another.
    """
    there = (
        model if isinstance(model, dict) and all(isinstance(key, tuple) for key in model) else dict(places_of(model))
    )
    found = {}
    for leaf in manifest.leaves:
        tensor = there.get(leaf.path)
        if not isinstance(tensor, torch.Tensor):
            raise WeightMismatch(f"Error updating destination: {name_of(leaf.path)!r} is not in the destination")
        if dtype_name(tensor.dtype) != leaf.transport_dtype or tuple(tensor.shape) != leaf.shape:
            raise WeightMismatch(
                f"Error updating destination: {name_of(leaf.path)!r} has become {tensor.dtype}{list(tensor.shape)}; "
                f"the two sides agreed on {leaf.transport_dtype}{list(leaf.shape)}"
            )
        found[leaf.path] = tensor.detach()
    return found


def _packed(manifest: Manifest, tree: ParamTree, device: torch.device, is_sender: bool) -> torch.Tensor:
    """A region with the tree's tensors; collective if some are sharded."""
    region = torch.zeros(manifest.nbytes if is_sender else 0, dtype=torch.uint8, device=device)
    gather_into(manifest.views(region) if is_sender else {}, tree)
    return region

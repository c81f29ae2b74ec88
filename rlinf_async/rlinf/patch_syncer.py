"""RLinf's patch syncer, which sends only the bytes that have changed since the previous version."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import torch

from rlinf_async._core.own_logger import own_logger
from rlinf_async.errors import ConfigError, WeightMismatch, WrongBase
from rlinf_async.rlinf.buckets import IncomingBuckets, Marked, buckets_in_call
from rlinf_async.rlinf.patch import CompressedWeightPatch, EmptyWeightPatch, WeightPatch, checksums
from rlinf_async.rlinf.sending import Sending
from rlinf_async.rlinf.syncer import Recv, Send, WeightSyncer, in_thread
from rlinf_async.rlinf.syncer_options import device_of
from rlinf_async.weights.model.delta import GPU_PIECE, PIECE, Delta, encode
from rlinf_async.weights.model.fit import Fit
from rlinf_async.weights.model.gather import gather_into
from rlinf_async.weights.model.gather_calls import GatherCall
from rlinf_async.weights.model.leaf_memory import LeafMemory
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.model.param_tree import ParamTree, name_of, path_of
from rlinf_async.weights.model.shards import is_sharded
from rlinf_async.weights.model.writing import in_turn, plan_update

_log: Final = own_logger(__name__)


class PatchWeightSyncer(WeightSyncer):
    """A syncer that sends only changed bytes, bit for bit, in the receiver's floating-point dtypes; ``delta`` describes
    the format.

    The receiver sends its weights' names and dtypes once; names and shapes must equal the sender's.

    The sender keeps a snapshot of the last weights sent. A patch names the version and the transmission to which it
    applies; the first patch instead identifies the initial weights by checksums. A receiver with other weights, or with
    another sender's weights, refuses the patch (``WrongBase``) and keeps its weights. After a failed send, or
    ``request_full``, the next patch contains everything.

    Args:
        snapshot_device: device of the snapshot and the comparison; ``"cuda"`` means the CPU on a machine without a GPU.
        transport_device: device from which patches are sent; None means the snapshot's device.
        delta_encoding: accepted for RLinf's configurations and ignored, because each part uses its smallest encoding.
        compression_algorithm: ``"none"`` or ``"zlib"``, which is worthwhile on links below about 100 MB/s; any other
            value logs a warning and means ``"none"``.
        init_sync_enabled: if True, the init methods also send the sender's weights to the receiver; must be the same at
            both ends.
        init_sync_prefixes: limits these initial weights to keys with these prefixes; None means all keys, including
            keys that are not synchronised later.
        init_sync_bucket_size: size in bytes of the initial weights' buckets; see ``BucketWeightSyncer``.
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
            _log.warning("compression_algorithm= is 'none' or 'zlib'; %r is taken for 'none'", compression_algorithm)
            compression_algorithm = "none"
        if init_sync_enabled and init_sync_prefixes is not None and not init_sync_prefixes:
            raise ConfigError("init_sync_prefixes= must not be empty; None stands for all keys")
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
        self._base: Sending | None = None  # the transmission that all receivers have
        self._is_requested = False  # True if request_full() was called since the last version was created
        self._here: Sending | None = None  # the last transmission that this receiver applied
        self._sums: dict[str, int] = {}  # checksums of the receiver's initial weights

    # -- the sender -----------------------------------------------------------------------------------------------

    async def init_sender(
        self,
        state_dict: Mapping[str, Any],
        param_names_need_sync: Collection[str] | None,
        send: Send,
        recv: Recv | None = None,
        is_sender: bool | None = None,
    ) -> None:
        call = self._begin_anew(param_names_need_sync, is_sender)
        everything, tree = self._select(state_dict, None), self._select(state_dict, self._names)
        first = self._first(everything) if self.init_sync_enabled else {}
        self._check_rank(tree, call)
        if self._sends and recv is None:
            raise ValueError("a patch syncer's sender needs recv=: the receiver says what it has")
        # A receiver sends its description to every rank except those declared gather-only.
        hello = await recv() if recv is not None and is_sender is not False else None
        dtypes = {} if hello is None else _receivers_dtypes(tree, everything, hello)
        self._manifest = Manifest.of(tree, lambda name, _: dtypes.get(name))
        self._snapshot = await in_thread(_packed, self._manifest, tree, self.snapshot_device, self._sends, call)
        if self._sends:
            sums = await in_thread(checksums, self._manifest, self._manifest.views(self._snapshot))
            theirs = getattr(hello, "mark", {})
            left = {name for name, value in sums.items() if theirs.get(name) != value} - first.keys()
            self._base = None if left else Sending.beginning(sums)
        if self.init_sync_enabled:
            device, self._gathers = self.transport_device or "cpu", any(map(is_sharded, first.values()))
            await self._send_all(
                buckets_in_call(call, first.items(), 0, self.init_sync_bucket_size, device, None), send
            )
        self._names = frozenset(name_of(path) for path, _ in tree.items())
        self._sender_initialized = True

    def _first(self, everything: ParamTree) -> dict[str, torch.Tensor]:
        """Return the weights that the init methods send; raise ValueError if no key has one of the prefixes."""
        named = {name_of(path): tensor for path, tensor in everything.items()}
        if self.init_sync_prefixes is None:
            return named
        below = {
            prefix: [name for name in named if f"{name}.".startswith(f"{prefix}.")]
            for prefix in self.init_sync_prefixes
        }
        if unmatched := [prefix for prefix, names in below.items() if not names]:
            raise ValueError(f"no key of the weights is, or is below, {unmatched}, of init_sync_prefixes=")
        return {name: named[name] for names in below.values() for name in names}

    def request_full(self) -> None:
        """Make the next version complete, for a receiver that lacks the previous version.

        A version that is being sent, or is staged, is not affected.
        """
        self._is_requested = True
        self._base = None

    def _sent(self, sending: Sending) -> None:
        super()._sent(sending)
        self._base = None if self._is_requested else sending

    def _check(self, tree: ParamTree, version: int) -> None:
        manifest = self._manifest
        assert manifest is not None
        manifest.check(Manifest.of(tree, lambda name, dtype: manifest.by_path[path_of(name)].transport_dtype))

    def _produce(self, tree: ParamTree, sending: Sending, call: GatherCall) -> Iterator[Any]:
        # Reset the request before reading the base, because a later request applies to the version after this one.
        self._is_requested = False
        manifest, base = self._manifest, self._base
        assert manifest is not None
        self._base = None  # until the version has been sent, the receivers' weights are unknown
        new: torch.Tensor | LeafMemory
        if any(is_sharded(tensor) for tensor in tree.tensors.values()):
            new = _packed(manifest, tree, self.snapshot_device, self._sends, call)
        else:
            tensors = [tree[leaf.path].detach().to(self.snapshot_device).contiguous() for leaf in manifest.leaves]
            new = LeafMemory(manifest, tensors, self.snapshot_device)
        if not self._sends:
            return
        assert self._snapshot is not None
        piece = PIECE if self.snapshot_device.type == "cpu" else GPU_PIECE
        before = None if base is None else self._snapshot
        delta = encode(manifest, before, new, piece, snapshot=self._snapshot)
        described = manifest.to_bytes() if base is None or base.number < 0 else b""
        if base is not None and not delta.body.numel():
            yield EmptyWeightPatch(sending, base, described)
            return
        body = delta.body if self.transport_device is None else delta.body.to(self.transport_device)
        patch = WeightPatch(sending, base, described, delta.head, body)
        if self.compression_algorithm == "zlib":
            compressed = zlib.compress(body.cpu().numpy().data, 1)
            yield CompressedWeightPatch(replace(patch, body=body[:0].cpu()), compressed)
            return
        yield patch

    # -- the receiver ---------------------------------------------------------------------------------------------

    async def init_receiver(self, state_dict: Mapping[str, Any] | None, recv: Recv, send: Send | None = None) -> None:
        if send is None or state_dict is None:
            raise ValueError("a patch syncer's receiver needs send= and its state_dict: it says what it has")
        self._receiver_initialized = False
        tree = self._select(state_dict, None)
        named = {name_of(path): tensor for path, tensor in tree.items()}
        own = Manifest.of(tree)
        self._sums = await in_thread(checksums, own, tree.tensors)
        hello = {
            "ordered_keys": [name for name in dict.fromkeys([*state_dict, *named]) if name in named],
            "original_shapes": {name: tensor.shape for name, tensor in named.items()},
            "receiver_dtypes": {name: tensor.dtype for name, tensor in named.items()},
        }
        await send(Marked(hello, self._sums))
        if self.init_sync_enabled:
            incoming = IncomingBuckets()
            while not incoming.is_whole:
                await in_thread(incoming.take, await recv())
            await in_thread(lambda: plan_update(state_dict, incoming.finish()[1]).write())
            self._sums = await in_thread(checksums, own, tree.tensors)
        self._manifest = self._here = None
        await super().init_receiver(state_dict, recv, send)

    async def _apply(self, model: Any, recv: Recv) -> int:
        if not self._receiver_initialized:
            raise RuntimeError("the receiver is not initialised: await init_receiver() first")
        message = await recv()
        patch = message.patch if isinstance(message, CompressedWeightPatch) else message
        if not isinstance(patch, (WeightPatch, EmptyWeightPatch)):
            raise WeightMismatch(
                f"a patch was expected; {type(patch).__name__} has come.  Both ends have the same configuration "
                "(type, init_sync_enabled); if its sender has begun anew, await init_receiver() here too"
            )
        manifest = Manifest.from_bytes(patch.manifest) if patch.manifest else self._manifest
        self._check_base(patch, manifest)
        await in_thread(self._write, model, message, manifest)
        return self.version

    def _check_base(self, patch: WeightPatch | EmptyWeightPatch, manifest: Manifest | None) -> None:
        """Compare a patch with the weights here; raise StaleVersion or WrongBase if it does not apply to them."""
        names = () if manifest is None else map(name_of, manifest.by_path)
        here = self._here or Sending.beginning({name: self._sums.get(name) for name in names})
        patch.sending.check_after(here, "which is here")
        base = patch.base
        if base is None or base == here:
            return
        if base.version != here.version:
            raise WrongBase.of(base.version, here.version)
        if base.number < 0:
            raise WrongBase(
                "the first patch is for other weights than this receiver began with: sync() after request_full()"
            )
        other = "" if base.sender == here.sender else " of another sender"
        raise WrongBase(
            f"the patch is for another sending of version {here.version}{other} than the one that is here: sync() "
            "after request_full(), or init_sender() and init_receiver() once more"
        )

    def _write(
        self,
        model: Any,
        patch: WeightPatch | EmptyWeightPatch | CompressedWeightPatch,
        manifest: Manifest | None,
    ) -> None:
        if isinstance(patch, CompressedWeightPatch):
            patch = patch.decompressed()
        if isinstance(patch, WeightPatch):
            assert manifest is not None
            fit = Fit(model, manifest, strict_dtype=True)
            device = fit.targets[0].device if fit.targets else torch.device("cpu")
            with in_turn({device}), torch.inference_mode(fit.is_inference), torch.no_grad():
                leaves, others = _as_leaves(fit, manifest)
                delta = Delta(patch.head, patch.body.to(device))
                if fit.ties:
                    copies = [leaf.clone() for leaf in leaves]
                    delta.apply(manifest, LeafMemory(manifest, copies, device))
                    fit.check(copies, {})
                delta.apply(manifest, LeafMemory(manifest, leaves, device))
                for target, leaf in others:
                    target.copy_(leaf)
        self.version, self._here, self._manifest = patch.version, patch.sending, manifest


def _as_leaves(fit: Fit, manifest: Manifest) -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return the targets as whole leaves, and ``(target, leaf)`` for each target that is a part of a leaf.

    Raises:
        WeightMismatch: a leaf belongs to a value that is not a tensor, which a patch cannot change.
    """
    leaves: dict[int, torch.Tensor] = {}
    others = []
    for place, index in (*fit.chosen, *(other for _, other in fit.ties)):
        target = place.tensor.detach()
        if index not in leaves:
            leaves[index] = target.new_empty(manifest.leaves[index].shape) if place.parts else target.contiguous()
        if leaves[index] is not target:
            part = place.of(leaves[index])
            others.append((target, part))
            if place.parts:
                part.copy_(target)
    for index, leaf in enumerate(manifest.leaves):
        if index not in leaves:
            raise WeightMismatch(f"Error updating destination: {name_of(leaf.path)!r} is no tensor in the destination")
    return [leaves[index] for index in sorted(leaves)], others


def _packed(
    manifest: Manifest, tree: ParamTree, device: torch.device, is_sender: bool, call: GatherCall
) -> torch.Tensor:
    """Return a region with the tree's tensors; collective if some are sharded."""
    region = torch.zeros(manifest.nbytes if is_sender else 0, dtype=torch.uint8, device=device)
    gather_into(manifest.views(region) if is_sender else {}, tree, call)
    return region


def _receivers_dtypes(tree: ParamTree, everything: ParamTree, hello: Any) -> dict[str, torch.dtype]:
    """Return the receiver's dtypes by name.

    Args:
        tree, everything: tensors to send, and all of the sender's tensors.

    Raises:
        WeightMismatch: the receiver's names, shapes or dtypes differ.
    """
    try:
        shapes, dtypes = dict(hello["original_shapes"]), dict(hello["receiver_dtypes"])
    except (KeyError, TypeError):
        raise WeightMismatch(
            f"a patch syncer's receiver begins with its keys; {type(hello).__name__} has come"
        ) from None
    here = {name_of(path) for path, _ in everything.items()}
    problems = [f"{name!r} is missing there" for name in sorted(here - shapes.keys())]
    problems += [f"{name!r} is there only" for name in sorted(shapes.keys() - here)]
    for path, tensor in tree.items():
        name = name_of(path)
        if name not in shapes:
            continue
        if list(shapes[name]) != list(tensor.shape):
            problems.append(f"{name!r} has shape {list(tensor.shape)} here and {list(shapes[name])} there")
        elif tensor.dtype != dtypes[name] and not (tensor.is_floating_point() and dtypes[name].is_floating_point):
            problems.append(f"{name!r} is {tensor.dtype} here and {dtypes[name]} there, to which patches cast nothing")
    if problems:
        raise WeightMismatch(f"the receiver has other weights: {'; '.join(problems[:5])}")
    return dtypes

"""RLinf's patch syncer: the bytes that have changed since the version before."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import torch

from rlinf_async.errors import ConfigError, StaleVersion, WeightMismatch, WrongBase
from rlinf_async.weights.model.delta import PIECE, Delta, encode
from rlinf_async.weights.model.gather import gather_into, is_sharded
from rlinf_async.weights.model.gather_calls import Call
from rlinf_async.weights.model.leaf_memory import LeafMemory
from rlinf_async.weights.model.manifest import Manifest, dtype_name
from rlinf_async.weights.model.param_tree import ParamTree, name_of, path_of
from rlinf_async.weights.model.update import in_turn, plan_update
from rlinf_async.weights.syncers.buckets import buckets_in_call, numbered
from rlinf_async.weights.syncers.fit import Leaves, check_rank, check_ties, leaves_of, receivers_dtypes
from rlinf_async.weights.syncers.incoming import IncomingBuckets
from rlinf_async.weights.syncers.options import device_of
from rlinf_async.weights.syncers.patch import CompressedWeightPatch, EmptyWeightPatch, WeightPatch, checksums, digest_of
from rlinf_async.weights.syncers.sending import BEGINNING, Sending
from rlinf_async.weights.syncers.syncer import Recv, Send, WeightSyncer, exhaust, find_shards, in_thread

_GPU_PIECE: Final = 64 << 20


class PatchWeightSyncer(WeightSyncer):
    """Sends what has changed, in the receiver's dtypes, bit for bit; see ``delta`` for the form.

    The sender keeps a snapshot of what was sent last.  A patch says which version it is for and which sending of it,
    and the first one for which weights: a receiver that has others, or another sender's, refuses it (``WrongBase``) and
    keeps what it has.
    After a failed send, or ``request_full``, everything is sent once.

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
        self._base: Sending | None = None  # what the receivers have
        self._requests = self._heard = 0  # for everything; how many there were when the last version was made
        self._digest = b""
        self._here = BEGINNING  # what has been applied last

    # -- the sender -----------------------------------------------------------------------------------------------

    async def init_sender(
        self,
        state_dict: Mapping[str, Any],
        param_names_need_sync: Collection[str] | None,
        send: Send,
        recv: Recv | None = None,
        is_sender: bool = True,
    ) -> None:
        call = self._begin_anew(is_sender)
        tree = self._select(state_dict, param_names_need_sync)
        check_rank(tree, is_sender)
        find_shards(tree, call)
        if not is_sender:
            self._manifest = Manifest.of(tree)
            await in_thread(_packed, self._manifest, tree, torch.device("cpu"), is_sender, call)
        else:
            if recv is None:
                raise ValueError("a patch syncer's sender needs recv=: the receiver says what it has")
            hello = await recv()
            dtypes = receivers_dtypes(tree, hello)
            self._manifest = Manifest.of(tree, lambda name, dtype: dtypes.get(name))
            await send({"manifest": self._manifest.to_bytes(), "init_sync": self.init_sync_enabled})
            self._snapshot = await in_thread(_packed, self._manifest, tree, self.snapshot_device, is_sender, call)
            sums = await in_thread(checksums, self._manifest, self._manifest.views(self._snapshot))
            different = {name for name, value in sums.items() if hello["checksums"].get(name) != value}
            self._digest = digest_of(sums)
        if self.init_sync_enabled:
            everything = self._select(state_dict, None)
            items = [(name_of(p), tensor) for p, tensor in everything.items() if self._is_first(name_of(p))]
            device = self.transport_device or "cpu"
            buckets = buckets_in_call(call, items, BEGINNING.version, self.init_sync_bucket_size, device, None)
            marked = numbered(buckets, BEGINNING)
            while (bucket := await in_thread(next, marked, None)) is not None:
                if is_sender:
                    try:
                        await send(bucket)
                    except BaseException:
                        if find_shards(everything, call):
                            with contextlib.suppress(Exception):
                                await exhaust(marked)
                        raise
        if is_sender:
            left = {name for name in different if not (self.init_sync_enabled and self._is_first(name))}
            self._base = None if left else BEGINNING
        self._names = [name_of(path) for path, _ in tree.items()]

    def _is_first(self, name: str) -> bool:
        return self.init_sync_prefixes is None or name.startswith(self.init_sync_prefixes)

    def request_full(self) -> None:
        """The next version is sent whole: a receiver does not have the one before.

        That is the one after a version that is on its way, or staged.
        """
        self._requests += 1
        self._base = None

    def _sent(self, sending: Sending) -> None:
        super()._sent(sending)
        self._base = sending if self._requests == self._heard else None

    def _check(self, tree: ParamTree, version: int) -> None:
        manifest = self._manifest
        assert manifest is not None
        manifest.check(Manifest.of(tree, lambda name, dtype: manifest.by_path[path_of(name)].transport_dtype))

    def _produce(self, tree: ParamTree, sending: Sending, call: Call) -> Iterator[Any]:
        self._heard = self._requests  # before the base: a request from here on is for the version after this
        manifest, base = self._manifest, self._base
        assert manifest is not None
        self._base = None  # until it has been sent, nobody knows what the receivers have
        new: torch.Tensor | LeafMemory
        if any(is_sharded(tensor) for tensor in tree.tensors.values()):
            new = _packed(manifest, tree, self.snapshot_device, self._is_sender, call)
        else:
            tensors = {path: tensor.detach().to(self.snapshot_device) for path, tensor in tree.tensors.items()}
            new = LeafMemory(manifest, tensors, self.snapshot_device)
        if not self._is_sender:
            return
        assert self._snapshot is not None
        piece = PIECE if self.snapshot_device.type == "cpu" else _GPU_PIECE
        before = None if base is None else self._snapshot
        delta = encode(manifest, before, new, piece, snapshot=self._snapshot)
        digest = self._digest if base == BEGINNING else b""
        if base is not None and not delta.body.numel():
            yield EmptyWeightPatch(sending, base, digest)
            return
        body = delta.body if self.transport_device is None else delta.body.to(self.transport_device)
        patch = WeightPatch(sending, base, digest, delta.head, body)
        if self.compression_algorithm == "zlib":
            compressed = zlib.compress(body.cpu().numpy().data, 1)
            yield CompressedWeightPatch(replace(patch, body=body[:0].cpu()), compressed)
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
        leaves_of(manifest, state_dict)
        if hello["init_sync"]:
            coming = IncomingBuckets(None)
            while not coming.is_whole:
                await in_thread(coming.take, await recv())
            await in_thread(lambda: plan_update(state_dict, coming.finish()[1]).write())
            sums = await in_thread(checksums, own, tree.tensors)
        self._digest = digest_of({name: sums[name] for name in map(name_of, manifest.by_path)})
        self._receives_anew()
        self._manifest, self._here = manifest, BEGINNING

    async def _apply(self, model: Any, recv: Recv) -> int:
        message = await recv()
        patch = message.patch if isinstance(message, CompressedWeightPatch) else message
        if not isinstance(patch, (WeightPatch, EmptyWeightPatch)):
            raise WeightMismatch(
                f"a patch was expected; {type(patch).__name__} has come.  If its sender has begun anew, by "
                "init_sender(): await init_receiver() here at the same time"
            )
        self._check_base(patch)
        await in_thread(self._write, model, message)
        return self.version

    def _check_base(self, patch: WeightPatch | EmptyWeightPatch) -> None:
        """
        Raises:
            StaleVersion, WrongBase: it is not for what is here.
        """
        here = self._here
        if not patch.sending.is_after(here):
            raise StaleVersion.of(patch.version, here.version, "which is here")
        if patch.base is None:
            return
        if patch.base.version != here.version:
            raise WrongBase.of(patch.base.version, here.version)
        if patch.base == BEGINNING and patch.digest != self._digest:
            raise WrongBase(
                "the first patch is for other weights than this receiver began with: sync() after request_full()"
            )
        if patch.base.sender != here.sender:
            raise WrongBase(
                f"the patch is for version {here.version} of another sender than the one that sent what is here: "
                "init_sender() and init_receiver() once more, or sync() after request_full()"
            )
        if patch.base != here:
            raise WrongBase(
                f"the patch is for another sending of version {here.version} than the one that is here: sync() after "
                "request_full()"
            )

    def _write(self, model: Any, patch: WeightPatch | EmptyWeightPatch | CompressedWeightPatch) -> None:
        if isinstance(patch, CompressedWeightPatch):
            patch = patch.decompressed()
        if isinstance(patch, WeightPatch):
            manifest = self._manifest
            assert manifest is not None
            leaves, twins = leaves_of(manifest, model)
            device = next(iter(leaves.values())).device if leaves else torch.device("cpu")
            inference = torch.inference_mode(any(leaf.is_inference() for leaf in leaves.values()))
            with in_turn({device}), inference, torch.no_grad():
                delta = Delta(patch.head, patch.body.to(device))

                def apply(to: Leaves) -> None:
                    delta.apply(manifest, LeafMemory(manifest, to, device))

                check_ties(manifest, model, leaves, apply)
                apply(leaves)
                for target, leaf in twins:
                    target.copy_(leaf)
        self.version, self._here = patch.version, patch.sending


def _packed(manifest: Manifest, tree: ParamTree, device: torch.device, is_sender: bool, call: Call) -> torch.Tensor:
    """A region with the tree's tensors; collective if some are sharded."""
    region = torch.zeros(manifest.nbytes if is_sender else 0, dtype=torch.uint8, device=device)
    gather_into(manifest.views(region) if is_sender else {}, tree, call=call)
    return region

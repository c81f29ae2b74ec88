"""RLinf's bucket syncer: whole tensors, in buckets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from rlinf_async.errors import ConfigError, WeightMismatch
from rlinf_async.weights.model.gather_calls import Call
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.model.param_tree import ParamTree, name_of
from rlinf_async.weights.model.update import plan_update
from rlinf_async.weights.syncers.buckets import LARGEST, buckets_in_call, check_name, numbered
from rlinf_async.weights.syncers.fit import check_fit, check_rank
from rlinf_async.weights.syncers.incoming import IncomingBuckets
from rlinf_async.weights.syncers.options import device_of, precision_of
from rlinf_async.weights.syncers.sending import Sending
from rlinf_async.weights.syncers.syncer import Recv, Send, WeightSyncer, find_shards, in_thread


class BucketWeightSyncer(WeightSyncer):
    """Sends all tensors in every version.

    Args:
        bucket_size: bytes after which a bucket ends; the sender has two of them in memory at a time.  Tensors are not
            divided.
        bucket_dtype: what floating-point tensors are cast to, ``"bf16"`` or a dtype; None sends them bit for bit.
        bucket_device: where buckets are made; ``"cuda"`` is the CPU where there is no GPU.
        is_agent: the receiver's model is the language model inside of the sender's: ``model.language_model.`` becomes
            ``model.`` in the names.
        load_instant: False has a receiver keep the buckets in the memory of its CPU, as many bytes as the weights have,
            and write all of them at once when the last one is there.  True writes each bucket when it comes, and keeps
            none.  That costs the promise of ``apply``: from the first bucket until ``apply`` returns the model holds
            two versions, and if the sender dies in between, or a later bucket does not fit, it stays so until a whole
            version has been applied.
    """

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
        self._forms: dict[str, str] = {}
        self._manifest: Manifest | None = None
        self._coming = IncomingBuckets(None)

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
        sent: dict[str, torch.Tensor] = {}
        for path, tensor in tree.items():
            name = self._renamed(name_of(path))
            check_name(name)
            if name in sent:
                raise ValueError(f"is_agent= gives two tensors the name {name!r}: synchronise one of them")
            sent[name] = tensor
        if is_sender:
            await send({"manifest": Manifest.of(ParamTree.of(sent), self.bucket_dtype).to_bytes()})
        self._forms = _forms_of(tree)
        self._names = [name_of(path) for path, _ in tree.items()]

    def _check(self, tree: ParamTree, version: int) -> None:
        if version > LARGEST:
            raise ValueError(f"a bucket syncer's version= is at most {LARGEST}; got {version}")
        for name, form in _forms_of(tree).items():
            if form != self._forms[name]:
                raise WeightMismatch(
                    f"{name!r} has become {form}; the two sides agreed on {self._forms[name]}: init_sender() once more"
                )

    def _produce(self, tree: ParamTree, sending: Sending, call: Call) -> Iterator[dict[str, torch.Tensor]]:
        items = [(self._renamed(name_of(path)), tensor) for path, tensor in tree.items()]
        buckets = buckets_in_call(
            call,
            items,
            sending.version,
            self.bucket_size,
            self.bucket_device,
            lambda name, dtype: self.bucket_dtype or dtype,
        )
        yield from numbered(buckets, sending)

    def _renamed(self, name: str) -> str:
        return name.replace("model.language_model.", "model.", 1) if self.is_agent else name

    # -- the receiver ---------------------------------------------------------------------------------------------

    async def init_receiver(self, state_dict: Mapping[str, Any], recv: Recv, send: Send | None = None) -> None:
        self._is_receiver = False
        hello = await recv()
        if not isinstance(hello, Mapping) or "manifest" not in hello:
            raise WeightMismatch(f"a bucket syncer's sender begins with its manifest; {type(hello).__name__} has come")
        manifest = Manifest.from_bytes(hello["manifest"])
        check_fit(manifest, state_dict)
        self._receives_anew()
        self._manifest = manifest
        self._coming = IncomingBuckets(manifest, holds=not self.load_instant)

    async def _apply(self, model: Any, recv: Recv) -> int:
        # What has come stays here if this is cancelled, and the next apply() goes on from there.
        while not self._coming.is_whole:
            await in_thread(self._take, model, await recv())
        await in_thread(self._finish, model)
        return self.version

    def _take(self, model: Any, message: Any) -> None:
        tensors = self._coming.take(message)
        if not self.load_instant or not tensors:
            return
        try:
            if self._coming.count == 1 and self._manifest is not None:
                check_fit(self._manifest, model)
            plan_update(model, tensors).write()
        except BaseException:
            self._coming.drop()
            raise

    def _finish(self, model: Any) -> None:
        sending, weights = self._coming.finish()
        plan_update(model, weights).write()
        self.version = sending.version


def _forms_of(tree: ParamTree) -> dict[str, str]:
    return {name_of(path): f"{tensor.dtype}{list(tensor.shape)}" for path, tensor in tree.items()}

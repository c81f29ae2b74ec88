"""Buckets of named tensors: division into buckets, and assembly at the receiver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from rlinf_async.errors import StaleVersion, WeightMismatch
from rlinf_async.rlinf.sending import Sending, SendingOrder
from rlinf_async.rlinf.syncer_options import device_of
from rlinf_async.weights.model.gather import gather_buckets
from rlinf_async.weights.model.gather_calls import GatherCall, GatherCalls
from rlinf_async.weights.model.param_tree import ParamTree, Path

TOTAL_BUCKETS: Final = "total_buckets"
SYNCER_VERSION: Final = "syncer_version"
_calls: Final = GatherCalls()
"""Counter of calls to ``iter_named_tensor_buckets``; a syncer has its own counter."""


class Marked(dict[str, Any]):
    """A message with RLinf's keys and no others, plus a mark that only these syncers read.

    A callback may copy the message into a plain dict, which loses the mark, and RLinf's own messages have none either.
    So every receiver must work without the mark.

    Attributes:
        mark: for a bucket, its transmission and its index in that transmission; for the description of a receiver's
            weights, their checksums.
    """

    def __init__(self, content: Mapping[str, Any], mark: Any) -> None:
        super().__init__(content)
        self.mark = mark


def iter_named_tensor_buckets(
    items: Iterable[tuple[str, torch.Tensor]],
    version: int | torch.Tensor,
    *,
    bucket_size: int,
    bucket_device: str | torch.device,
    dtype_resolver: Callable[[str, torch.dtype], torch.dtype] | None = None,
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield buckets that map names to copies of tensors. Each bucket is created when it is requested.

    Args:
        items: names and tensors; rank 0 gets DTensors as whole tensors, and every other rank must iterate, too.
        version: sent in the first bucket as ``syncer_version``, next to ``total_buckets``; both are int32.
        bucket_size: size in bytes, after the cast, at which a bucket is complete.  Tensors are never split.
        bucket_device: device of the copies.
        dtype_resolver: returns the dtype to which a tensor is cast, from its name and dtype.

    Raises:
        ValueError: a tensor is named ``syncer_version`` or ``total_buckets``, or there are no tensors.
        TransferFailed: another rank does not take part in this call.
    """
    yield from buckets_in_call(_calls.next(), items, version, bucket_size, bucket_device, dtype_resolver)


def buckets_in_call(
    call: GatherCall,
    items: Iterable[tuple[str, torch.Tensor]],
    version: int | torch.Tensor,
    bucket_size: int,
    bucket_device: str | torch.device,
    dtype_resolver: Callable[[str, torch.dtype], torch.dtype] | None,
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the same buckets for a syncer's call; the ranks check that all of them are making this call."""
    plan: list[list[tuple[str, torch.Tensor, torch.dtype]]] = []
    filled, device = bucket_size, device_of(bucket_device)
    for name, tensor in items:
        if name in (TOTAL_BUCKETS, SYNCER_VERSION):
            raise ValueError(f"the tensor {name!r} conflicts with metadata key {name!r}: give it another name")
        dtype = tensor.dtype if dtype_resolver is None else dtype_resolver(name, tensor.dtype)
        if filled >= bucket_size:
            plan.append([])
            filled = 0
        plan[-1].append((name, tensor, dtype))
        filled += tensor.numel() * dtype.itemsize
    if not plan:
        raise ValueError("No parameters to sync: none of the names that should be synchronised is in the weights")
    numbers = {TOTAL_BUCKETS: len(plan), SYNCER_VERSION: version}
    head = {key: torch.as_tensor(number, dtype=torch.int32, device=device) for key, number in numbers.items()}
    for part in plan:
        bucket, head = head, {}
        tensors: dict[Path, torch.Tensor] = {(name,): tensor for name, tensor, _ in part}
        dtypes: dict[Path, torch.dtype] = {(name,): dtype for name, _, dtype in part}
        for whole in gather_buckets(ParamTree(tensors), call):
            for path, tensor in whole.items():
                bucket[path[0]] = tensor.to(device, dtypes[path], copy=True)
        yield bucket


class IncomingBuckets:
    """Assembles one transmission's buckets in memory, without writing them to a model.

    A sender numbers its transmissions, including several of one version, and sends each transmission's buckets in
    order, so a bucket that does not follow the previous one is late or a duplicate. When another sender begins, later
    buckets of the previous sender are late. A transmission with an error is refused once, and its remaining buckets are
    ignored. Buckets without a mark (``iter_buckets``) are accepted in order of arrival, as in RLinf.

    Args:
        holds: if False, buckets are not kept, because the caller uses each as it arrives.

    Attributes:
        version: version of the transmission being received.
        count: number of its buckets received so far.
        weights: these buckets' tensors by name, on the CPU.
    """

    def __init__(self, *, holds: bool = True) -> None:
        self.version, self.count = -1, 0
        self.weights: dict[str, torch.Tensor] = {}
        self._holds = holds
        self._order = SendingOrder()
        self._sending: Sending | None = None  # the transmission being received; None if there is none or it has no mark
        self._total = 0
        self._names: set[str] = set()

    @property
    def is_whole(self) -> bool:
        return 0 < self._total == self.count

    def take(self, message: Any) -> dict[str, Any]:
        """Take the next message.

        Returns:
            The tensors of a bucket that belongs to the transmission; an empty dict for an ignored bucket.

        Raises:
            StaleVersion: the message begins a transmission that does not follow the previous ones.
            WeightMismatch: the message is not a bucket, or an earlier bucket is missing.
        """
        sending, number, total, version, tensors = _read(message)
        if total:
            if sending is not None and sending == self._sending:
                return {}  # a duplicate
            latest = self._order.latest
            if latest is not None and self._order.is_late(sending):
                raise StaleVersion.of(version, latest.version, "which came before it")
            self.drop()  # the sender has abandoned the previous transmission
            self._order.add(sending)
            self._sending, self._total, self.version = sending, total, version
        elif sending != self._sending or not self._total:
            if self._order.is_late(sending):
                return {}
            which = "a bucket" if number is None else f"bucket {number} of version {version}"
            self._refuse(sending, f"{which} has come, and not the first of its version")
        elif number is not None and number < self.count:
            return {}
        elif number is not None and number > self.count:
            self._refuse(sending, f"bucket {number} of version {version} has come, and bucket {self.count} has not")
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                self._refuse(sending, f"{name!r} of version {self.version} is {type(tensor).__name__} and no tensor")
            if name in self._names:
                self._refuse(sending, f"{name!r} of version {self.version} has come twice")
        self.count += 1
        self._names |= tensors.keys()
        if self._holds:
            self.weights |= {name: tensor.cpu() for name, tensor in tensors.items()}
        return tensors

    def finish(self) -> tuple[int, dict[str, torch.Tensor]]:
        """Return the complete version, and its weights if they were kept."""
        found = self.version, self.weights
        self.drop()
        return found

    def drop(self) -> None:
        """Discard the received part of a transmission, so that its remaining buckets are ignored."""
        self._sending = None
        self.count = self._total = 0
        self.weights, self._names = {}, set()

    def _refuse(self, sending: Sending | None, problem: str) -> None:
        self._order.add(sending)
        if sending is not None or self._sending is None:  # an unmarked bucket does not belong to a marked transmission
            self.drop()
        raise WeightMismatch(f"{problem}; nothing of it was kept: sync() once more")


def _read(message: Any) -> tuple[Sending | None, int | None, int, int, dict[str, Any]]:
    """Return a bucket's transmission and index (None if unmarked), total (0 except in the first), version and tensors.

    Raises:
        WeightMismatch: the message is not a bucket.
    """
    try:
        sending, number = getattr(message, "mark", (None, None))
        if not isinstance(message, Mapping):
            raise TypeError
        tensors = dict(message)
        total = int(tensors.pop(TOTAL_BUCKETS, 0))
        version = int(tensors.pop(SYNCER_VERSION)) if total else sending.version if sending else -1
        if total < 0 or (not total and TOTAL_BUCKETS in message):
            raise ValueError
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        raise WeightMismatch(
            f"a bucket of tensors was expected, the first with its version; {type(message).__name__} has come"
        ) from error
    return sending, number, total, version, tensors

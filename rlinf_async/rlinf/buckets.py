"""Buckets of named tensors: made, and put together again where they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from rlinf_async.errors import StaleVersion, WeightMismatch
from rlinf_async.rlinf.sending import Arrivals, Sending
from rlinf_async.rlinf.syncer_options import device_of
from rlinf_async.weights.model.gather import gather_buckets
from rlinf_async.weights.model.gather_calls import GatherCall, GatherCalls
from rlinf_async.weights.model.param_tree import ParamTree, Path

TOTAL_BUCKETS: Final = "total_buckets"
SYNCER_VERSION: Final = "syncer_version"
_calls: Final = GatherCalls()
"""Calls of ``iter_named_tensor_buckets``; a syncer counts its own."""


class Marked(dict[str, Any]):
    """A message with RLinf's keys and no others, whose mark only these syncers look at.

    A callback that makes another dict of it has one of RLinf's messages; so the mark is never necessary.

    Attributes:
        mark: of a bucket, its sending and its number in it, counted from 0; of the weights that a receiver has, their
            checksums.
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
    """Copies of tensors by name, in buckets that are made when they are asked for.

    Args:
        items: names and tensors; of DTensors rank 0 gets whole ones, and the other ranks have to iterate as well.
        version: goes into the first bucket as ``syncer_version``, beside ``total_buckets``; both int32.
        bucket_size: bytes, after the cast, after which a bucket ends.  Tensors are not divided.
        bucket_device: where the copies are.
        dtype_resolver: what a tensor is cast to, by name and dtype.

    Raises:
        ValueError: a tensor has the name of one of these two, or there is no tensor.
        TransferFailed: another rank is not in this call.
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
    """The same, in a call of a syncer's by which the ranks know that they are in the same one."""
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
    """Puts the buckets of one sending together; writes nothing anywhere.

    A sender numbers its sendings, also those of one version, and its buckets come in their order, so what is not after
    what came before is late or doubled.  Another sender begins anew, and what then comes of the one before is late.  A
    sending with which something is wrong is refused once; what else comes of it is passed over.  Buckets without a mark
    (``iter_buckets``) are taken as RLinf takes them, in the order in which they come.

    Args:
        holds: False: the caller uses each bucket when it comes, and none is kept.

    Attributes:
        version: of what is coming in.
        count: buckets of it that have come.
        weights: the tensors in them, by name, on the CPU.
    """

    def __init__(self, *, holds: bool = True) -> None:
        self.version, self.count = -1, 0
        self.weights: dict[str, torch.Tensor] = {}
        self._holds = holds
        self._arrivals = Arrivals()
        self._sending: Sending | None = None  # coming in; None: nothing, or one without a mark
        self._total = 0
        self._names: set[str] = set()

    @property
    def is_whole(self) -> bool:
        return 0 < self._total == self.count

    def take(self, message: Any) -> dict[str, Any]:
        """The next message.

        Returns:
            The tensors of a bucket that belongs to the sending; none of one that is passed over.

        Raises:
            StaleVersion: it begins a sending that is not after those before.
            WeightMismatch: it is no bucket, or one before it is missing.
        """
        sending, number, total, version, tensors = _read(message)
        if total:
            if sending is not None and sending == self._sending:
                return {}  # doubled
            latest = self._arrivals.latest
            if latest is not None and self._arrivals.is_late(sending):
                raise StaleVersion.of(version, latest.version, "which came before it")
            self.drop()  # abandoned by its sender
            self._arrivals.add(sending)
            self._sending, self._total, self.version = sending, total, version
        elif sending != self._sending or not self._total:
            if self._arrivals.is_late(sending):
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
        """The version that is whole, and its weights, if they were held."""
        found = self.version, self.weights
        self.drop()
        return found

    def drop(self) -> None:
        """Forgets what has come of a sending; what is still to come of it is passed over."""
        self._sending = None
        self.count = self._total = 0
        self.weights, self._names = {}, set()

    def _refuse(self, sending: Sending | None, problem: str) -> None:
        self._arrivals.add(sending)
        if sending is not None or self._sending is None:  # one without a mark is not of the one with it
            self.drop()
        raise WeightMismatch(f"{problem}; nothing of it was kept: sync() once more")


def _read(message: Any) -> tuple[Sending | None, int | None, int, int, dict[str, Any]]:
    """Return the sending of a bucket and its number in it, if marked; the number of buckets, in the first one, else 0;
    the version; the tensors.

    Raises:
        WeightMismatch: it is no bucket.
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

"""The buckets of a sending as they come in: which belong together, and which are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlinf_async.errors import StaleVersion, WeightMismatch
from rlinf_async.weights.model.manifest import Leaf, Manifest, dtype_name
from rlinf_async.weights.model.param_tree import name_of
from rlinf_async.weights.syncers.buckets import BUCKET_NUMBER, SYNCER_SENDING, SYNCER_VERSION, TOTAL_BUCKETS
from rlinf_async.weights.syncers.sending import Sending


class IncomingBuckets:
    """Puts the buckets of one sending together; writes nothing anywhere.

    A sender numbers its sendings, also those of one version, and its buckets come in their order, so what is not after
    what came before is late or doubled.  A sending with which something is wrong is refused once; what else comes of it
    is passed over.

    Args:
        manifest: what a version consists of; None: whatever comes.
        holds: False: the caller uses each bucket when it comes, and none is kept.

    Attributes:
        count: buckets of the sending that is coming in.
        weights: the tensors in them, by name, on the CPU.
    """

    def __init__(self, manifest: Manifest | None, *, holds: bool = True) -> None:
        self.count = 0
        self.weights: dict[str, torch.Tensor] = {}
        self._holds = holds
        self._leaves: dict[str, Leaf] | None = None
        if manifest is not None:
            self._leaves = {name_of(path): leaf for path, leaf in manifest.by_path.items()}
        self._latest: Sending | None = None
        self._sending: Sending | None = None
        self._total = 0
        self._names: set[str] = set()

    @property
    def is_whole(self) -> bool:
        return self._sending is not None and self.count == self._total

    def take(self, message: Any) -> dict[str, torch.Tensor]:
        """The next message.

        Returns:
            The tensors of a bucket that belongs to the sending; none of one that is passed over.

        Raises:
            StaleVersion: it begins a sending that is not after those before.
            WeightMismatch: it is no bucket, or does not fit, or one before it is missing.
        """
        sending, number, tensors = _read(message)
        version = sending.version
        if number == 0:
            if sending == self._sending:
                return {}  # doubled
            if self._latest is not None and not sending.is_after(self._latest):
                raise StaleVersion.of(version, self._latest.version, "which came before it")
            self.drop()  # what its sender has given up
            self._latest = self._sending = sending
            self._total = int(message[TOTAL_BUCKETS])
        elif sending != self._sending:
            if self._latest is not None and not sending.is_after(self._latest):
                return {}
            self._refuse(sending, f"bucket {number} of version {version} has come, and not the first of its version")
        elif number < self.count:
            return {}
        elif number > self.count:
            self._refuse(sending, f"bucket {number} of version {version} has come, and bucket {self.count} has not")
        if problem := self._misfit(tensors):
            self._refuse(sending, f"version {version} of the weights is not what the two sides agreed on: {problem}")
        self.count += 1
        self._names |= tensors.keys()
        if self._holds:
            self.weights |= {name: tensor.cpu() for name, tensor in tensors.items()}
        if self.is_whole and self._leaves is not None and (missing := sorted(self._leaves.keys() - self._names)):
            self._refuse(sending, f"version {version} of the weights lacks {', '.join(map(repr, missing[:5]))}")
        return tensors

    def finish(self) -> tuple[Sending, dict[str, torch.Tensor]]:
        """The sending that is whole, and its weights, if they were held."""
        assert self._sending is not None
        sending, weights = self._sending, self.weights
        self.drop()
        return sending, weights

    def drop(self) -> None:
        """Forgets what has come of a sending; what is still to come of it is passed over."""
        self._sending = None
        self.count = self._total = 0
        self.weights, self._names = {}, set()

    def _refuse(self, sending: Sending, problem: str) -> None:
        self._latest = sending
        self.drop()
        raise WeightMismatch(f"{problem}; nothing of it was kept: sync() once more")

    def _misfit(self, tensors: Mapping[str, Any]) -> str | None:
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                return f"{name!r} is {type(tensor).__name__} and no tensor"
            if name in self._names:
                return f"{name!r} has come twice"
            if self._leaves is None:
                continue
            leaf = self._leaves.get(name)
            if leaf is None:
                return f"{name!r} is not among them"
            if dtype_name(tensor.dtype) != leaf.transport_dtype or tuple(tensor.shape) != leaf.shape:
                return (
                    f"{name!r} is {tensor.dtype}{list(tensor.shape)} and not {leaf.transport_dtype}{list(leaf.shape)}"
                )
        return None


def _read(message: Any) -> tuple[Sending, int, dict[str, Any]]:
    """The sending, the number in it and the tensors of a bucket.

    Raises:
        WeightMismatch: it is none.
    """
    if isinstance(message, Mapping) and isinstance(message.get("manifest"), bytes):
        raise WeightMismatch("the sender has begun anew, by init_sender(): await init_receiver() here at the same time")
    try:
        tensors = dict(message)
        version = int(tensors.pop(SYNCER_VERSION))
        sender, sent = map(int, tensors.pop(SYNCER_SENDING))
        total = tensors.pop(TOTAL_BUCKETS, None)
        number = int(tensors.pop(BUCKET_NUMBER)) if total is None else 0
        if number < 0 or (total is not None and int(total) < 1):
            raise ValueError(f"{number} of {total}")
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        raise WeightMismatch(
            "a bucket of tensors was expected, with its version, its sending and its number; "
            f"{type(message).__name__} has come"
        ) from error
    return Sending(version, sent, sender), number, tensors

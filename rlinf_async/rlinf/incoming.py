"""Assembly of incoming buckets: which belong together, and which are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlinf_async.errors import WeightMismatch
from rlinf_async.rlinf.buckets import SYNCER_VERSION, TOTAL_BUCKETS
from rlinf_async.rlinf.sending import Sending


class IncomingBuckets:
    """Puts the buckets of one sending together; writes nothing anywhere.

    A syncer numbers its sendings, also those of one version, and its buckets come in their order, so what is not after
    what came before is late or doubled.  A sending with which something is wrong is refused once; what else comes of it
    is passed over.  Buckets without a mark (``iter_buckets``) are taken as RLinf takes them, in the order in which they
    come.

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
        self._latest: Sending | None = None
        self._sending: Sending | None = None  # that is coming in; None: nothing, or one without a mark
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
        is_late = sending is not None and self._latest is not None and not sending.is_after(self._latest)
        if total:
            if sending is not None and sending == self._sending:
                return {}  # doubled
            if sending is not None and self._latest is not None:
                sending.check_after(self._latest, "which came before it")
            self.drop()  # what its sender has given up
            self._latest, self._sending = sending or self._latest, sending
            self._total, self.version = total, version
        elif sending != self._sending or not self._total:
            if is_late:
                return {}
            self._refuse(sending, "a bucket has come, and not the first of its version")
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
        self._latest = sending or self._latest
        if sending is not None or self._sending is None:  # one without a mark is not of the one with it
            self.drop()
        raise WeightMismatch(f"{problem}; nothing of it was kept: sync() once more")


def _read(message: Any) -> tuple[Sending | None, int | None, int, int, dict[str, Any]]:
    """The sending of a bucket and its number in it, if they are told; how many there are, of the first one, else 0;
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

"""``Verifying``: compares receivers' tensors with the packed ones after each version."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch

from rlinf_async.errors import ConfigError, WeightMismatch
from rlinf_async.weights.memory.slot import SlotWriter
from rlinf_async.weights.memory.store import Store
from rlinf_async.weights.model.digests import ExpectedDigests
from rlinf_async.weights.state.sync_report import Ack

_NAMED: Final = 5  # limit on the tensors that an error names


class _Held(NamedTuple):
    slot: SlotWriter
    leaves: list[torch.Tensor]
    expected: ExpectedDigests


class Verifying:
    """A comparison that runs in the packing thread and pins the slots of versions that receivers may still answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._expected = ExpectedDigests(store.manifest)
        self._held: dict[int, _Held] = {}

    def pin(self, version: int) -> None:
        """Pin the slot of a version that is about to be published."""
        self._unpin([version])  # a withdrawn version may have had the same number
        latest = self._store.latest
        if latest is not None and latest.version == version and latest.is_in_slot:
            self._expected = self._expected.following()
            latest.pin()
            self._held[version] = _Held(latest, list(latest.views.values()), self._expected)

    def hash(self, version: int, pending: Collection[int]) -> None:
        """Hash a published version, unless an answer has already caused that.

        Args:
            pending: further versions that receivers may still answer; all other versions' slots may be overwritten.
        """
        self._unpin(self._held.keys() - {version, *pending})
        held = self._held.get(version)
        if held is not None:
            held.expected.begin(version, held.leaves)

    def _unpin(self, versions: Iterable[int]) -> None:
        for version in versions:
            if (held := self._held.pop(version, None)) is not None:
                held.slot.unpin()

    def judge(self, name: Hashable, ack: Ack, digests: Sequence[Any] | None) -> Ack:
        """Return a receiver's answer with its tensors' digest, or a failure if they differ from the sent tensors."""
        try:
            return self._judge(name, ack, digests)
        except Exception as error:
            return Ack("failed", ack.version, error)

    def _judge(self, name: Hashable, ack: Ack, digests: Sequence[Any] | None) -> Ack:
        if digests is None:
            raise ConfigError(
                f"receiver {name!r} gives no digest of version {ack.version}: it takes verify='sha256' as well, and "
                "weights that come in another way have none"
            )
        version, forms, found = digests
        held = self._held.get(version)
        if held is None:
            return ack  # the version has been forgotten
        differing = held.expected.differing(version, held.leaves, forms, found)
        if differing:
            more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
            raise WeightMismatch(
                f"{', '.join(map(repr, differing[:_NAMED]))}{more} of version {version} is not what was sent, once it "
                f"was applied at receiver {name!r}: something else writes to that model, or its memory is damaged"
            )
        return dataclasses.replace(ack, digest=hashlib.sha256(found).hexdigest())

    def end(self) -> None:
        """Drop all references to slots, and stop comparing."""
        self._held.clear()

"""Comparison of what receivers hold, once they have applied a version, with what was packed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Hashable, Sequence
from typing import Any, Final

from rlinf_async.errors import ConfigError, WeightMismatch
from rlinf_async.weights.memory.store import Store
from rlinf_async.weights.model.digests import ExpectedDigests
from rlinf_async.weights.state.sync_report import Ack

_NAMED: Final = 5  # tensors that an error names


class Verifying:
    """In the thread that packs: no slot is written to meanwhile that the store has as its latest."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._expected = ExpectedDigests(store.manifest)

    def begin(self, version: int) -> None:
        """Hashes a version that has been published, before the first receiver has answered."""
        latest = self._store.latest
        if latest is not None and latest.version == version and latest.is_in_slot:
            self._expected.begin(version, list(latest.views.values()))

    def judge(self, name: Hashable, ack: Ack, digests: Sequence[Any] | None) -> Ack:
        """A receiver's answer with the digest of what it holds; a failure, if that is not what was sent."""
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
        latest = self._store.latest
        if latest is None or version != latest.version:
            return ack  # nobody waits for it any more
        differing = self._expected.differing(version, list(latest.views.values()), forms, found)
        if differing and self._store.latest is latest:  # otherwise a later one may have been packed there meanwhile
            more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
            raise WeightMismatch(
                f"{', '.join(map(repr, differing[:_NAMED]))}{more} of version {version} is not what was sent, once it "
                f"was applied at receiver {name!r}: something else writes to that model, or its memory is damaged"
            )
        return dataclasses.replace(ack, digest=hashlib.sha256(found).hexdigest())

"""``Take``: a block that holds groups of an experience. ``Batch``: these groups, with versions and staleness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf_async._channels.leasing import Lease, LeasedItems
from rlinf_async._channels.request import Get
from rlinf_async._channels.state.channel_keys import key_of
from rlinf_async.work import Work

OnStale = Callable[[list[Any], int], list[Any]]
"""Callback that maps the samples and the staleness of a stale group to replacements for the batch."""


class Batch(LeasedItems):
    """The groups of a take, as a list of lists of samples.

    ``done(k)`` confirms the first ``k`` unconfirmed groups.

    Attributes:
        version: the trainer's version when the groups were taken; None if no version was set.
        items: the samples of all groups, concatenated.
        versions, staleness: one number for each of ``items``. Staleness is the number of versions by which the sample
            was behind the trainer, never negative, and 0 without a trainer's version.
        names: for each group, the ``group=`` of its samples.
    """

    def __init__(self, found: list[Any], redelivered: bool, confirm: Any, on_stale: OnStale | None) -> None:
        (self.version, max_staleness, facts), *samples = found
        self.items: list[Any] = []
        self.versions: list[int] = []
        self.staleness: list[int] = []
        self.names = [key_of(name) for name, _ in facts]
        groups = []
        for _, versions in facts:
            members, samples = samples[: len(versions)], samples[len(versions) :]
            behind = [0 if self.version is None else max(0, self.version - version) for version in versions]
            if on_stale is not None and max(behind) > max_staleness:
                members = on_stale(members, max(behind))
                versions, behind = [min(versions)] * len(members), [max(behind)] * len(members)
            groups.append(members)
            self.items += members
            self.versions += versions
            self.staleness += behind
        super().__init__(groups, redelivered, confirm)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} groups [{len(self.items)} samples]>"


class Take(Lease):
    """A lease of groups, for one ``async with`` block or, in ``def`` methods, one ``with`` block."""

    _use = "a take is for one block: call experience.take() for each"

    def __init__(
        self,
        get: Callable[[], Get[list[Any]]],
        confirm: Callable[[Get[Any], int], Work[None]],
        on_stale: OnStale | None,
    ) -> None:
        super().__init__(get, confirm)
        self._on_stale = on_stale

    def __repr__(self) -> str:
        return f"<Take [{self._items!r}]>"

    def _has(self, items: list[Any]) -> Batch:
        get = self._get
        assert get is not None
        try:
            self._items = batch = Batch(items, get.redelivered, lambda count: self._confirm(get, count), self._on_stale)
        except BaseException:  # if ``on_stale`` raises, the block does not begin
            assert get.destination is not None
            get.destination.withdraw(get)
            raise
        return batch

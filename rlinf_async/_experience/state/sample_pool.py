"""The state of an experience: samples in groups, versions and staleness, leases and group deadlines, the ledger.

Plain state without IO. A group passes through these stages::

    first sample ──► open ── `size` samples, or its deadline ──► ready ── take() ──► leased ── confirm() ──► taken
                      └─ its deadline ──► dropped       └─ too stale ──► dropped  └─ give_back() ──► ready, at its place

A sample is first *entered* into its group, and *accepted* once it is safe: immediately or, if the experience is
durable, once it has been written. A group is ready when all its samples are accepted. The ledger counts only accepted
samples.

Room for a whole group is reserved with its first sample; otherwise an experience full of incomplete groups could not
admit the samples that complete them.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from rlinf_async._channels.state.queue_client import Item
from rlinf_async._experience.state.experience_options import ExperienceOptions
from rlinf_async._experience.state.ledger import DISCARDED, INCOMPLETE, STALE, SampleLedger


@dataclass(slots=True, eq=False)
class Sample(Item):
    """An item of an experience; its weight is the version of the model weights that produced it.

    Attributes:
        is_accepted: True once the ledger counts it.
    """

    is_accepted: bool = False


@dataclass(slots=True, eq=False)
class SampleGroup:
    """A group of samples that are taken together.

    Attributes:
        serial: a number that increases from group to group, because names may be reused.
        key: key of the takes that may get the group; None if any take may get it.
        name: name given by the producers.
        rank: position among the ready groups: version of the oldest sample, then serial.
        waits: number of samples entered but not yet accepted.
        is_over: True once no further sample may join the group.
        reason: reason why the group was dropped; empty if it was not.
    """

    serial: int
    key: bytes | None
    name: bytes
    deadline: float | None
    room_bytes: int
    samples: list[Sample] = field(default_factory=list)
    rank: tuple[int, int] = (0, 0)
    waits: int = 0
    is_over: bool = False
    reason: str = ""

    @property
    def version(self) -> int:
        return min(sample.weight for sample in self.samples)

    @property
    def nbytes(self) -> int:
        return sum(sample.nbytes for sample in self.samples)


_MAX_PAST_DEADLINES: Final = 64  # limit on deadlines of complete groups, in addition to one for each open group

Removal = tuple[list[int], str]


# This class is not split, although it has more than 30 methods, because every stage of a group changes the same counts
# of samples and bytes and the same ledger.
class SamplePool:
    """The samples of one experience.

    Attributes:
        version: the trainer's version; None until it is first set.
        removals: dropped samples that have not yet been reported; the owner empties this list.

    Example:
        pool = SamplePool(ExperienceOptions(group=2, max_staleness=1))
        for body in (b"a", b"b"):
            pool.accept(pool.enter(None, b"problem 7", version=3, nbytes=1, body=body, now=0.0))
        leased = pool.take(1, None)
        pool.confirm(leased)
    """

    def __init__(self, options: ExperienceOptions) -> None:
        self.options = options
        self.version: int | None = None
        self.is_closed = False
        self.is_discarded = False
        self.removals: list[Removal] = []
        self._ledger = SampleLedger()
        self._serials = itertools.count(1)
        self._places = itertools.count(1)
        self._open: dict[tuple[bytes | None, bytes], SampleGroup] = {}
        self._unsettled: dict[SampleGroup, None] = {}
        self._ready: dict[bytes | None, list[SampleGroup]] = {}
        self._deadlines: list[tuple[float, int, tuple[bytes | None, bytes]]] = []
        """Heap of deadlines and group names; references to the groups would keep their samples alive after a take."""
        self._entries = itertools.count()
        self._samples = 0
        self._bytes = 0
        """Number of bytes used or reserved. A leased sample still uses bytes, but no place."""
        self._swept_for: int | None = None
        """Oldest version that was fresh at the last sweep of incomplete groups."""
        self._taken_now = self._taken_before = 0
        """Numbers of groups taken in the trainer's current version and in the previous version."""

    def __repr__(self) -> str:
        return f"<SamplePool version {self.version} [{self._samples} samples, {self._bytes} bytes]>"

    # -- room ---------------------------------------------------------------------------------------------------

    def is_open(self, key: bytes | None, name: bytes) -> bool:
        """True if an incomplete group has that name, and thus has room reserved for another sample."""
        return (key, name) in self._open

    def has_room(self, nbytes: int) -> bool:
        options = self.options
        samples, size = self._samples + options.group, self._bytes + options.group * nbytes
        return (not options.maxsize or samples <= options.maxsize) and (
            not options.max_bytes or size <= options.max_bytes
        )

    # -- put ----------------------------------------------------------------------------------------------------

    def enter(
        self, key: bytes | None, name: bytes, *, version: int, nbytes: int, body: object, now: float
    ) -> tuple[SampleGroup, Sample]:
        """Enter a sample into its group; call ``accept`` or ``withdraw`` afterwards."""
        group = self._open.get((key, name))
        if group is None:
            timeout = self.options.group_timeout_s
            deadline = now + timeout if timeout else None
            group = SampleGroup(next(self._serials), key, name, deadline, self.options.group * nbytes)
            self._open[key, name] = group
            # Reserve room for the whole group with its first sample. If samples took room one by one, incomplete groups
            # could fill the experience, and each would wait for its last sample forever.
            self._samples += self.options.group
            self._bytes += group.room_bytes
            self._note_deadline(group)
        sample = Sample(0, 0, b"", version, nbytes, body, False, place=next(self._places))
        group.samples.append(sample)
        group.waits += 1
        if len(group.samples) == self.options.group:
            self._end(group)
        return group, sample

    def accept(self, entered: tuple[SampleGroup, Sample]) -> None:
        """Count an entered sample as accepted, because it is now safely stored."""
        group, sample = entered
        # Mark the sample first: _drop counts only accepted samples, and would otherwise omit this sample from the
        # ledger.
        sample.is_accepted = True
        group.waits -= 1
        self._ledger.put += 1
        self._ledger.present += 1
        if group.reason:
            self._drop(group, [sample], group.reason)
        else:
            self._settle(group)

    def withdraw(self, entered: tuple[SampleGroup, Sample], reason: str = "") -> None:
        """Remove an entered sample that could not be stored or, given a ``reason``, drop a stored sample."""
        group, sample = entered
        group.waits -= 1
        if reason:
            self._ledger.put += 1
            self._ledger.drop(reason, 1)
            self.removals.append(([sample.place], reason))
        if group.reason:
            return
        was_full = len(group.samples) == self.options.group
        group.samples.remove(sample)
        name = (group.key, group.name)
        if not group.samples:
            if not group.is_over:
                del self._open[name]
            self._forget(group)
        elif was_full and name not in self._open and not self.is_closed:
            del self._unsettled[group]  # the group waits for a replacement
            group.is_over = False
            self._open[name] = group
            self._note_deadline(group)
        else:
            self._settle(group)

    def _note_deadline(self, group: SampleGroup) -> None:
        if group.deadline is not None:
            heapq.heappush(self._deadlines, (group.deadline, next(self._entries), (group.key, group.name)))
        if len(self._deadlines) > 2 * len(self._open) + _MAX_PAST_DEADLINES:
            self._deadlines.clear()
            for each in self._open.values():
                self._note_deadline(each)

    def _end(self, group: SampleGroup) -> None:
        del self._open[group.key, group.name]
        group.is_over = True
        self._unsettled[group] = None

    def _settle(self, group: SampleGroup) -> None:
        if not group.is_over or group.waits:
            return
        del self._unsettled[group]
        if len(group.samples) < self.options.group and self.options.short_groups == "drop":
            self._drop(group, group.samples, INCOMPLETE)
            self._forget(group)
            return
        self._samples -= self.options.group - len(group.samples)
        self._bytes += group.nbytes - group.room_bytes
        group.rank = (group.version, group.serial)
        self._make_ready(group)

    def _make_ready(self, group: SampleGroup) -> None:
        bisect.insort(self._ready.setdefault(group.key, []), group, key=_rank_of)

    def _forget(self, group: SampleGroup) -> None:
        self._unsettled.pop(group, None)
        self._samples -= self.options.group
        self._bytes -= group.room_bytes

    def _drop(self, group: SampleGroup, samples: Iterable[Sample], reason: str) -> None:
        accepted = [sample for sample in samples if sample.is_accepted]
        group.reason = reason
        self._ledger.present -= len(accepted)
        if accepted:
            self._ledger.drop(reason, len(accepted))
            self.removals.append(([sample.place for sample in accepted], reason))

    # -- deadlines and versions ---------------------------------------------------------------------------------

    @property
    def next_deadline(self) -> float | None:
        """A lower bound on the time at which ``expire`` next has an effect."""
        return self._deadlines[0][0] if self._deadlines else None

    def expire(self, now: float) -> None:
        """Close incomplete groups whose deadlines have passed."""
        while self._deadlines and self._deadlines[0][0] <= now:
            group = self._open.get(heapq.heappop(self._deadlines)[2])
            # The group of this entry may be complete, and a later group may have its name, so only the group's own
            # deadline counts.
            if group is not None and group.deadline is not None and group.deadline <= now:
                self._close_group(group)

    def close(self, *, discard: bool) -> None:
        """Refuse new groups and close incomplete groups; if ``discard``, drop all samples that were not taken."""
        self.is_closed = True
        for group in list(self._open.values()):
            self._close_group(group)
        if discard:
            self.is_discarded = True
            for group in list(self._unsettled):
                self._drop(group, group.samples, DISCARDED)
                self._forget(group)
            for groups in list(self._ready.values()):
                self._drop_ready(groups, len(groups), DISCARDED)

    def _close_group(self, group: SampleGroup) -> None:
        self._end(group)
        self._settle(group)

    def set_version(self, version: int) -> None:
        if version != self.version:
            if self._taken_now:
                self._taken_before, self._taken_now = self._taken_now, 0
            self.version = version

    @property
    def _oldest(self) -> int | None:
        return None if self.version is None else self.version - self.options.max_staleness

    def drop_stale(self) -> None:
        """Drop all samples that are too stale to be taken, including samples of incomplete groups."""
        oldest = self._oldest
        if oldest is None:
            return
        for groups in list(self._ready.values()):
            self._drop_ready(groups, _stale(groups, oldest), STALE)
        if oldest == self._swept_for:
            return  # groups that have become stale since then are dropped once complete
        self._swept_for = oldest
        for group in [group for group in self._open.values() if group.version < oldest]:
            del self._open[group.key, group.name]
            self._drop(group, group.samples, STALE)
            self._forget(group)

    def _drop_ready(self, groups: list[SampleGroup], count: int, reason: str) -> None:
        for group in groups[:count]:
            self._samples -= len(group.samples)
            self._bytes -= group.nbytes
            self._drop(group, group.samples, reason)
        self._remove(groups, slice(count))

    def _remove(self, groups: list[SampleGroup], part: slice) -> None:
        key = groups[0].key
        del groups[part]
        if not groups:
            del self._ready[key]

    # -- get ----------------------------------------------------------------------------------------------------

    def available(self, key: bytes | None, *, shared: bool = True) -> int:
        """Return the number of ready groups for a take: those with its key and, if ``shared``, those without a key."""
        return sum(len(groups) for groups in self._ready_for(key, shared))

    def _ready_for(self, key: bytes | None, shared: bool) -> list[list[SampleGroup]]:
        keys = ([None] if shared else []) + ([key] if key is not None else [])
        return [self._ready[each] for each in keys if each in self._ready]

    def take(self, count: int, key: bytes | None, *, shared: bool = True) -> list[SampleGroup] | None:
        """Lease ``count`` groups in order; return None if too few are ready. After a close, lease the rest."""
        lists = self._ready_for(key, shared)
        available = sum(map(len, lists))
        if available < count and not (self.is_closed and available):
            return None
        newest_first = self.options.order == "newest"
        first = [groups[-count:] if newest_first else groups[:count] for groups in lists]
        chosen = sorted(itertools.chain(*first), key=_rank_of, reverse=newest_first)[:count]
        for groups in lists:
            number = sum(group.key == groups[0].key for group in chosen)
            self._remove(groups, slice(len(groups) - number, None) if newest_first else slice(number))
        for group in chosen:
            self._samples -= len(group.samples)
            self._move(group, 1)
        self._taken_now += len(chosen)
        return chosen

    def _move(self, group: SampleGroup, sign: int) -> None:
        self._ledger.present -= sign * len(group.samples)
        self._ledger.leased += sign * len(group.samples)

    def confirm(self, groups: Iterable[SampleGroup]) -> None:
        """Count leased groups as taken."""
        for group in groups:
            self._bytes -= group.nbytes
            self._ledger.leased -= len(group.samples)
            self._ledger.taken += len(group.samples)

    def give_back(self, groups: Iterable[SampleGroup]) -> None:
        """Return leased groups to their places, or drop them if the pool has been discarded."""
        for group in groups:
            self._move(group, -1)
            self._taken_now = max(0, self._taken_now - 1)
            for sample in group.samples:
                sample.redelivered = True
            if self.is_discarded:
                self._bytes -= group.nbytes
                self._drop(group, group.samples, DISCARDED)
            else:
                self._samples += len(group.samples)
                self._make_ready(group)

    # -- queries ------------------------------------------------------------------------------------------------

    def wants(self) -> bool:
        """True if a sample of the trainer's version that is put now can still be fresh when it is taken.

        The estimate assumes that the trainer takes about as many groups in each version as in the latest versions.
        """
        oldest, per_version = self._oldest, max(self._taken_before, self._taken_now)
        if oldest is None or not per_version:
            return True
        fresh = sum(len(groups) - _stale(groups, oldest) for groups in self._ready.values())
        begun = sum(len(group.samples) for group in self._open.values())
        ahead = self._taken_now + fresh + len(self._unsettled) + begun / self.options.group
        return ahead < (self.options.max_staleness + 1) * per_version

    @property
    def ready(self) -> int:
        return sum(map(len, self._ready.values()))

    @property
    def is_empty(self) -> bool:
        return not (self._ready or self._open or self._unsettled)

    @property
    def has_open(self) -> bool:
        return bool(self._open or self._unsettled)

    @property
    def nbytes(self) -> int:
        return self._bytes

    def lacking(self) -> tuple[int, int]:
        """Return the number of incomplete groups and the number of samples that they lack."""
        lack = sum(self.options.group - len(group.samples) for group in self._open.values())
        return len(self._open), lack

    def samples(self) -> Iterator[tuple[SampleGroup, Sample]]:
        groups = [*self._all_ready(), *self._unsettled, *self._open.values()]
        for group in sorted(groups, key=lambda each: each.serial):
            for sample in group.samples:
                if sample.is_accepted:
                    yield group, sample

    def ledger(self) -> SampleLedger:
        ledger = self._ledger
        return SampleLedger(
            ledger.put, ledger.taken, ledger.present, ledger.leased, dict(ledger.dropped), len(self._open), self.version
        )

    def _all_ready(self) -> list[SampleGroup]:
        return list(itertools.chain(*self._ready.values()))

    # -- earlier lives ------------------------------------------------------------------------------------------

    def count_earlier(self, version: int | None, taken: int, dropped: dict[str, int]) -> None:
        """Load the counts of an earlier run of this experience.

        Raises:
            ValueError: this pool already has samples.
        """
        if self._ledger.put or not self.is_empty:
            raise ValueError("only a new experience takes over an earlier one; samples were put into this one")
        self.version = version
        self._ledger.taken = taken
        self._ledger.dropped = dict(dropped)
        self._ledger.put = taken + sum(dropped.values())

    def restore(self, rows: Iterable[tuple[int, int, bytes | None, bytes, int, int, object]], now: float) -> None:
        """Load an earlier run's samples, in order; each is a tuple of place, serial, key, name, version, size and body.

        The last group with a name continues if it is incomplete; earlier groups with that name were closed.
        """
        for place, serial, key, name, version, nbytes, body in rows:
            earlier = self._open.get((key, name))
            if earlier is not None and earlier.serial != serial:
                self._close_group(earlier)
            group, sample = entered = self.enter(key, name, version=version, nbytes=nbytes, body=body, now=now)
            group.serial, sample.place = serial, place
            self.accept(entered)
            self._places = itertools.count(place + 1)
            self._serials = itertools.count(max(serial + 1, next(self._serials)))


def _rank_of(group: SampleGroup) -> tuple[int, int]:
    return group.rank


def _stale(groups: list[SampleGroup], oldest: int) -> int:
    return bisect.bisect_left(groups, oldest, key=lambda group: group.rank[0])

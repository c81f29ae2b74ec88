"""The changes that a durable experience writes to disk: samples put, taken or dropped; versions; counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rlinf_async._channels.state.queue_client import Item
from rlinf_async._experience.state.sample_pool import Sample, SampleGroup


@dataclass(eq=False)
class Insert:
    """A sample that a producer has put; ``is_withdrawn`` is True once the producer has cancelled the put."""

    item: Item
    group: SampleGroup
    sample: Sample
    is_withdrawn: bool = False


@dataclass(eq=False)
class Settle:
    """Groups confirmed by their holder; ``done`` is called once the change is on disk, or with an error."""

    groups: list[SampleGroup]
    done: Callable[[Exception | None], None]


@dataclass(eq=False)
class Drop:
    """Dropped samples, identified by place."""

    places: list[int]
    reason: str


@dataclass(eq=False)
class Advance:
    version: int


@dataclass(eq=False)
class Earlier:
    """Counts of an earlier run of the experience, from which this run continues."""

    version: int | None
    taken: int
    dropped: dict[str, int]


Change = Insert | Settle | Drop | Advance | Earlier


class Keeper(Protocol):
    """The owner of an experience's state, with a clock, connections to other daemons, and optionally a disk."""

    @property
    def is_durable(self) -> bool: ...

    def write(self, change: Change) -> None:
        """Write a change after all earlier changes; ``ExperienceQueue.written`` is called for each change, in order."""

    def wake_at(self, deadline: float | None) -> None:
        """Schedule ``ExperienceQueue.expire`` at this time; None cancels an earlier schedule."""

    def trainer_gone(self, endpoint: int) -> None:
        """Find out how the trainer ended, and call ``ExperienceQueue.end_wishes`` unless the trainer will return."""

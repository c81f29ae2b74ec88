"""Changes of an experience that a durable one writes down: samples that are put, taken or dropped, versions, counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rlinf_async._channels.state.queue_client import Item
from rlinf_async._experience.state.sample_pool import Group, Sample


@dataclass(eq=False)
class Insert:
    """A sample that its producer has put; ``is_withdrawn`` if that has given it up since."""

    item: Item
    group: Group
    sample: Sample
    is_withdrawn: bool = False


@dataclass(eq=False)
class Settle:
    """Groups whose holder has confirmed them; ``done`` is told when that is safe, or of the error."""

    groups: list[Group]
    done: Callable[[Exception | None], None]


@dataclass(eq=False)
class Drop:
    """Samples that no take gets, by their places."""

    places: list[int]
    reason: str


@dataclass(eq=False)
class Advance:
    """The trainer's version."""

    version: int


@dataclass(eq=False)
class Earlier:
    """Counts of an earlier life, which go on."""

    version: int | None
    taken: int
    dropped: dict[str, int]


Change = Insert | Settle | Drop | Advance | Earlier


class Keeper(Protocol):
    """The owner of an experience's state, which has a clock, perhaps a disk, and a way to ask other daemons."""

    @property
    def is_durable(self) -> bool: ...

    def write(self, change: Change) -> None:
        """Write a change down, after those before; ``ExperienceQueue.written`` is told of each in order."""

    def wake_at(self, deadline: float | None) -> None:
        """Have ``ExperienceQueue.expire`` called at this moment; None cancels an earlier call."""

    def trainer_gone(self, endpoint: int) -> None:
        """Ask how the trainer has ended; ``ExperienceQueue.end_wishes`` is told unless it comes back."""

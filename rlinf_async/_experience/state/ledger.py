"""``SampleLedger`` counts what became of each sample: put = taken + present + leased + dropped (by reason)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

STALE: Final = "older than max_staleness when it would have been taken"
INCOMPLETE: Final = "its group was incomplete at its deadline, or at the close"
DISCARDED: Final = "discarded by close(discard=True)"
WITHDRAWN: Final = "withdrawn by its producer while it was written"


@dataclass
class SampleLedger:
    """The numbers of an experience's samples.

    Attributes:
        put: samples accepted by the experience.
        taken: samples confirmed by ended takes.
        present: samples in the experience that are not leased, including those of incomplete groups.
        leased: samples held by open takes.
        dropped: samples that no take will get; maps each reason to a number.
        incomplete: number of groups that lack samples.
        version: the trainer's version; None until it is first set.
    """

    put: int = 0
    taken: int = 0
    present: int = 0
    leased: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    incomplete: int = 0
    version: int | None = None

    @property
    def is_closed(self) -> bool:
        """True if each put sample is accounted for exactly once."""
        return self.put == self.taken + self.present + self.leased + sum(self.dropped.values())

    def drop(self, reason: str, count: int) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def summary(self) -> dict[str, int]:
        dropped = sum(self.dropped.values())
        return {
            "put": self.put, "taken": self.taken, "present": self.present, "leased": self.leased, "dropped": dropped,
        }  # fmt: skip

    def to_data(self) -> dict[str, Any]:
        return {**vars(self), "dropped": dict(self.dropped)}

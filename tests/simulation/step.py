"""``Step``: one act of a program, with its moment and its arguments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One step of a program.

    Attributes:
        at: virtual seconds since the program's beginning.
        kind: which act it is.
        facts: its arguments.
    """

    at: float
    kind: str
    facts: tuple[object, ...] = ()

    def __str__(self) -> str:
        return f"{self.at:6.3f} {self.kind}{self.facts!r}"

"""``Fact`` and ``Report``: findings of a GPU proof, as JSON lines and as a Markdown table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

OK: Final = "ok"
FAILED: Final = "FAILED"
SKIPPED: Final = "skipped"
"""States of a fact."""


@dataclass(frozen=True)
class Fact:
    """One finding of a step.

    Attributes:
        step: letter of the step.
        name: claim that was checked, or quantity that was measured.
        state: ``OK``, ``FAILED`` or ``SKIPPED``.
        value: figure or finding, or the reason of a failure or a skip.
        unit: unit of the figure.
        seconds: duration of the check.
    """

    step: str
    name: str
    state: str = OK
    value: Any = None
    unit: str = ""
    seconds: float = 0.0

    def to_line(self) -> str:
        return json.dumps(dataclasses.asdict(self), default=str)


def read_facts(lines: Iterable[str]) -> list[Fact]:
    """Return the facts of a file, except for a last line that a killed step left unfinished."""
    found = []
    for line in lines:
        if line.endswith("}\n"):
            found.append(Fact(**json.loads(line)))
    return found


def state_of(facts: Sequence[Fact]) -> str:
    """Return the state of a step: ``FAILED`` if any fact is, ``SKIPPED`` if all are."""
    states = {fact.state for fact in facts}
    if FAILED in states:
        return FAILED
    return SKIPPED if states <= {SKIPPED} else OK


def table(facts: Sequence[Fact]) -> str:
    """Return the facts as rows of a Markdown table."""
    rows = ["| step | claim or quantity | result | |", "|---|---|---|---|"]
    for fact in facts:
        value = "" if fact.value is None else f"{_short(fact.value)} {fact.unit}".strip()
        rows.append(f"| {fact.step} | {fact.name} | {fact.state} | {value} |")
    return "\n".join(rows) + "\n"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value).strip().replace("|", "\\|")
    return " ".join(text.splitlines()[-1:])[:160] if text else ""


def append(path: Path, fact: Fact) -> None:
    is_whole = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
    with path.open("a") as file:
        file.write(("" if is_whole else "\n") + fact.to_line() + "\n")

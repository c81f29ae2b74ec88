"""``cluster.tracer``: whether a run is traced, and where the trace goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.configuration.document import Origin, Steps
from rlinf_async.configuration.section import Section, misplaced


@dataclass(frozen=True)
class TracerConfig:
    """Whether a run is traced.

    Attributes:
        enable: record spans.
        output_file: where they are written; None for a file in the run's log folder.
    """

    enable: bool = False
    output_file: str | None = None


def read_tracer(value: Any, steps: Steps, origin: Origin | None) -> TracerConfig:
    """Reads the section; off, where there is none.  Raises ConfigError."""
    if value is None:
        return TracerConfig()
    if not isinstance(value, Mapping):
        raise misplaced(steps, origin, f"tracer must be a mapping such as {{enable: true}}, got {value!r}")
    section = Section(value, steps, origin, kind="tracer", known=("enable", "output_file"))
    return TracerConfig(section.flag("enable"), section.text("output_file"))

"""``RecordedRun``: everything known about a live or ended run; ``rlinf-ctl bundle`` stores it, ``page`` shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlinf_async._recorder.state.ring_contents import RingContents


@dataclass(frozen=True)
class RecordedRun:
    """State of a run at one moment.

    Attributes:
        run: id of the run.
        taken_at: seconds since the epoch.
        is_alive: True if a daemon of the run answered; None if a daemon is silent, or may run on another machine.
        rings: flight recorders of the run's processes, including ended ones.
        nodes: facts that each daemon wrote about its node: ``node``, ``name``, ``host``, ``versions`` (of
            Python, torch and the framework), ``resources``, ``began`` (seconds since the epoch), ``config``.
        deaths: deaths of processes, oldest first: ``time`` (seconds since the epoch), ``node``, ``process``
            ("actor:0"), ``pid``, ``text`` (how it ended), ``last_words``.
        logs: maps each log's path relative to the log folder, such as ``rollout/rank_0.err``, to its last lines.
        status: as ``rlinf-ctl status --json`` prints it; None for an ended run.
        verdict: as ``rlinf-ctl stuck --json`` prints it; None for an ended run.
        missing: maps each missing part to the reason: ``{"node 2 (gpu02)": "its daemon does not answer"}``.
    """

    run: str
    taken_at: float
    is_alive: bool | None
    rings: list[RingContents]
    nodes: list[dict[str, Any]] = field(default_factory=list)
    deaths: list[dict[str, Any]] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    status: dict[str, Any] | None = None
    verdict: dict[str, Any] | None = None
    missing: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<RecordedRun {self.run} [{len(self.rings)} processes, {len(self.deaths)} deaths]>"

"""``RunView``: all daemons' answers about a run at one moment; it names endpoints and chooses ranks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlinf_async._core import frames, operations
from rlinf_async._inspection.state.run_report import ProcessReport, RunReport, merged
from rlinf_async.errors import ClosedError, ConfigError

from .attachment import Attachment
from .run_places import NoSuchRun

_RANKS: Final = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")


@dataclass(frozen=True)
class RunView:
    """The reports and ``NodeDetails`` of all nodes that answered; ``missing`` says why the others did not."""

    report: RunReport
    details: dict[int, dict[str, Any]]
    missing: dict[int, str]

    def detail(self, process: ProcessReport) -> dict[str, Any]:
        """Return command, log, devices, memory in bytes, weights and restarts of a process, empty where unknown;
        ``away`` is True while its rank is being restarted."""
        processes: dict[str, Any] = self.details.get(process.node, {}).get("processes", {})
        detail: dict[str, Any] = {"command": "", "log": "", "devices": [], "memory": 0, "weights": {}, "restarts": 0}
        detail["away"] = False
        detail |= processes.get(str(process.endpoint), {})
        return detail

    def workers(self) -> list[ProcessReport]:
        return [process for process in self.report.processes if process.role == "worker"]

    def drivers(self) -> list[ProcessReport]:
        return [process for process in self.report.processes if process.role == "driver"]

    def groups(self) -> dict[str, list[ProcessReport]]:
        found: dict[str, list[ProcessReport]] = {}
        for worker in sorted(self.workers(), key=lambda each: (each.group, each.rank)):
            found.setdefault(worker.group, []).append(worker)
        return found

    def choose(self, words: str) -> list[ProcessReport]:
        """Return the processes of ``GROUP[:RANKS]`` or ``driver``, even failed ones.  Raises NoSuchRun, ConfigError."""
        groups = self.groups()
        group, ranks = split_ranks(words, groups)
        if group == "driver" and group not in groups:
            if ranks is not None:
                raise ConfigError(f"{words!r}: a driver is no group, and has no ranks\n  fix: write driver")
            return self.drivers()
        if group not in groups:
            known = ", ".join(f"{name}:{span_of(workers)}" for name, workers in groups.items())
            raise NoSuchRun(f"there is no group {group!r}; there are: {known or 'none'}")
        chosen = [worker for worker in groups[group] if ranks is None or worker.rank in ranks]
        if ranks is not None and (absent := sorted(set(ranks) - {worker.rank for worker in chosen})):
            raise NoSuchRun(f"group {group!r} has no rank {absent[0]}; it has {span_of(groups[group])}")
        return chosen


def split_ranks(words: str, groups: Collection[str]) -> tuple[str, list[int] | None]:
    """Split a group's name, which may contain colons, from the ranks ``:0-3,7`` after it; None means all ranks.

    ``rollout:2`` is rank 2 of ``rollout``, even if there is a group named ``rollout:2``.  Raises ConfigError.
    """
    group, colon, ranks = words.rpartition(":")
    if colon and group in groups and words not in groups and not _RANKS.fullmatch(ranks):
        raise ConfigError(f"{words!r}: {ranks!r} are no ranks\n  fix: write {group}, {group}:3 or {group}:0-3,7")
    if not colon or not _RANKS.fullmatch(ranks) or (words in groups and group not in groups):
        return words, None
    found: list[int] = []
    for part in ranks.split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise ConfigError(f"{words!r}: ranks {part} are in reverse\n  fix: write {group}:{last}-{first}")
        found += range(int(first), int(last or first) + 1)
    return group, found


def span_of(workers: Sequence[ProcessReport]) -> str:
    """Return the ranks of one group's workers as text: ``0-3``, or ``0,2,5``."""
    ranks = [worker.rank for worker in workers]
    if ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])
    return ",".join(map(str, ranks))


async def look(
    attachment: Attachment,
    *,
    parts: Sequence[str] = (),
    chosen: Sequence[ProcessReport] | None = None,
    details: bool = False,
    devices: bool = False,
) -> RunView:
    """Ask all daemons in parallel, or only the daemons of ``chosen`` processes, for these ``parts`` of ``Inspect``.

    ``details`` adds commands, logs and memory, ``devices`` GPU usage.  Raises ClosedError if the run has ended.
    """
    numbers: dict[int, list[int]] = {}
    for process in chosen or ():
        numbers.setdefault(process.node, []).append(frames.number_of(process.endpoint))

    def inspect(node: int) -> operations.Inspect | None:
        if chosen is not None and node not in numbers:
            return None
        return operations.Inspect(numbers.get(node, []), list(parts))

    def describe(node: int) -> operations.NodeDetails | None:
        return operations.NodeDetails(devices) if details else None

    (found, missing), (more, _) = await asyncio.gather(attachment.ask_nodes(inspect), attachment.ask_nodes(describe))
    if attachment.lost.done():
        raise ClosedError(attachment.lost.result())
    unheard = {attachment.name_of(node): reason for node, reason in missing.items()}
    return RunView(merged(attachment.run.run, found.values(), unheard), more, missing)

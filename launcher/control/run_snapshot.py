"""``RunSnapshot``: a run's files and its daemons' answers at one moment, from which a ``RecordedRun`` is built."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlinf_async._recorder.run_files import is_log
from rlinf_async._recorder.state.event_ring import DIRECTORY
from rlinf_async._recorder.state.ring_contents import RingContents

from .recorded_run import RecordedRun

MAX_BYTES: Final = 2 << 30  # limit for all files of a snapshot in total

_MAX_TIME_S: Final = 1 << 40  # later times, and infinite ones, are malformed


@dataclass
class RunSnapshot:
    """Content of a bundle: ``files`` maps relative paths to rings, black boxes and log tails; see ``RecordedRun``."""

    run: str
    taken_at: float
    is_alive: bool | None = False
    status: dict[str, Any] | None = None
    verdict: dict[str, Any] | None = None
    missing: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict, repr=False)
    _room: int = field(default=MAX_BYTES, repr=False)

    def add(self, path: str, data: bytes) -> None:
        if len(data) > self._room:
            self.missing[path] = f"a bundle has up to {MAX_BYTES >> 30} GiB"
            return
        self._room -= len(data)
        self.files[path] = data

    def note_absent_files(self, logs: Path) -> None:
        """Add to ``missing`` the recorders and logs that the run should have left but that do not exist."""
        known = [*self.files, *self.missing]
        if not any(path.endswith(".ring") for path in known):
            self.missing["its flight recorders"] = _why_absent(logs / DIRECTORY)
        for name in sorted({str(group.get("group")) for group in self._groups()}):
            folder = name.replace("/", "_")
            if not any(path.startswith(f"{folder}/") for path in known):
                self.missing[f"logs of group '{name}'"] = _why_absent(logs / folder)

    def recorded(self) -> RecordedRun:
        """Return the run described by these files; malformed files are named in ``missing``."""
        missing = dict(self.missing)
        rings, nodes = list(self._rings(missing)), list(self._nodes(missing))
        deaths = [death for path in self._named("recorder/deaths-") for death in _lines(self.files[path], self.run)]
        groups = self._groups()
        for node in nodes:
            node["groups"] = [group for group in groups if group.get("node") == node.get("node")]
        logs = {path: data.decode(errors="replace") for path, data in self.files.items() if is_log(path)}
        deaths.sort(key=lambda death: float(death["time"]))
        return RecordedRun(
            self.run, self.taken_at, self.is_alive, rings, nodes, deaths, logs, self.status, self.verdict, missing
        )

    def lost_nodes(self) -> dict[str, str]:
        """Map each node that another node lists, but that left no file here, to the location of its files."""
        nodes = list(self._nodes({}))
        known = {node.get("node") for node in nodes}
        return {
            f"node {peer['node']} ({peer['name']})": f"its files are on {peer['host']}, in {peer['logs']}"
            for node in nodes
            for peer in node.get("peers", ())
            if peer["node"] not in known
        }

    def _rings(self, missing: dict[str, str]) -> Iterator[RingContents]:
        for path in self._named("recorder/"):
            if path.endswith(".ring"):
                try:
                    ring = RingContents.read(self.files[path])
                    if ring.identity["run"] == self.run:  # the log directory may contain earlier runs
                        yield ring
                except (ValueError, LookupError, TypeError, RecursionError) as error:
                    missing[path] = f"{type(error).__name__}: {error}"

    def _nodes(self, missing: dict[str, str]) -> Iterator[dict[str, Any]]:
        for path in self._named("recorder/node-"):
            try:
                node = json.loads(self.files[path])
                if node["run"] == self.run:
                    yield node
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                missing[path] = f"{type(error).__name__}: {error}"

    def _groups(self) -> list[dict[str, Any]]:
        return [group for path in self._named("recorder/groups-") for group in _lines(self.files[path], self.run)]

    def _named(self, beginning: str) -> list[str]:
        return sorted(path for path in self.files if path.startswith(beginning))


def _why_absent(folder: Path) -> str:
    try:
        with os.scandir(folder):
            return f"there are none in {folder}"
    except OSError as error:
        return f"{folder}: {error.strerror}"


def _lines(data: bytes, run: str) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of a black box; skip lines truncated by a kill or a full disk."""
    for line in data.splitlines():
        try:
            facts = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(facts, dict) and facts.get("run") == run and _is_time(facts.get("time")):
            yield facts


def _is_time(seconds: Any) -> bool:
    return isinstance(seconds, float | int) and abs(seconds) < _MAX_TIME_S

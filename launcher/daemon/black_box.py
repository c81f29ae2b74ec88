"""``BlackBox``: records a node's facts, groups and deaths in files beside its logs, which survive a killed run.

    recorder/node-0.json        facts about the node, written once: versions, resources, configuration, other nodes
    recorder/groups-0.jsonl     one line per launch of workers here: ranks, pids, devices, cluster configuration
    recorder/deaths-0.jsonl     one line per process that ended abnormally

Each line is one write and begins with a newline, so that a line truncated, for example, by a full disk corrupts no
other line.  Secrets are masked, and for most environment variables only the length is recorded (``_core/masking.py``).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlinf_async._core import frames, operations
from rlinf_async._core.masking import masked, masked_variables
from rlinf_async._core.own_logger import own_logger
from rlinf_async._recorder.recording import DIRECTORY

logger = own_logger(__name__)

_PACKAGES: Final = {"torch": "torch", "rlinf_async": "rlinf-async"}


class BlackBox:
    """Recorder of one node's facts; errors in writing its files do not disturb the run."""

    def __init__(self, log_dir: Path, run: str, node: int) -> None:
        self._folder = log_dir / DIRECTORY
        self._run = run
        self._node = node

    def __repr__(self) -> str:
        return f"<BlackBox of node {self._node} in {self._folder}>"

    def describe(
        self, facts: Mapping[str, Any], config: Mapping[str, Any], environment: Mapping[str, str], peers: list[Any]
    ) -> None:
        """Write the node's facts.

        Args:
            facts: as `rlinf_launcher.daemon.resources` returns them.
            config: the node's configuration without credentials; ``environment`` replaces its ``env``.
            environment: environment of the workers.
            peers: all nodes of the run, with their log directories.
        """
        record: dict[str, Any] = masked({
            "run": self._run,
            "node": self._node,
            "name": config["name"],
            "host": facts.get("hostname", ""),
            "versions": {"python": platform.python_version(), **_versions()},
            "resources": {key: facts.get(key) for key in ("cpus", "gpus", "accelerator_type", "addresses")},
            "began": time.time(),
            "pid": os.getpid(),
            "config": dict(config),
            "peers": peers,
        })  # fmt: skip
        record["config"]["env"] = masked_variables(environment)
        path = self._folder / f"node-{self._node}.json"
        fresh = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            _write(fresh, os.O_TRUNC, json.dumps(record, default=str))
            fresh.replace(path)  # the replacement is atomic, so readers see a complete file or none
        except OSError as error:
            logger.debug("the node's facts are not kept: %s", error)
            with contextlib.suppress(OSError):
                fresh.unlink()

    def launched(self, op: operations.Spawn, started: Iterable[Sequence[Any]]) -> None:
        """Record the workers launched for a group; ``started`` is the answer to ``Spawn``."""
        workers = [
            {
                "rank": worker["rank"],
                "endpoint": frames.endpoint(self._node, number),
                "pid": pid,
                "devices": [each for each in worker["env"].get("VISIBLE_DEVICES", "").split(",") if each],
            }
            for worker, (number, pid, *_) in zip(op.workers, started, strict=True)
        ]
        config = json.loads(op.config) if op.config else None
        self._append("groups", {"group": op.group, "workers": workers, "config": config})

    def death(self, process: str, pid: int, text: str, last_words: Sequence[str] = ()) -> None:
        self._append("deaths", {"process": process, "pid": pid, "text": text, "last_words": list(last_words)})

    def _append(self, kind: str, facts: dict[str, Any]) -> None:
        record = {"time": time.time(), "run": self._run, "node": self._node, **facts}
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            path = self._folder / f"{kind}-{self._node}.jsonl"
            _write(path, os.O_APPEND, "\n" + json.dumps(masked(record), default=str) + "\n")
        except OSError as error:
            logger.debug("one of the %s is not kept: %s", kind, error)


def _versions() -> dict[str, str]:
    from importlib import metadata  # slow, so not imported at the daemon's start

    found = {}
    for name, package in _PACKAGES.items():
        # A package that runs from a checkout is not installed.
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(package)
    return found


def _write(path: Path, mode: int, text: str) -> None:
    """Write text in one call; raise OSError if it was not written completely."""
    data = text.encode(errors="replace")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | mode, 0o600)
    try:
        if os.write(fd, data) < len(data):
            raise OSError(errno.ENOSPC, f"{path} is cut short")
    finally:
        os.close(fd)

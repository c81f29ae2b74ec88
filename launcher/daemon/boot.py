"""Boot configuration of a daemon: ``NodeConfig`` from stdin, run and log directories, variables for workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf_async._wire.node_config import NodeConfig

from .run_logs import RunLogs


@dataclass(frozen=True)
class Boot:
    """A node's boot configuration: the launcher's ``NodeConfig``, and the paths of run directory, socket and logs."""

    config: NodeConfig
    run_dir: Path
    logs: RunLogs
    rest_of_stdin: bytes = field(repr=False)

    @property
    def log_dir(self) -> Path:
        return self.logs.path

    @property
    def socket_path(self) -> Path:
        return self.run_dir / "node.sock"

    @property
    def told_config(self) -> dict[str, Any]:
        """The configuration as others may read it: without credentials."""
        hidden = {"marker", "credentials"}
        return {key: value for key, value in self.config.to_json().items() if key not in hidden}

    @property
    def worker_environment(self) -> dict[str, str]:
        """What every worker of this node inherits."""
        environment = {**os.environ, **self.config.env, "RLINF_RUN_ID": self.config.run}
        environment.pop("RLINF_TRACE", None)  # of this run: one that a worker starts must not write into its file
        return environment


def read_boot(data: bytes, make_run_dir: Callable[[str | None, str, int], Path]) -> Boot:
    """What the first line of stdin says; ``data`` may hold more of it.

    Raises:
        VersionMismatch, TypeError: as ``NodeConfig.from_json``.
    """
    line, _, rest = data.partition(b"\n")
    config = NodeConfig.from_json(line)
    run_dir = make_run_dir(config.run_dir, config.run, config.node)
    logs = RunLogs(config.run, config.log_dir, run_dir / "logs")
    with contextlib.suppress(OSError):  # a full disk: an operator will have to know where the logs are
        if logs.path != run_dir / "logs":
            (run_dir / "logs").symlink_to(logs.path.absolute())
    return Boot(config, run_dir, logs, rest)

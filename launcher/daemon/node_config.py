"""A node's boot configuration: the first line of its daemon's stdin."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf_async._core.frames import PROTOCOL
from rlinf_async._wire.credentials import NodeCredentials
from rlinf_async.errors import VersionMismatch

from .run_logs import RunLogs


@dataclass(frozen=True)
class NodeConfig:
    """Everything that the near side decides about this node."""

    run: str
    marker: str
    node: int
    num_nodes: int
    """Those that may hold workers."""
    name: str
    hidden: bool
    bind: str | None
    credentials: NodeCredentials | None = field(repr=False)
    logs: RunLogs
    run_dir: Path
    environment: dict[str, str] = field(repr=False)
    gpus: tuple[str, ...] | None
    fake_gpus: int | None
    most_gpus: int | None
    """The hosts file's ``slots`` or ``max_slots``; None for all that there are."""
    sync: tuple[str, str] | None
    tee: str
    rest_of_stdin: bytes = field(repr=False)

    @property
    def log_dir(self) -> Path:
        return self.logs.path

    @property
    def socket_path(self) -> Path:
        return self.run_dir / "node.sock"

    @property
    def worker_environment(self) -> dict[str, str]:
        """What every worker of this node inherits."""
        environment = {**os.environ, **self.environment, "RLINF_RUN_ID": self.run}
        environment.pop("RLINF_TRACE", None)  # of this run: one that a worker starts must not write into its file
        return environment


def read_birth(data: bytes, make_run_dir: Any) -> NodeConfig:
    """What the first line of stdin says; ``data`` may hold more of it.

    Raises:
        VersionMismatch: the near side speaks another protocol.
    """
    line, _, rest = data.partition(b"\n")
    told: dict[str, Any] = json.loads(line)
    if told.get("protocol") != PROTOCOL:
        raise VersionMismatch(
            f"the launcher speaks protocol {told.get('protocol')}, the rlinf_async of this node protocol {PROTOCOL}"
        )
    run = told["run"]
    credentials = None
    if told.get("cert"):
        credentials = NodeCredentials(ca=told["ca"], cert=told["cert"], key=told["key"])
    run_dir: Path = make_run_dir(told.get("run_dir"), run, told["node"])
    sync = told.get("sync")
    return NodeConfig(
        run=run,
        marker=told["marker"],
        node=told["node"],
        num_nodes=told["num_nodes"],
        name=told["name"],
        hidden=bool(told.get("hidden")),
        bind=told.get("bind"),
        credentials=credentials,
        logs=RunLogs(run, told.get("log_dir") or None, run_dir / "logs"),
        run_dir=run_dir,
        environment=dict(told.get("env") or {}),
        gpus=tuple(told["gpus"]) if told.get("gpus") is not None else None,
        fake_gpus=told.get("fake_gpus"),
        most_gpus=told.get("slots") if told.get("slots") is not None else told.get("max_slots"),
        sync=(sync[0], sync[1]) if sync else None,
        tee=str(told.get("tee") or "all"),
        rest_of_stdin=rest,
    )

"""A daemon's boot configuration: ``NodeConfig`` from stdin, run and log directories, and variables for workers."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf_async._wire.node_config import NodeConfig
from rlinf_async.errors import AuthError, LaunchError

from .guardian import remove
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
        """The configuration without credentials."""
        hidden = {"marker", "credentials"}
        return {key: value for key, value in self.config.to_json().items() if key not in hidden}

    @property
    def worker_environment(self) -> dict[str, str]:
        environment = {**os.environ, **self.config.env, "RLINF_RUN_ID": self.config.run}
        environment.pop("RLINF_TRACE", None)  # a run that a worker starts must not write into this run's trace file
        return environment


def boot_of(config: NodeConfig, rest_of_stdin: bytes) -> Boot:
    """Create a node's private directories; return its boot configuration.  Raises LaunchError or AuthError."""
    run_dir = _make_run_dir(config.run_dir, config.run, config.node)
    logs = RunLogs(config.run, config.log_dir, run_dir / "logs")
    # The link only helps operators to find the logs, so a failure, for example on a full disk, is ignored.
    with contextlib.suppress(OSError):
        if logs.path != run_dir / "logs":
            (run_dir / "logs").symlink_to(logs.path.absolute())
    return Boot(config, run_dir, logs, rest_of_stdin)


def _make_run_dir(prepared: str | None, run: str, node: int) -> Path:
    """Create the node's directory (mode 0700) in the run's directory, at the first location that allows it."""
    places = [] if prepared is None else [Path(prepared)]
    refused = []
    if prepared is None and (runtime := os.environ.get("XDG_RUNTIME_DIR")):
        # Workers change their working directory, so the path must be absolute.
        places.append(Path(runtime).absolute() / f"rlinf-{run}")
    if prepared is None:
        try:
            places.append(Path(tempfile.gettempdir()) / f"rlinf-{os.getuid()}-{run}")
        except OSError as error:
            refused.append(str(error))
    for base in places:
        try:
            for directory in (base, base / f"node-{node}"):
                _make_private(directory)
            return base / f"node-{node}"
        except OSError as error:
            refused.insert(0, str(error))
            remove([str(base / f"node-{node}")])
    raise LaunchError(
        f"no folder can be made for this run: {'; '.join(refused)}\n"
        "  fix: set XDG_RUNTIME_DIR or TMPDIR to a folder in which this user may write"
    )


def _make_private(directory: Path) -> None:
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
        directory.chmod(0o700)  # the umask may have changed the mode given to mkdir
    status = directory.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise AuthError(f"{directory} must be a directory of this user alone (mode 0700)")

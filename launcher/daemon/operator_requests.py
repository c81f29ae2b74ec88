"""Handlers for operators' requests (``rlinf-ctl``): facts about processes, logs and devices, and kills of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rlinf_async._core import operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async._recorder.run_files import RunFiles
from rlinf_async._recorder.state.metric_names import split_cell
from rlinf_async._recorder.state.metric_table import WEIGHTS
from rlinf_async.configuration import RESTARTS
from rlinf_async.errors import LaunchError

from .endpoint import Endpoint
from .handlers import Requester
from .node_metrics import metrics_in
from .probes import Probes
from .process_state import command_of, resident_bytes
from .router import Router
from .templates import Templates

logger = own_logger(__name__)

_DEVICE_USE_TIMEOUT_S: Final = 2.0
"""Seconds to wait for a device probe, so that a hanging driver does not delay the rest of the answer."""


class OperatorRequests:
    """One daemon's handlers for operators' requests; none of them waits for a process of the run."""

    def __init__(self, router: Router, probes: Probes, templates: Templates, node: str, log_dir: Path) -> None:
        self._router = router
        self._templates = templates
        self._probes = probes
        self._node = node
        self._log_dir = log_dir
        self._files = RunFiles(log_dir)

    async def node_details(self, requester: Requester, op: operations.NodeDetails) -> dict[str, Any]:
        """Return facts about each process, including restarting ranks, about templates and, on request, device use."""
        use = self._probes.device_use(_DEVICE_USE_TIMEOUT_S) if op.devices else None
        processes = {
            str(endpoint.id): _details(endpoint) | {"weights": _weights(self._log_dir, endpoint.id)}
            for endpoint in self._router.endpoints.values()
            if endpoint.role != "operator" and endpoint.exit_report is None
        }
        away = {str(endpoint.id): {"away": True} for endpoint in self._router.endpoints.values() if endpoint.is_away}
        return {
            "name": self._node,
            "log_dir": str(self._log_dir),
            "processes": processes | away,
            "devices": await use if use is not None else {},
            **self._templates.status(),
        }

    async def kill_ranks(self, requester: Requester, op: operations.KillRanks) -> list[int]:
        """Kill the workers with these numbers; return the numbers of the workers signalled."""
        killed = []
        for number in op.numbers:
            worker = self._router.endpoints.get(number)
            process = None if worker is None else worker.process
            if process is None or process.exit_status is not None or not process.pid:  # a pid of 0: not yet forked
                continue
            logger.warning("worker %s (pid %d) is killed: %s", process.setup.name, process.pid, op.reason)
            process.kill(op.reason)
            killed.append(number)
        return killed

    async def list_run_files(self, requester: Requester, op: operations.ListRunFiles) -> list[list[Any]]:
        """Return path, size in bytes and modification time of each of the run's files on this node."""
        return [list(each) for each in self._files.listing()]

    async def read_run_file(self, requester: Requester, op: operations.ReadRunFile) -> bytes:
        """Return part of a run's file; raise ValueError or LaunchError if the file is missing or unreadable."""
        try:
            return self._files.read(op.path, op.offset, op.nbytes)
        except OSError as error:
            raise LaunchError(f"{self._log_dir / op.path}: {error}") from error


def _details(endpoint: Endpoint) -> dict[str, Any]:
    process = endpoint.process
    pid = endpoint.pid if process is None else process.pid
    environment: Mapping[str, str] = {} if process is None else process.setup.spec["env"]
    return {
        # A worker has its template's command line, which says nothing about the worker.
        "command": command_of(pid) if process is None else "",
        "log": "" if process is None else str(process.log),
        "devices": [device for device in environment.get("VISIBLE_DEVICES", "").split(",") if device],
        "memory": resident_bytes(pid),
        "restarts": int(environment.get(RESTARTS, 0)),
    }


def _weights(log_dir: Path, endpoint: int) -> dict[str, dict[str, int]]:
    """Map each model to its ``published`` and ``applied`` versions, from the process's flight recorder."""
    found: dict[str, dict[str, int]] = {}
    for metric in metrics_in(log_dir, endpoint):
        name, labels = split_cell(metric.name)
        if name == WEIGHTS.name:
            found.setdefault(labels["model"], {})[labels["role"]] = int(metric.value)
    return found

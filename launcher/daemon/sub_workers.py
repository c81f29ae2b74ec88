"""``SubWorkers``: admits workers' subprocesses, which it identifies by their ancestors, and reports their exits."""

from __future__ import annotations

import time
from typing import Any, Final

from rlinf_async.errors import AuthError

from .endpoint import Endpoint
from .exit_status import exit_status_of
from .leftovers import note_session, session_of
from .process_state import is_exiting, stat_of
from .router import Router

_MAX_KEPT_ENDS: Final = 64


class SubWorkers:
    """Processes that workers have started themselves and that have attached to this node.

    Each descends from a worker, has a name below that worker's name, and ends no later than the worker.
    """

    def __init__(self, router: Router, node_name: str) -> None:
        self._router = router
        self._node_name = node_name
        self._by_worker: dict[int, list[Endpoint]] = {}

    def admit(self, endpoint: Endpoint, facts: dict[str, Any]) -> dict[str, Any]:
        """Admit a process as a worker below its ancestor; return facts about the ancestor.

        Raises:
            AuthError: no ancestor is a worker, or the claimed name is not below the ancestor's.
        """
        root = self._ancestor(endpoint.pid)
        address = facts.get("address")
        if root is None or root.process is None:
            raise AuthError(
                f"process {endpoint.pid} wants to be worker {address!r} and descends from no worker of node "
                f"{self._node_name}: only a process that a worker has started may join"
            )
        name = root.process.setup.name
        called = address if isinstance(address, str) else ""
        below = called.removeprefix(f"{name}:")
        if below == called or not all(rank.isascii() and rank.isdecimal() for rank in below.split(":")):
            raise AuthError(
                f"process {endpoint.pid} descends from worker '{name}' and wants to be {address!r}: give the parent's "
                "own worker_address as parent_address="
            )
        note_session(session_of(endpoint.pid), endpoint.pid, root.process.setup.spec["env"])
        endpoint.root = root
        endpoint.name = called
        self._by_worker.setdefault(root.number, []).append(endpoint)
        info: dict[str, Any] = root.process.setup.spec["info"]
        return {**info, "log": root.process.log_path}

    def _ancestor(self, pid: int) -> Endpoint | None:
        # Workers are subreapers, so a descendant keeps its worker among its ancestors, even if it has changed its
        # environment or session, or its own parent has ended.
        # tests/test_sub_workers.py::test_a_process_that_nothing_but_its_parents_tells_joins
        workers = {
            endpoint.process.pid: endpoint
            for endpoint in self._router.endpoints.values()
            if endpoint.process is not None and endpoint.process.exit_status is None
        }
        # If the old parent ended between two reads of /proc, a second pass finds the new parent.
        for ancestor in (pid, pid):
            while (ancestor := _parent_of(ancestor)) > 1:  # 0 is also the pid of a worker that has not been forked yet
                if ancestor in workers:
                    return workers[ancestor]
        return None

    def end(self, endpoint: Endpoint) -> dict[str, Any] | None:
        """Fail a subprocess's pending calls; return its exit report, or None if its worker's group is closing."""
        assert endpoint.root is not None
        root = endpoint.root.process
        assert root is not None
        group, _, rank = endpoint.name.rpartition(":")
        report = {
            "group": group,
            "rank": int(rank),
            "node": self._node_name,
            "pid": endpoint.pid,
            **_verdict_on(endpoint.pid),
            "methods": [],
            "last_words": root.stderr_tail(),
            "log_path": root.log_path,
            "when": time.time(),
        }
        self._router.fail_pending_calls(endpoint, report, expected=root.closing)
        self._forget_oldest(endpoint.root.number, endpoint)
        return None if root.closing else report

    def _forget_oldest(self, root: int, ended: Endpoint) -> None:
        """Forget a worker's ended subprocesses, except the latest ones if the worker itself is still known."""
        below = self._by_worker.get(root, [ended])
        past = [each for each in below if each.exit_report is not None]
        for endpoint in past[: -_MAX_KEPT_ENDS if root in self._by_worker else None]:
            below.remove(endpoint)
            self._router.endpoints.pop(endpoint.number, None)

    def forget(self, root: Endpoint) -> None:
        for endpoint in self._by_worker.pop(root.number, ()):
            if endpoint.exit_report is not None:
                self._router.endpoints.pop(endpoint.number, None)


def _parent_of(pid: int) -> int:
    try:
        return int(stat_of(pid)[1])
    except (OSError, IndexError):
        return 0


def _verdict_on(pid: int) -> dict[str, Any]:
    """Describe the end of another process's child, whose status the kernel keeps until the parent reads it."""
    try:
        fields = stat_of(pid)
        state, status = fields[0], int(fields[49])
    except (OSError, ValueError, IndexError):
        state, status = "", 0
    if state != "Z":
        text = "has ended (it was a subprocess: how, only its parent knows)"
        if state and not is_exiting(pid):
            text = "has closed its connection to the daemon of its node, and lives on"
        return {"verdict": text, "signal": None, "exit_code": None}
    exit_status = exit_status_of(status)
    return {"verdict": exit_status.text, "signal": exit_status.signal, "exit_code": exit_status.exit_code}

"""``HostCheck``: runs the preflight on all hosts, compares the answers, chooses addresses, and holds the lifelines.

In a run, the preflight processes later become the daemons and keep their stdin and stdout.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os.path
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._wire.lifeline import Lifeline, fresh_marker
from rlinf_async._wire.mesh import on_all_nodes
from rlinf_async.errors import LaunchError

from ..options import Options
from ..report import Report
from .archive import Archive
from .bootstrap import shipment
from .plan import PlannedNode
from .preflight import address_towards

_PYTHON_MINIMUM: Final = (3, 11)
_PACKAGES: Final = ("rlinf_async", "rlinf_launcher", "torch", "numpy", "msgpack", "cloudpickle", "uvloop")
_PACKAGES_BETWEEN_NODES: Final = ("grpc", "cryptography")

_CLEANUP_TIMEOUT_S: Final = 1.5  # limit for removing unpacked files; an ssh that is still connecting is killed
_NO_TIMEOUT_S: Final = 24 * 3600.0
_WARN_CLOCK_SKEW_S: Final = 300.0
_MAX_CLOCK_BEHIND_S: Final = 47 * 3600.0  # certificates are valid from two days before the start
_MAX_CLOCK_AHEAD_S: Final = 360 * 24 * 3600.0


class HostCheck:
    """Runner of all hosts' preflights; holds each rank's answer and open lifeline, which the caller must close."""

    def __init__(self, nodes: Sequence[PlannedNode], options: Options, run: str, report: Report) -> None:
        self.python_path = ""
        self.archive: Archive | None = None
        self.lifelines: dict[int, Lifeline] = {}
        self.answers: dict[int, dict[str, Any]] = {}
        self._nodes = nodes
        self._options = options
        self._run = run
        self._report = report
        self._slots = asyncio.Semaphore(int(settings.SSH_AT_ONCE()))

    async def look(self, deadline: float | None) -> dict[int, str]:
        """Run the preflight on all hosts; return a map from each rank that failed to its error text."""
        self.answers, failures = await on_all_nodes(
            len(self._nodes),
            self._visit,
            deadline=deadline,
            doing="being reached and looked at",
            progress=lambda rank, state, told: self._report.node(rank, state, told["error"]),
            said=lambda rank: self.lifelines[rank].stray_output() if rank in self.lifelines else "",
        )
        for rank, text in self.judge().items():
            failures[rank] = text
            self._report.node(rank, "failed", text)
        return failures

    def binds(self) -> dict[int, str | None]:
        """Return the address on which each node's daemon listens for other nodes; None if it needs none.

        A single node on this machine needs none; if all nodes are on this machine, they use the loopback.
        """
        if len(self._nodes) == 1 and self._nodes[0].is_here:
            return {0: None}
        loopback = "127.0.0.1" if all(node.is_here for node in self._nodes) else None
        binds: dict[int, str | None] = {}
        for node in self._nodes:
            answer = self.answers.get(node.rank, {})
            binds[node.rank] = node.host.address or answer.get("iface_address") or loopback or answer.get("reached_at")
        towards = next((binds[node.rank] for node in self._nodes if not node.is_here and binds[node.rank]), None)
        for node in self._nodes:
            if node.is_here and binds[node.rank] is None and towards is not None:
                binds[node.rank] = address_towards(towards)
        return binds

    def checked(self, rank: int) -> list[str]:
        """Describe the checks made on a host; empty if the host did not answer."""
        answer = self.answers.get(rank)
        if answer is None:
            return []
        request = self._request(self._nodes[rank], "", 0)
        least = ".".join(map(str, _PYTHON_MINIMUM))
        found = [f"Python {least} or newer, as the script's ({answer['executable']}: {answer['python']})"]
        if not any(item["what"] == "Python" for item in answer["missing"]):
            found.append(f"packages {', '.join(request['packages'])}, and the version of rlinf-async")
        found.append(f"working directory {self._folder(Path(request['cwd']))}")
        found += [f"{what} {request[what]}" for what in ("script", "module") if request[what]]
        if request["iface"]:
            found.append(f"interface {request['iface']}")
        place = Path(answer["run_dir"]).parent if answer["run_dir"] else "TMPDIR"
        found.append(f"a folder for the run in {place}, its free space, open files (ulimit -n)")
        if len(self._nodes) > 1:
            found.append("its address for the other nodes")
        return [*found, "its clock"]

    async def close(self) -> None:
        await asyncio.gather(*(lifeline.close(_CLEANUP_TIMEOUT_S) for lifeline in self.lifelines.values()))

    async def _visit(self, rank: int) -> dict[str, Any]:
        node = self._nodes[rank]
        loop = asyncio.get_running_loop()
        async with self._slots:
            began = loop.time()
            marker = fresh_marker()
            archive = self.archive.data if self.archive is not None and not node.is_here else b""
            prelude = shipment("preflight", self._request(node, marker, len(archive)), archive)
            lifeline = await Lifeline.start(
                node.connector.argv, name=node.name, marker=marker, prelude=prelude, explain=node.connector.explain
            )
            self.lifelines[rank] = lifeline
            answer = await lifeline.receive(None)
        if answer.get("event") != "preflight":
            raise LaunchError(str(answer.get("error") or answer))
        answer["skew"] = float(answer["time"]) - time.time()
        torch = answer["torch"] or "-"
        took: dict[str, Any] = {} if node.is_here else {"after": round(loop.time() - began, 1)}
        self._report.node(rank, "reached", **took, py=answer["python"], torch=torch)
        for warning in answer["warnings"]:
            self._report.warn(f"{node.name}: {warning}")
        return answer

    def _request(self, node: PlannedNode, marker: str, archive_size: int) -> dict[str, Any]:
        options = self._options
        script = None if node.is_here or options.script is None else options.script
        return {
            "marker": marker,
            "run": self._run,
            "node": node.rank,
            "patience": (options.start_timeout or _NO_TIMEOUT_S) + 30.0,
            "python_minimum": list(_PYTHON_MINIMUM),
            "packages": [*_PACKAGES, *(_PACKAGES_BETWEEN_NODES if len(self._nodes) > 1 else ())],
            "version": own_version(),
            "python_path": self.python_path,
            "sync_dir": str(options.sync) if options.sync is not None else None,
            "archive_size": archive_size,
            "cwd": str(self._folder(Path(options.cwd or Path.cwd()))),
            "script": self._place(script) if script and not options.module else None,
            "module": script if options.module else None,
            "iface": options.iface if node.host.address is None else None,
        }

    def _place(self, script: str) -> str:
        path = Path(script).absolute()
        return str(self._folder(path.parent) / path.name)

    def _folder(self, folder: Path) -> Path:
        """Return a folder as the user typed it, or resolved if ``--sync`` is used, to find it in the shipped folder."""
        return folder if self._options.sync is None else Path(os.path.realpath(folder))

    def judge(self) -> dict[int, str]:
        """Map ranks to error texts from checks that compare all answers or need this machine's facts."""
        failures: dict[int, list[str]] = {}
        binds = self.binds()
        complete = len(self.answers) == len(self._nodes)
        mixed = complete and len({_is_loopback(bind) for bind in binds.values() if bind is not None}) > 1
        machines: dict[tuple[str, ...], int] = {}
        driver = next((rank for rank in sorted(self.answers) if self._nodes[rank].is_here), None)
        for rank, answer in sorted(self.answers.items()):
            node = self._nodes[rank]
            found = [f"{item['what']}: {item['detail']}\nfix: {item['fix']}" for item in answer["missing"]]
            if driver is not None and not any(item["what"] == "Python" for item in answer["missing"]):
                found += _unlike(answer, self.answers[driver])
            found += self._judge_clock(rank, answer)
            machine = _machine(node, answer)
            if not node.hidden and self._options.local_nodes is None:
                first = machines.setdefault(machine, rank)
                if first != rank:
                    name = self._nodes[first].name
                    found.append(f"is the same machine as {name}\nfix: list it once, with the slots of both")
            if complete and len(self._nodes) > 1 and binds[rank] is None:
                found.append("the other nodes would not know its address\nfix: addr=IP after the host, or --iface NAME")
            elif mixed and _is_loopback(binds[rank]):
                found.append(
                    f"is reached at {binds[rank]}, which the other nodes cannot reach\n"
                    "fix: addr=IP after the host, or --iface NAME"
                )
            if found:
                failures[rank] = found
        return {rank: "\n".join(found) for rank, found in failures.items()}

    def _judge_clock(self, rank: int, answer: Mapping[str, Any]) -> list[str]:
        skew = float(answer["skew"])
        words = f"its clock is {_duration(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this machine's"
        if len(self._nodes) > 1 and not -_MAX_CLOCK_BEHIND_S < skew < _MAX_CLOCK_AHEAD_S:
            return [f"{words}: the run's certificates would not be valid there\nfix: set the clock (NTP)"]
        if abs(skew) > _WARN_CLOCK_SKEW_S:
            self._report.warn(f"{self._nodes[rank].name}: {words}")
        return []


def own_version() -> str:
    """Return the installed version; empty in a checkout that is not installed."""
    try:
        return metadata.version("rlinf-async")
    except metadata.PackageNotFoundError:
        return ""


def _machine(node: PlannedNode, answer: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a key that is equal for nodes on one machine; with srun, each slurmd counts as a machine."""
    keys = ("slurm_node",) if node.host.slurm is not None else ("machine_id", "boot_id", "hostname")
    return tuple(str(answer[key]) for key in keys)


def _unlike(answer: Mapping[str, Any], driver: Mapping[str, Any]) -> list[str]:
    own, required = (str(each["python"]).rsplit(".", 1)[0] for each in (answer, driver))
    if own == required:
        return []
    return [
        f"{answer['executable']} is Python {answer['python']}, the script's is {driver['python']} "
        f"({driver['executable']}): classes and functions could not travel between them\n"
        f"fix: name a Python {required} there with --python PATH, or python=PATH after the host"
    ]


def _is_loopback(address: str | None) -> bool:
    try:
        return address is not None and ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} seconds"

"""A nemesis for a whole training run: kills, stops and partitions, one every few seconds, until it has ended.

    python -m tests.faults.nemesis                            # 120 steps of HalfCheetah on six hosts, as root
    python -m tests.faults.nemesis --every 0                  # the same, undisturbed
    python -m tests.faults.nemesis --epochs 600 --max-strikes 100 --seed 3
    python -m tests.faults.nemesis --epochs 90 --every 60 --only kill     # what a kill a minute costs

Hosts are network namespaces with an sshd each.  Env and rollout workers are killed and stopped, nodes are cut off for
some seconds, and three daemons are killed (not node 0's): their ranks go on elsewhere.  One line of JSON for each
strike, with the seconds until it was named and until the rank was back, and one for the run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests._support.fake_hosts import CHECKOUT, FakeHosts, Host

_HOSTS: Final = 6
_MAX_LOST_NODES: Final = 3
_STOP_S: Final = 3.0
_AWAY_S: Final = 6.0
_KINDS: Final = {"kill": 12, "stop": 3, "partition": 3, "daemon": 1}
"""Kinds of strikes, and how likely each is."""

_PLACEMENT: Final = (
    "cluster.num_nodes=6",
    "rollout.placement=workers",
    "cluster.component_placement.actor=0:0",
    "cluster.component_placement.env=1-4:0-3",
    "cluster.component_placement.rollout=1-2:0-1",
)
_SUPERVISION: Final = tuple(
    f"cluster.supervision.{group}.{key}={value}"
    for group in ("env", "rollout")
    for key, value in (("restart", "rank"), ("max_restarts", 1000))
)


@dataclass
class Strike:
    """One of them.

    Attributes:
        named_s: until a line on stderr said what had happened.
        back_s: until a line said that the rank was back.
    """

    at: float
    kind: str
    victim: str
    named_s: float | None = None
    back_s: float | None = None


class Lines:
    """The lines of a run as they come, each with its time."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self.told: list[tuple[float, str]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._pipe:
            self.told.append((time.monotonic(), line.rstrip()))

    def since(self, moment: float, pattern: str) -> float | None:
        """Seconds from a moment to the first line behind it that matches."""
        for when, line in self.told[:]:
            if when >= moment and re.search(pattern, line):
                return round(when - moment, 2)
        return None

    def join(self) -> None:
        self._thread.join()


class Nemesis:
    """Strikes at a run on fake hosts."""

    def __init__(self, hosts: FakeHosts, seed: int, kinds: Sequence[str]) -> None:
        self._hosts = hosts
        self._random = random.Random(seed)
        self._kinds = {kind: _KINDS[kind] for kind in kinds}
        self._lost: set[int] = set()

    def strike(self) -> Strike | None:
        """One strike at something that is there."""
        kinds = dict(self._kinds)
        if len(self._lost) == _MAX_LOST_NODES:
            kinds.pop("daemon", None)
        (kind,) = self._random.choices(list(kinds), list(kinds.values()))
        if kind == "partition":
            return self._partition()
        workers, daemons = self._processes()
        victims = daemons if kind == "daemon" else workers
        if not victims:
            return None
        name, node, pid = self._random.choice(victims)
        host = self._hosts[node]
        struck = Strike(time.monotonic(), kind, name)
        if kind == "stop":
            host.run(["kill", "-STOP", str(pid)], check=False)
            _wait(_STOP_S)
            host.run(["kill", "-CONT", str(pid)], check=False)
        else:
            host.run(["kill", "-KILL", str(pid)], check=False)
        if kind == "daemon":
            self._lost.add(node)
        return struck

    def _partition(self) -> Strike:
        node = self._random.choice([number for number in range(1, _HOSTS) if number not in self._lost])
        struck = Strike(time.monotonic(), "partition", f"node{node}")
        self._hosts[node].link_down()
        _wait(_AWAY_S)
        self._hosts[node].link_up()
        return struck

    def _processes(self) -> tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]]:
        """Env and rollout workers, and daemons but node 0's: name, node, pid there."""
        status = _ctl(self._hosts[0], "status")
        workers, daemons = [], []
        for process in status.get("processes", []):
            if process.get("role") == "worker" and process["group"] in ("env", "rollout") and process["pid"]:
                workers.append((f"{process['group']}:{process['rank']}", process["node"], process["pid"]))
        for number in set(range(1, _HOSTS)) - self._lost:
            if pid := _daemon_of(self._hosts[number]):
                daemons.append((f"node{number}", number, pid))
        return workers, daemons


def _daemon_of(host: Host) -> int:
    """The daemon's pid as its host sees it: of two processes of that name the child, whose parent is the guardian."""
    found: dict[int, tuple[int, int]] = {}
    for pid in host.processes():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        if b"rlinf_launcher.daemon" in command:
            own, parent = re.search(r"NSpid:.*\s(\d+)", status), re.search(r"PPid:\s(\d+)", status)
            if own and parent:
                found[pid] = int(own[1]), int(parent[1])
    return next((own for own, parent in found.values() if parent in found), 0)


def _ctl(host: Host, command: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "rlinf_launcher.cli.control", command, "--json"]
    done = host.run(argv, cwd=CHECKOUT, env={"PYTHONPATH": str(CHECKOUT)}, check=False, timeout=30)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[0]) if done.stdout.startswith("{") else {}
    return told


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def run(flags: argparse.Namespace, folder: Path) -> int:
    """A run with its strikes; the exit code of the launcher."""
    with FakeHosts(_HOSTS) as hosts:
        (folder / "nodes.txt").write_text("".join(f"node{number}\n" for number in range(_HOSTS)))
        launcher = [sys.executable, "-m", "rlinf_launcher", "--ssh-args", " ".join(hosts.ssh_args)]
        script = str(CHECKOUT / "examples" / "embodiment" / "train_embodied_agent.py")
        logs = hosts.directory / "run"
        own = [f"runner.logger.log_path={logs}", f"runner.seed={flags.seed}", f"runner.max_epochs={flags.epochs}"]
        argv = [*launcher, "--hosts", folder / "nodes.txt", script, "--config", flags.config]
        began = time.monotonic()
        process = hosts.driver.popen(
            [*argv, *_PLACEMENT, *_SUPERVISION, *own],
            cwd=CHECKOUT,
            env={"PYTHONPATH": str(CHECKOUT), "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = Lines(process.stdout)
        strikes = (
            _strike_until_the_end(process, lines, Nemesis(hosts, flags.seed, flags.only), flags) if flags.every else []
        )
        code = process.wait()
        lines.join()
        _judge(strikes, lines)
        for strike in strikes:
            print(json.dumps({**asdict(strike), "at": round(strike.at - began, 1)}), flush=True)
        if code:
            print(*[line for _, line in lines.told[-60:]], sep="\n", file=sys.stderr)
        print(json.dumps(_summary(code, time.monotonic() - began, strikes, lines)), flush=True)
        return code


def _strike_until_the_end(
    process: subprocess.Popen[Any], lines: Lines, nemesis: Nemesis, flags: argparse.Namespace
) -> list[Strike]:
    while process.poll() is None and lines.since(0, r"step +2\b|step 2/") is None:
        _wait(0.2)
    strikes: list[Strike] = []
    due = time.monotonic()
    while process.poll() is None and len(strikes) < flags.max_strikes:
        due += flags.every
        _wait(max(0.0, due - time.monotonic()))
        if process.poll() is None and (strike := nemesis.strike()) is not None:
            strikes.append(strike)
    return strikes


def _judge(strikes: Sequence[Strike], lines: Lines) -> None:
    """Finds when each was named, and when its rank was back."""
    for strike in strikes:
        if strike.kind == "kill":
            group, rank = strike.victim.split(":")
            strike.named_s = lines.since(strike.at, rf"rank {rank} of group '{group}' .*killed by SIGKILL")
            strike.back_s = lines.since(strike.at, rf"ranks? [\d, and-]*\b{rank}\b.* of group '{group}' (is|are) back")
        elif strike.kind == "daemon":
            strike.named_s = lines.since(strike.at, rf"{strike.victim}\b.*lost")


_STEP: Final = re.compile(r"step +(\d+)\b")
"""How a line of the example's begins that tells of a training step."""


def _steps_per_minute(lines: Lines) -> float | None:
    """From the line of the second step to that of the last."""
    steps = [(when, int(found[1])) for when, line in lines.told if (found := _STEP.search(line))]
    steps = [(when, step) for when, step in steps if step >= 2]
    if len(steps) < 2:
        return None
    (began, first), (ended, last) = steps[0], steps[-1]
    return round(60 * (last - first) / (ended - began), 2)


def _summary(code: int, seconds: float, strikes: Sequence[Strike], lines: Lines) -> dict[str, Any]:
    text = "\n".join(line for _, line in lines.told)
    found = re.search(r"mean return (-?[\d.]+)", text)
    kills = [strike for strike in strikes if strike.kind in ("kill", "daemon")]
    named = [strike.named_s for strike in kills if strike.named_s is not None]
    back = [strike.back_s for strike in kills if strike.back_s is not None]
    return {
        "exit": code,
        "seconds": round(seconds, 1),
        "steps_per_minute": _steps_per_minute(lines),
        "strikes": {kind: sum(strike.kind == kind for strike in strikes) for kind in _KINDS},
        "not_named": sum(strike.named_s is None for strike in kills),
        "named_s": [statistics.median(named), max(named)] if named else None,
        "back_s": [statistics.median(back), max(back)] if back else None,
        "going_on": text.count("going on with what comes in its place"),
        "mean_return": float(found[1]) if found else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.nemesis", description=__doc__)
    parser.add_argument("--every", type=float, default=8.0, help="seconds between strikes; 0: none")
    parser.add_argument("--max-strikes", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--only", nargs="+", choices=tuple(_KINDS), default=tuple(_KINDS), help="kinds of strikes")
    parser.add_argument("--config", default="halfcheetah_ppo")
    parser.add_argument("--seed", type=int, default=0)
    with tempfile.TemporaryDirectory() as folder:
        return run(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    sys.exit(main())

"""A real Slurm on one machine: slurmctld, a slurmd for each of several nodes, and a munged, all of the test's own.

    with SlurmCluster(3) as slurm:
        job = slurm.submit("srun hostname", "--nodes=3")
        assert slurm.wait(job) == "COMPLETED"
        slurm.output(job)

Nothing outside of its folder is touched: sockets, keys, ports and states are its own, and so is ``SLURM_CONF``, by
which its commands find it.  The nodes n0, n1, … share the host name, the processes and the files of this machine.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import psutil

_PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}
_FIRST_PORTS = range(17800, 19000, 10)
_UP_S = 20.0
_END_S = 10.0

_CONF = """\
ClusterName=rlinf
SlurmctldHost={host}
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=10000,sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=10
SlurmdParameters=config_overrides
GresTypes=gpu
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/slurmd.%n.pid
NodeName=n[0-{last}] NodeHostname={host} Port=[{first_node_port}-{last_node_port}] CPUs=4 Gres=gpu:2 State=UNKNOWN
PartitionName=p Nodes=n[0-{last}] Default=YES State=UP OverSubscribe=FORCE:4
"""
_GRES = "NodeName=n[0-{last}] Name=gpu File=/dev/tty[10-11]\n"  # any devices: nothing opens them


def missing() -> str | None:
    """What this machine lacks for it and how to get it, or ``None``."""
    lacking = sorted({package for tool, package in _PACKAGES.items() if not _tool(tool)})
    if lacking:
        install = "RUNLEVEL=1 apt-get install --no-install-recommends " + " ".join(lacking)
        return f"a Slurm of the test's own needs {', '.join(lacking)}: {install}"
    if os.geteuid() != 0:
        return "a Slurm of the test's own needs root: run the tests as root (sudo make slurm)"
    return None


class SlurmCluster:
    """The daemons; ``folder`` holds what they write, and the jobs' output."""

    def __init__(self, nodes: int) -> None:
        self.nodes = [f"n{number}" for number in range(nodes)]
        self.folder = Path(tempfile.mkdtemp(prefix="rls-"))
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environ = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        for name in [name for name in self.environ if name.startswith(("SLURM_", "SLURMD_")) and name != "SLURM_CONF"]:
            del self.environ[name]

    def __enter__(self) -> SlurmCluster:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name in sorted(self._daemons, reverse=True):  # slurmds, the controller, munged
            self._end(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def submit(self, script: str, *options: str, environ: Mapping[str, str] | None = None) -> str:
        """Queues a batch script of bash; the job's number."""
        path = self.folder / f"{secrets.token_hex(4)}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        command = ["sbatch", "--parsable", f"--output={self.folder}/%A.out", *options, str(path)]
        return self.run(command, environ=environ).stdout.strip()

    def run(self, command: list[str], environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """One of Slurm's commands, or another one in its environment; raises where it fails."""
        env = {**self.environ, **(environ or {})}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done

    def facts(self, job: str) -> dict[str, str]:
        """What ``scontrol show job`` tells."""
        words = self.run(["scontrol", "show", "job", "-o", job]).stdout.splitlines()[0].split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: str, *states: str, seconds: float = 60.0) -> str:
        """Waits until a job is in one of the states, without any until it has ended; the state."""
        deadline = time.monotonic() + seconds
        while True:
            state = self.facts(job)["JobState"]
            if state in states or (not states and state not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")):
                return state
            assert time.monotonic() < deadline, f"job {job} is {state}: {self.output(job)}"
            time.sleep(0.05)

    def output(self, job: str) -> str:
        """What the job has written."""
        path = self.folder / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def wait_for_output(self, job: str, words: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.output(job):
            assert time.monotonic() < deadline, f"job {job} did not write {words!r}: {self.output(job)}"
            time.sleep(0.05)

    def kill_node(self, name: str, job: str) -> None:
        """SIGKILL for a node's slurmd and what runs on it of a job: as if its power was cut."""
        self._daemons[f"slurmd {name}"].kill()
        self._daemons[f"slurmd {name}"].wait()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if f"[{job}." in " ".join(process.cmdline()) and name in self._step_of(process):
                    for each in [process, *process.children(recursive=True)]:
                        each.kill()

    def _step_of(self, stepd: psutil.Process) -> str:
        """The node whose step a slurmstepd runs, as the step's processes know it."""
        for child in stepd.children():
            with contextlib.suppress(psutil.Error):
                return child.environ().get("SLURMD_NODENAME", "")
        return ""

    def _start(self) -> None:
        self.folder.chmod(0o755)
        first = next(base for base in _FIRST_PORTS if all(_is_free(base + each) for each in range(len(self.nodes) + 1)))
        last = len(self.nodes) - 1
        values = {"host": socket.gethostname().split(".")[0], "folder": self.folder, "port": first, "last": last}
        ports = {"first_node_port": first + 1, "last_node_port": first + 1 + last}
        (self.folder / "slurm.conf").write_text(_CONF.format(**values, **ports))
        (self.folder / "gres.conf").write_text(_GRES.format(last=last))
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(32))
        key.chmod(0o400)
        own = [f"--{what}-file={self.folder}/munge.{what}" for what in ("key", "log", "pid", "seed")]
        self._daemon("munged", ["munged", "-F", f"--socket={self.folder}/munge.sock", *own])
        self._until(lambda: (self.folder / "munge.sock").exists(), "munged")
        self._daemon("slurmctld", ["slurmctld", "-D"])
        for name in self.nodes:
            self._daemon(f"slurmd {name}", ["slurmd", "-D", "-N", name])
        self._until(self._is_up, "the nodes")

    def _is_up(self) -> bool:
        done = subprocess.run(["sinfo", "-h", "-N", "-o", "%t"], env=self.environ, capture_output=True, text=True)
        return done.stdout.split() == ["idle"] * len(self.nodes)

    def _daemon(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [_tool(command[0]), *command[1:]],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _until(self, condition: object, what: str) -> None:
        deadline = time.monotonic() + _UP_S
        while not condition():  # type: ignore[operator]
            if time.monotonic() > deadline:
                logs = "".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))
                raise AssertionError(f"{what} did not come up:\n{logs}")
            time.sleep(0.05)

    def _end(self, name: str) -> None:
        process = self._daemons.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tool(name: str) -> str:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or ""


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def launch(*words: str) -> str:
    """The line of a batch script that runs ``rlinf-launch`` in this checkout."""
    import shlex

    checkout = Path(__file__).resolve().parents[2]
    return f"cd {shlex.quote(str(checkout))} && exec {shlex.join([sys.executable, '-m', 'rlinf_launcher', *words])}"

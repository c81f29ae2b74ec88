"""Daemons and an ssh that do as they are told, so that a run's whole life can be seen without a node's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlinf_launcher.job import RelayJob
from rlinf_launcher.options import Options
from rlinf_launcher.remote.host import Host
from rlinf_launcher.remote.plan import plan
from rlinf_launcher.report import Report

DAEMON = """
import json, os, shutil, sys, time
def line():
    data = b""
    while not data.endswith(b"\\n"):
        byte = os.read(0, 1)
        if not byte:
            return None
        data += byte
    return json.loads(data)
config = line()
def say(**message):
    os.write(1, (config["marker"] + json.dumps(message) + "\\n").encode())
folder = os.environ["FAKE_DAEMONS"]
with open(f"{folder}/{config['node']}.json", "w") as file:
    json.dump({"config": config, "environ": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv}, file)
behaviour = json.loads(os.environ["FAKE_BEHAVIOUR"]).get(config["name"], "good")
if behaviour == "mute":
    line()
    sys.exit(0)
if behaviour == "failing":
    say(event="failed", error="no room for a socket")
    line()
    sys.exit(1)
os.makedirs(config["run_dir"], exist_ok=True)
say(event="up", address=config["bind"] and config["bind"] + ":1", socket=config["run_dir"] + "/node.sock",
    pid=os.getpid(), facts={"cpus": 2, "gpus": []})
assert line()["op"] == "peers"
say(event="ready")
if behaviour == "dying":
    while not os.path.exists(folder + "/die"):
        time.sleep(0.01)
    print("out of luck", file=sys.stderr)
    sys.exit(3)
if behaviour.startswith("accusing "):
    say(event="node_lost", node=int(behaviour.split()[1]), reason="no sign of life")
if behaviour == "stubborn":
    time.sleep(1000)
while (order := line()) is not None and order["op"] != "stop":
    pass
shutil.rmtree(config["run_dir"])
"""

SSH = """#!/bin/sh
while [ "$1" != "--" ]; do shift; done
case "$2" in
refused) echo "ssh: connect to host refused port 22: Connection refused" >&2; exit 255 ;;
silent) exec sleep 1000 ;;
noisy) echo "Welcome!"; echo '{"event": "preflight", "ok": true}'; printf "no newline" ;;
esac
export SSH_CONNECTION="127.0.0.1 50000 127.0.0.1 22"
exec sh -c "$3"
"""


class Stage:
    """A folder with fake daemons, a fake ssh and a script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        package = folder / "path/rlinf_launcher"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "daemon.py").write_text(DAEMON)
        ssh = folder / "bin/ssh"
        ssh.parent.mkdir()
        ssh.write_text(SSH)
        ssh.chmod(0o755)
        self.script = folder / "train.py"
        self.script.write_text("")
        self.behaviour: dict[str, str] = {}

    @property
    def exported(self) -> dict[str, str]:
        """What leads a node to the fake daemon."""
        return {
            "PYTHONPATH": str(self.folder / "path"),
            "FAKE_DAEMONS": str(self.folder),
            "FAKE_BEHAVIOUR": json.dumps(self.behaviour),
        }

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "OUT": str(self.folder / "out")}

    def runs(self, program: str) -> None:
        """What the script does; it may write to the file ``$OUT``."""
        self.script.write_text(program)

    def job(self, report: Report, hosts: Sequence[Host] = (Host("localhost"),), **options: Any) -> RelayJob:
        settings = Options(**{"script": str(self.script), "start_timeout": 20.0, **options})
        return RelayJob(plan(hosts, settings), settings, self.exported, self.environ, report)

    def launcher(self, *words: str) -> list[str]:
        """The command line of a launcher whose nodes are fakes."""
        flags = [word for name, value in self.exported.items() for word in ("-e", f"{name}={value}")]
        return [sys.executable, "-m", "rlinf_launcher", *flags, *words]

    def daemon(self, rank: int) -> dict[str, Any]:
        """What the fake daemon has seen: its config, environment, working directory, arguments."""
        seen: dict[str, Any] = json.loads((self.folder / f"{rank}.json").read_text())
        return seen

    @property
    def out(self) -> str:
        """What the script has written to ``$OUT``."""
        return (self.folder / "out").read_text()

"""Bundles and logs of a run whose nodes are on machines of their own, over real ssh."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rlinf_launcher.control.bundle_file import read_bundle
from tests._support import standing_runs
from tests._support.fake_hosts import CHECKOUT, FakeHosts
from tests._support.standing_runs import await_line

pytestmark = [pytest.mark.namespaces, pytest.mark.slow]

CONTROL = "from rlinf_launcher.cli.control import main; raise SystemExit(main())"


def test_what_other_machines_have_comes_by_their_daemons_and_is_named_where_these_are_gone(
    fake_hosts: Callable[..., FakeHosts], tmp_path: Path
) -> None:
    hosts = fake_hosts(2)
    environ = {name: os.environ[name] for name in ("XDG_RUNTIME_DIR", "TMPDIR")} | {"PYTHONPATH": str(CHECKOUT)}
    words = ["-m", "rlinf_launcher", "--ssh-args", shlex.join(hosts.ssh_args), "--hosts", "node0,node1"]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}

    rlinf_ctl = [sys.executable, "-c", CONTROL, "--run-dir", os.environ["XDG_RUNTIME_DIR"]]

    def control(*words: str) -> str:
        return hosts.driver.run([*rlinf_ctl, *words], cwd=tmp_path, env=environ).stdout

    command = [sys.executable, *words, standing_runs.__file__]
    with hosts.driver.popen(command, cwd=CHECKOUT, env=environ, **streams) as launcher:
        try:
            await_line(launcher, "standing")
            follower = hosts.driver.popen([*rlinf_ctl, "logs", "-f", "rollout:1"], env=environ, **streams)
            await_line(follower, "trouble")
            told = json.loads(control("bundle", "--json", "--output", "live.zip"))
            alive = read_bundle(tmp_path / "live.zip").recorded()
            lines = [json.loads(line) for line in control("logs", "rollout", "--json", "--tail", "1").splitlines()]
            titles = [line for line in control("logs", "rollout").splitlines() if line.startswith("==>")]
        finally:
            processes = [psutil.Process(launcher.pid), *psutil.Process(launcher.pid).children(recursive=True)]
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):  # some end with the launcher
                    process.kill()
            psutil.wait_procs(processes[1:], 10)
            launcher.communicate()
    assert (follower.communicate(timeout=10)[0], follower.returncode) == ("", 0)
    assert told["missing"] == {}
    assert [(line["rank"], line["stream"]) for line in lines if line["line"] == "trouble"] == [
        (0, "stderr"),
        (1, "stderr"),
    ]
    assert titles[::3] == ["==> node0:rollout/rank_0.out <==", "==> node1:rollout/rank_1.err <=="]
    assert {ring.identity["process"]: ring.identity["host"] for ring in alive.rings} == {
        "driver": "driver", "rollout:0": "node0", "rollout:1": "node1",
    }  # fmt: skip
    assert {node["name"]: node["host"] for node in alive.nodes}.items() >= {"node0": "node0", "node1": "node1"}.items()
    assert alive.logs["rollout/rank_1.err"] == "trouble\n"
    told = json.loads(control("bundle", alive.run, "--json", "--output", "dead.zip"))
    dead = read_bundle(tmp_path / "dead.zip").recorded()
    assert [ring.identity["process"] for ring in dead.rings] == ["driver"]
    assert told["missing"] == {
        f"node {node} (node{node})": f"its files are on node{node}, in /tmp/rlinf-logs-0/{alive.run}" for node in (0, 1)
    }
    for left in Path(os.environ["XDG_RUNTIME_DIR"]).glob(f"rlinf-{alive.run}*"):
        shutil.rmtree(left)

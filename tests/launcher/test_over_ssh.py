"""The launcher over real ssh, to several hosts with networks, mounts and names of their own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests._support.fake_hosts import CHECKOUT, FakeHosts

pytestmark = [pytest.mark.namespaces, pytest.mark.slow]

Hosts = Callable[..., FakeHosts]

PACKAGES = ("rlinf_async", "launcher")


def command(hosts: FakeHosts, *words: str) -> list[str]:
    return [sys.executable, "-m", "rlinf_launcher", "--ssh-args", shlex.join(hosts.ssh_args), *words]


def launch(hosts: FakeHosts, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {"XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"], "TMPDIR": os.environ["TMPDIR"]}
    return hosts.driver.run(command(hosts, *words), cwd=CHECKOUT, env=environ, check=False)


def a_project(folder: Path, program: str) -> Path:
    """A folder to ship: a script, and our packages, which the hosts may lack."""
    folder.mkdir()
    for name in PACKAGES:
        (folder / name).mkdir()
        for source in (CHECKOUT / name).rglob("*.py"):
            place = folder / source.relative_to(CHECKOUT)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(source.read_bytes())
    (folder / "train.py").write_text(program)
    return folder


def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_one_unreachable_and_one_without_the_package_among_four(fake_hosts: Hosts) -> None:
    hosts = fake_hosts(3, hidden={1: [CHECKOUT]})
    script = hosts.directory / "train.py"
    script.write_text("")
    began = time.monotonic()
    done = launch(hosts, "--hosts", "node0,node1,10.77.0.99,node2", str(script))
    assert time.monotonic() - began < 15
    assert done.returncode == 255
    lines = [line.split(maxsplit=1) for line in done.stderr.split("error: ")[1].splitlines()]
    assert lines[0] == ["2", "of 4 nodes could not be started:"]
    assert lines[1][0] == "node1"
    assert "cannot import rlinf_async, rlinf_launcher" in lines[1][1]
    assert lines[3][0] == "10.77.0.99"
    assert lines[3][1].startswith("ssh: ")
    for host in hosts:
        assert not host.run(["sh", "-c", "ls /tmp | grep rlinf-0- || true"]).stdout
        assert "launcher" not in host.run(["ps", "-ww", "-eo", "args"]).stdout


def test_keys_that_are_unknown_or_changed_are_refused(fake_hosts: Hosts) -> None:
    hosts = fake_hosts(2)
    known = dict(line.split(" ", 1) for line in hosts.known_hosts.read_text().splitlines())
    node0, node1 = (f"{host.hostname},{host.address}" for host in hosts)
    hosts.known_hosts.write_text(f"{node0} {known[node1]}\n")
    done = launch(hosts, "--check", "--hosts", "node0,node1")
    assert done.returncode == 255
    assert "ssh: the host key of node0 has changed" in done.stdout
    assert "ssh: the host key of node1 is not known here" in done.stdout
    done = launch(hosts, "--check", "--accept-new-host-keys", "--hosts", "node0,node1")
    rows = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines() if len(line.split()) > 5}
    assert (rows["node0"], rows["node1"]) == ("failed", "ok")


def test_a_folder_is_shipped_and_nothing_of_it_is_left(fake_hosts: Hosts, tmp_path: Path) -> None:
    hosts = fake_hosts(2, hidden={0: [CHECKOUT], 1: [CHECKOUT]})
    project = a_project(tmp_path / "project", "print('trained')")
    done = launch(hosts, "--hosts", "node0,node1", "--sync", str(project), str(project / "train.py"))
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    for host in hosts:
        assert not host.run(["sh", "-c", "ls /tmp | grep rlinf-0- || true"]).stdout


@pytest.mark.parametrize("victim", ["ssh", "launcher"])
def test_a_cut_lifeline_ends_everything_on_the_other_side(fake_hosts: Hosts, victim: str) -> None:
    hosts = fake_hosts(2)
    script = hosts.directory / "train.py"
    script.write_text("import os, time\nprint(os.environ['RLINF_RUN_ID'], flush=True)\ntime.sleep(1000)")
    environ = {"XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"], "TMPDIR": os.environ["TMPDIR"]}
    argv = command(hosts, "--hosts", "node0,node1", str(script))
    with hosts.driver.popen(
        argv,
        cwd=CHECKOUT,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        try:
            assert launcher.stdout is not None
            run = launcher.stdout.readline().strip()
            assert set(hosts.processes(run)) == {"driver", "node0", "node1"}
            if victim == "launcher":
                launcher.kill()
                until(lambda: not hosts.processes(run), 5)
            else:
                clients = [child for child in psutil.Process(launcher.pid).children() if child.name() == "ssh"]
                next(client for client in clients if "node1" in client.cmdline()).kill()
                until(lambda: "node1" not in hosts.processes(run), 5)
                assert "node0" in hosts.processes(run)
                assert launcher.stderr is not None
                overdue = threading.Timer(10, launcher.kill)
                overdue.start()
                lost = next((line for line in launcher.stderr if "lost" in line), "")
                overdue.cancel()
                overdue.join()
                assert "node1: lost: its ssh client was killed by signal 9, on this machine" in lost
                launcher.terminate()
                launcher.communicate(timeout=10)
                assert launcher.returncode == 130
                assert not hosts.processes(run)
        finally:
            launcher.kill()

"""Kills of every process of a run: everything below it ends within five seconds.

``make orphans`` kills every victim in every setting twenty times; the tests without that mark are one round of it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlinf_launcher.daemon import guardian
from tests._support import leaks
from tests._support.broken_runs import FIVE_SECONDS, SCRIPT, Broken
from tests._support.fake_hosts import CHECKOUT, FakeHosts

PHASES = ["starting", "launching", "calls", "idle", "closing"]

VICTIMS = {
    "plain": ["script", "daemon", "guardian"],
    "local": ["script", "daemon", "guardian", "launcher"],
    "ssh": ["script", "daemon", "guardian", "launcher", "ssh"],
}
"""Setting → whom to kill: a plain script, the launcher with two nodes on this machine, and with two over ssh."""

ONE_ROUND = {
    "plain": ["script-launching", "daemon-calls", "guardian-idle"],
    "local": ["script-calls", "daemon-idle", "guardian-launching", "launcher-starting", "launcher-calls"],
    "ssh": ["script-idle", "daemon-launching", "guardian-calls", "launcher-closing", "ssh-calls"],
}
"""Each victim in each setting, and in each phase somebody."""


def deaths(setting: str) -> list[object]:
    """(victim, phase, node) of every case."""
    cases: list[object] = []
    for number, case in enumerate(ONE_ROUND[setting]):
        victim, phase = case.split("-")
        is_quick = case == "script-launching"
        cases.append(pytest.param(victim, phase, number % 2, marks=() if is_quick else pytest.mark.slow, id=case))
    for victim in VICTIMS[setting]:
        # There is no script before there are nodes, if it is the launcher's.
        phases = PHASES[1:] if victim == "script" and setting != "plain" else PHASES
        for number in range(20):
            phase = phases[number % len(phases)]
            name = f"{victim}-{phase}-{number}"
            cases.append(pytest.param(victim, phase, number % 2, marks=pytest.mark.orphans, id=name))
    return cases


LOCAL = ["-m", "rlinf_launcher", "--local-nodes", "2", SCRIPT]
ALONE = ["-m", "rlinf_launcher", SCRIPT]
"""With one node, where the claim is the launcher's only: each node imports torch, which costs most of a test."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[FakeHosts]:
    with FakeHosts(2) as hosts:
        yield hosts


def over_ssh(hosts: FakeHosts) -> list[str]:
    return ["-m", "rlinf_launcher", "--hosts", "node0,node1", "--ssh-args", " ".join(hosts.ssh_args)]


def victim_and_its_tree(run: Broken, setting: str, victim: str, node: int, hosts: FakeHosts | None) -> list[int]:
    """First the pid to kill, then those that must end with it, whatever the script does."""
    far = hosts[node] if hosts is not None else None
    if victim == "launcher" or (victim == "script" and setting == "plain"):
        return [run.process.pid, *run.processes()]
    if victim == "script":
        return [run.child(SCRIPT), *run.processes()]
    if victim == "ssh":
        assert far is not None
        return [run.child(far.hostname), *set(far.processes()).intersection(run.processes())]
    find = run.daemons if victim == "daemon" else run.guardians
    run.until(lambda: bool(find(far)))
    candidates = find(far)
    return run.tree(candidates[node % len(candidates)])


def kill_and_look(run: Broken, setting: str, victim: str, phase: str, node: int, hosts: FakeHosts | None) -> None:
    run.reach(phase)
    pid, *tree = victim_and_its_tree(run, setting, victim, node, hosts)
    since = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    if phase == "idle":
        assert leaks.wait_ended(tree, FIVE_SECONDS) == []
        if run.process.poll() is None and victim != "script":
            since = time.monotonic()
            run.say("go on, and see that the node is lost")
    assert run.orphans(since + FIVE_SECONDS) == []
    code = run.process.wait(FIVE_SECONDS)
    if victim == "launcher" or (victim == "script" and setting == "plain"):
        assert code == -signal.SIGKILL
    elif victim == "script":
        assert code == 128 + signal.SIGKILL
    elif phase == "starting":
        assert code == (1 if setting == "plain" else 255)
    elif phase != "closing":
        assert code == 1
        assert "rlinf_async.errors.NodeLost" in run.out
    if not (victim == "guardian" and phase == "starting"):  # the daemon has not heard of its directory yet
        assert run.directories() == []


@pytest.mark.parametrize(("victim", "phase", "node"), deaths("plain"))
def test_nothing_is_left_of_a_plain_script(victim: str, phase: str, node: int, tmp_path: Path) -> None:
    with Broken(tmp_path, SCRIPT, phase) as run:
        kill_and_look(run, "plain", victim, phase, node, None)


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "phase", "node"), deaths("local"))
def test_nothing_is_left_of_nodes_on_this_machine(victim: str, phase: str, node: int, tmp_path: Path) -> None:
    with Broken(tmp_path, *LOCAL, phase) as run:
        kill_and_look(run, "local", victim, phase, node, None)


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.parametrize(("victim", "phase", "node"), deaths("ssh"))
def test_nothing_is_left_of_nodes_over_ssh(
    victim: str, phase: str, node: int, hosts: FakeHosts, tmp_path: Path
) -> None:
    with Broken(tmp_path, *over_ssh(hosts), SCRIPT, phase, hosts=hosts) as run:
        kill_and_look(run, "ssh", victim, phase, node, hosts)


# ---- a worker dies, and nobody was asking


@pytest.mark.slow
def test_a_dead_worker_is_told_to_an_idle_driver_and_takes_nobody_along(tmp_path: Path) -> None:
    with Broken(tmp_path, *LOCAL, "idle") as run:
        run.reach("idle")
        worker = run.worker("litter:1@local1")
        tree, others = run.tree(worker), set(run.processes())
        os.kill(worker, signal.SIGKILL)
        run.until(lambda: "rank 1 of group 'litter' on local1 (pid" in run.out)
        assert f"(pid {worker}) was killed by SIGKILL; full log " in run.out
        assert leaks.wait_ended(tree, FIVE_SECONDS) == []
        assert others - set(tree) == set(run.processes())
        run.say("go on, and see that rank 1 is dead")
        assert run.process.wait(FIVE_SECONDS) == 1
        assert "rlinf_async.errors.WorkerDied" in run.out


@pytest.mark.slow
def test_shared_memory_ends_where_all_but_its_trackers_are_killed(tmp_path: Path) -> None:
    with Broken(tmp_path, SCRIPT, "idle") as run:
        run.reach("idle")
        victims = [run.process.pid, *(pid for pid in run.processes() if not guardian.is_tracker(pid))]
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        assert run.orphans(time.monotonic() + FIVE_SECONDS) == []
        for folder in run.directories():
            shutil.rmtree(folder)
        for pid in victims:
            guardian.remove_cuda_files(pid)  # CUDA has no tracker


# ---- guardian and daemon at one stroke: nobody is left to sweep, but for the user


def kill_both(run: Broken, guardian: int, daemon: int) -> None:
    for pid in (guardian, daemon):
        os.kill(pid, signal.SIGSTOP)
    for pid in (daemon, guardian):
        os.kill(pid, signal.SIGKILL)
    assert leaks.wait_ended([daemon, guardian], FIVE_SECONDS) == []


def see_the_sweep(run: Broken, *words: str, hosts: FakeHosts | None = None) -> None:
    assert run.orphans(time.monotonic()) != []
    assert run.directories() != []
    argv = [sys.executable, "-m", "rlinf_launcher", *words, "--sweep", run.run]
    environment = {"PYTHONPATH": str(CHECKOUT)}
    if hosts is not None:
        argv = hosts.driver.command(argv, cwd=CHECKOUT, env=environment)
    swept = subprocess.run(
        argv, cwd=CHECKOUT, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert swept.returncode == 0, swept.stdout + swept.stderr
    assert "import time; time.sleep(600)" in swept.stdout
    assert run.orphans(time.monotonic() + FIVE_SECONDS) == []
    assert run.directories() == []


@pytest.mark.slow
def test_a_sweep_ends_what_a_plain_script_has_left(tmp_path: Path) -> None:
    with Broken(tmp_path, SCRIPT, "idle") as run:
        run.reach("idle")
        kill_both(run, *run.guardians(), *run.daemons())
        run.process.kill()
        run.process.wait()
        see_the_sweep(run)


@pytest.mark.slow
@pytest.mark.namespaces
def test_a_sweep_ends_what_is_left_on_other_hosts(hosts: FakeHosts, tmp_path: Path) -> None:
    with Broken(tmp_path, *over_ssh(hosts), SCRIPT, "idle", hosts=hosts) as run:
        run.reach("idle")
        kill_both(run, *run.guardians(hosts[1]), *run.daemons(hosts[1]))
        run.say("go on, and see that the node is lost")
        assert run.process.wait(FIVE_SECONDS) == 1
        see_the_sweep(run, *over_ssh(hosts)[2:], hosts=hosts)


# ---- Ctrl-C and its kin


def look_after_the_end(run: Broken, since: float, within: float) -> None:
    assert run.process.wait(FIVE_SECONDS) == 130
    assert time.monotonic() - since < within
    assert run.orphans(since + FIVE_SECONDS) == []
    assert run.directories() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "phase"),
    [(signal.SIGINT, "calls"), (signal.SIGTERM, "launching"), (signal.SIGHUP, "idle"), (signal.SIGINT, "starting")],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_signal_to_the_launcher_ends_the_run_in_order(number: signal.Signals, phase: str, tmp_path: Path) -> None:
    with Broken(tmp_path, *(LOCAL if phase == "calls" else ALONE), phase) as run:
        run.reach(phase)
        since = time.monotonic()
        run.process.send_signal(number)
        look_after_the_end(run, since, FIVE_SECONDS)
        if phase != "starting":
            assert "KeyboardInterrupt" in run.out


def test_ctrl_c_on_a_terminal_ends_the_run_in_order(tmp_path: Path) -> None:
    terminal, line = os.openpty()
    try:
        with Broken(tmp_path, *ALONE, "calls", prefix=["setsid", "-c"], stdin=line, start_new_session=False) as run:
            run.reach("calls")
            since = time.monotonic()
            os.write(terminal, b"\x03")
            look_after_the_end(run, since, FIVE_SECONDS)
            assert run.out.count("KeyboardInterrupt") == 1
    finally:
        os.close(terminal)
        os.close(line)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_second_signal_ends_at_once_a_script_that_ignores_the_first(number: signal.Signals, tmp_path: Path) -> None:
    with Broken(tmp_path, *ALONE, "deaf") as run:
        run.reach("deaf")
        run.process.send_signal(number)
        run.until(lambda: "again to end at once" in run.out)
        since = time.monotonic()
        run.process.send_signal(number)
        look_after_the_end(run, since, 2.0)


# ---- exit codes


# With workers that leave something behind at an end in order and at one that is not.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("last_words", "code", "said", "with_workers"),
    [
        ("pass", 0, "", True),
        ("sys.exit(7)", 7, "", False),
        ("raise ValueError('mine')", 1, "ValueError: mine", False),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was ended by signal 9", True),
    ],
    ids=["0", "7", "traceback", "killed"],
)
def test_the_scripts_exit_code_is_the_launchers(
    last_words: str, code: int, said: str, with_workers: bool, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    workers = "from tests._support.broken_runs import Litter\nLitter.create_group(False).launch(cluster).wait_ready()\n"
    script.write_text(
        "import os, signal, sys\n"
        "from rlinf_async import Cluster\n"
        "cluster = Cluster()\n"
        "print('run', cluster.run_id, flush=True)\n"
        f"{workers if with_workers else ''}"
        f"{last_words}\n"
    )
    with Broken(tmp_path, "-m", "rlinf_launcher", str(script)) as run:
        assert run.process.wait(60) == code, run.out
        since = time.monotonic()
        assert said in run.out
        assert ("Traceback" in run.out) == (code == 1)
        assert run.orphans(since + FIVE_SECONDS) == []
        assert run.directories() == []

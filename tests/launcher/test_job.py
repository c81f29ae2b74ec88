"""A whole run with fake nodes: start, output, end, cleanup."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from rlinf_async.errors import LaunchError
from rlinf_launcher import job as job_module
from rlinf_launcher.job import Job
from rlinf_launcher.remote.host import Host
from rlinf_launcher.remote.ssh import SshConnector
from rlinf_launcher.report import Report
from tests._support.fake_daemons import Stage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(tmp_path)
    monkeypatch.setenv("PATH", stage.environ["PATH"])  # where the fake ssh is found
    return stage


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def report(screen: io.StringIO) -> Report:
    return Report(screen)


DEAF = "import os, signal, time; signal.signal(2, signal.SIG_IGN); open(os.environ['OUT'], 'w'); time.sleep(1000)"


async def life(job: Job) -> int:
    async with asyncio.timeout(30), job:
        return await job.run_script()


def processes_of(run: str) -> list[int]:
    mark = f"RLINF_RUN_ID={run}".encode()
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                if mark in (place / "environ").read_bytes().split(b"\0"):
                    found.append(int(place.name))
            except OSError:
                continue
    return found


async def test_the_script_finds_its_run_and_gives_the_exit_code(stage: Stage, report: Report) -> None:
    stage.runs(
        "import json, os, sys\n"
        "names = ['RLINF_RUN_ID', 'RLINF_NODE_SOCKET', 'PYTHONPATH', 'FAKE_DAEMONS']\n"
        "json.dump([sys.argv, [os.environ[name] for name in names]], open(os.environ['OUT'], 'w'))\n"
        "sys.exit(7)\n"
    )
    job = stage.job(report, args=("--lr", "3"))
    assert await life(job) == 7
    argv, (run, node_socket, path, exported) = json.loads(stage.out)
    config = stage.daemon(0)["config"]
    assert argv == [str(stage.script), "--lr", "3"]
    assert run == job.run_id == config["run"]
    assert node_socket == config["run_dir"] + "/node.sock"
    assert path.split(":")[0] == str(stage.folder / "path")
    assert exported == str(stage.folder)


async def test_a_script_that_cannot_be_started_is_one_error_and_the_nodes_end(
    stage: Stage, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.runs("")
    refuse = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    monkeypatch.setattr(job_module, "Driver", refuse)
    job = stage.job(report)
    with pytest.raises(
        LaunchError, match=r"the script cannot be started: .*Too many open files \(it may open \d+ files"
    ):
        await life(job)
    assert processes_of(job.run_id) == []


async def test_a_lone_local_node_has_neither_address_nor_keys(stage: Stage, report: Report) -> None:
    assert await life(stage.job(report)) == 0
    seen = stage.daemon(0)
    config = seen["config"]
    assert (config["bind"], config["credentials"], config["hidden"]) == (None, None, False)
    assert (config["num_nodes"], config["name"]) == (1, "localhost")
    assert seen["environ"]["RLINF_RUN_ID"] == config["run"]
    assert seen["cwd"] == os.getcwd()
    assert not Path(config["run_dir"]).exists()


async def test_local_nodes_use_loopback_with_one_authoritys_keys(stage: Stage, report: Report) -> None:
    assert await life(stage.job(report, local_nodes=3)) == 0
    configs = [stage.daemon(rank)["config"] for rank in range(3)]
    assert [config["name"] for config in configs] == ["local0", "local1", "local2"]
    assert {config["bind"] for config in configs} == {"127.0.0.1"}
    assert len({config["run_dir"] for config in configs}) == 3
    assert len({config["credentials"]["ca"] for config in configs}) == 1
    assert len({config["credentials"]["key"] for config in configs}) == 3
    for rank in range(3):
        seen = stage.daemon(rank)
        assert "PRIVATE KEY" not in json.dumps([seen["environ"], seen["argv"]])


async def test_a_hosts_settings_reach_its_daemon_alone(stage: Stage, report: Report) -> None:
    here = Host("localhost", slots=4, gpus=("0", "2"), labels=("big",), env={"ROBOT_IP": "10.0.0.2"})
    assert await life(stage.job(report, [here], tee="0,3", log_dir=Path("/logs"))) == 0
    seen = stage.daemon(0)
    config = seen["config"]
    assert (config["max_gpus"], config["gpus"], config["labels"]) == (4, ["0", "2"], ["big"])
    assert (config["tee"], config["log_dir"]) == ("0,3", "/logs")
    assert config["env"]["ROBOT_IP"] == seen["environ"]["ROBOT_IP"] == "10.0.0.2"


async def test_a_host_behind_ssh_adds_a_hidden_node_here(stage: Stage, report: Report) -> None:
    assert await life(stage.job(report, [Host("noisy")])) == 0
    there, here = stage.daemon(0)["config"], stage.daemon(1)["config"]
    assert (there["name"], there["hidden"], here["hidden"]) == ("noisy", False, True)
    assert there["num_nodes"] == here["num_nodes"] == 1
    assert there["bind"] == "127.0.0.1"  # as $SSH_CONNECTION has it
    assert here["bind"] == "127.0.0.1"  # our address on the way there


async def test_addr_in_the_hosts_file_wins(stage: Stage, report: Report) -> None:
    assert await life(stage.job(report, [Host("there", address="127.0.0.5")])) == 0
    assert stage.daemon(0)["config"]["bind"] == "127.0.0.5"


async def test_every_failed_host_is_listed_and_the_others_stopped(stage: Stage, report: Report) -> None:
    job = stage.job(report, [Host("refused"), Host("noisy"), Host("pythonless", python="/no/python")])
    with pytest.raises(LaunchError) as caught:
        await life(job)
    lines = str(caught.value).splitlines()
    assert lines[0] == "2 of 3 nodes could not be started:"
    assert lines[1] == "  refused     ssh: nothing listens on port 22"
    assert lines[3] == "  pythonless  /no/python is not there"
    assert "noisy" not in str(caught.value)
    assert processes_of(job.run_id) == []
    assert not list(Path(os.environ["XDG_RUNTIME_DIR"]).glob(f"*{job.run_id}*"))
    assert not list(stage.folder.glob("*.json"))  # no daemon was started for nothing


async def test_a_local_only_script_is_named_with_the_fix(
    stage: Stage, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stage.folder)
    stage.script.unlink()
    with pytest.raises(LaunchError, match=r"there +script: .*train\.py is not there\n.*fix: --sync DIR"):
        await life(stage.job(report, [Host("there")]))


async def test_a_shipped_folder_is_first_on_the_path(
    stage: Stage, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = stage.folder / "code"
    code.mkdir()
    (code / "train.py").write_text("import os; open(os.environ['OUT'], 'w').write(os.environ['PYTHONPATH'])")
    monkeypatch.chdir(code)
    assert await life(stage.job(report, [Host("there")], sync=code, script="train.py")) == 0
    there, here = stage.daemon(0), stage.daemon(1)
    near, far = there["config"]["sync"]
    assert (near, here["config"]["sync"]) == (str(code), None)
    assert far == there["config"]["run_dir"] + "/node-0/sync"
    assert there["cwd"] == far
    assert there["environ"]["PYTHONPATH"].split(":")[0] == far
    assert "PYTHONPATH" not in there["config"]["env"]  # it would win over the one above
    # here the folder itself stands first, for the daemon and for the script
    assert here["environ"]["PYTHONPATH"].split(":")[0] == stage.out.split(":")[0] == str(code)


async def test_a_link_to_the_shipped_folder_equals_its_name(stage: Stage, report: Report) -> None:
    (stage.folder / "code/inner").mkdir(parents=True)
    link = stage.folder / "link"
    link.symlink_to("code/inner")
    assert await life(stage.job(report, [Host("there")], sync=stage.folder / "code", cwd=str(link))) == 0
    there = stage.daemon(0)
    assert there["cwd"] == there["config"]["sync"][1] + "/inner"


async def test_a_machine_under_two_names_is_found_out(stage: Stage, report: Report) -> None:
    hosts = [Host("localhost"), Host("there")]
    with pytest.raises(LaunchError, match="there  is the same machine as localhost"):
        await life(stage.job(report, hosts))
    assert await life(stage.job(report, local_nodes=2)) == 0  # meant so


async def test_a_silent_node_is_named_within_the_start_timeout(stage: Stage, report: Report) -> None:
    stage.behaviour = {"local1": "mute"}
    job = stage.job(report, local_nodes=2, start_timeout=1.5)
    began = time.monotonic()
    with pytest.raises(LaunchError, match="local1  was still starting its daemon after"):
        await life(job)
    assert time.monotonic() - began < 6
    assert processes_of(job.run_id) == []


async def test_a_silent_host_is_named_within_the_start_timeout(stage: Stage, report: Report) -> None:
    job = stage.job(report, [Host("silent"), Host("refused")], start_timeout=0.7)
    with pytest.raises(LaunchError, match=r"2 of 2 (.|\n)*silent   was still being reached"):
        await life(job)


async def test_daemons_that_fail_are_all_listed(stage: Stage, report: Report) -> None:
    stage.behaviour = {"local0": "failing", "local2": "failing"}
    with pytest.raises(LaunchError) as caught:
        await life(stage.job(report, local_nodes=3))
    assert str(caught.value).splitlines() == [
        "2 of 3 nodes could not be started:",
        "  local0  no room for a socket",
        "  local2  no room for a socket",
    ]


async def test_a_lost_node_is_shown_and_the_script_continues(stage: Stage, report: Report, screen: io.StringIO) -> None:
    stage.behaviour = {"local1": "dying"}
    stage.runs(
        "import os, time\n"
        "folder = os.environ['FAKE_DAEMONS']\n"
        "open(folder + '/die', 'w').close()\n"
        "while not os.path.exists(folder + '/seen'): time.sleep(0.01)\n"
    )
    job = stage.job(report, local_nodes=2)

    async def see() -> None:
        while "local1: lost: its process ended with exit code 3" not in screen.getvalue():
            await asyncio.sleep(0.01)
        (stage.folder / "seen").touch()

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(see())
        assert await life(job) == 0
    assert "out of luck" in screen.getvalue()


async def shown(job: Job, stage: Stage, screen: io.StringIO, text: str) -> float:
    """End the script once a text is on the screen; return the seconds of the run's end."""
    os.mkfifo(stage.folder / "may_end")
    stage.runs(f"open({str(stage.folder / 'may_end')!r}).read()")
    ended_at = 0.0

    async def see() -> None:
        nonlocal ended_at
        while text not in screen.getvalue():
            await asyncio.sleep(0.01)
        with (stage.folder / "may_end").open("w"):
            ended_at = time.monotonic()

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(see())
        assert await life(job) == 0
    return time.monotonic() - ended_at


async def test_of_two_disconnected_nodes_the_scripts_loss_is_named(
    stage: Stage, report: Report, screen: io.StringIO
) -> None:
    stage.behaviour = {"local0": "accusing 1", "local1": "accusing 0"}
    await shown(stage.job(report, local_nodes=2), stage, screen, "local1: lost: no sign of life")
    assert screen.getvalue().count(": lost: ") == 1


@pytest.mark.parametrize("accused", [0, 1])
async def test_an_isolated_nodes_report_names_only_the_link(
    stage: Stage, report: Report, screen: io.StringIO, accused: int
) -> None:
    stage.behaviour = {"local2": f"accusing {accused}"}
    told = f"local2 has lost its link to local{accused}, and one of the two may be lost: no sign of life"
    await shown(stage.job(report, local_nodes=3), stage, screen, told)
    assert ": lost: " not in screen.getvalue()


async def test_the_end_does_not_wait_for_a_lost_node(stage: Stage, report: Report, screen: io.StringIO) -> None:
    stage.behaviour = {"local0": "accusing 1", "local1": "stubborn"}
    job = stage.job(report, local_nodes=2)
    assert await shown(job, stage, screen, "local1: lost: no sign of life") < 2  # one, and what a busy machine needs
    assert processes_of(job.run_id) == []


async def test_a_script_ended_by_a_signal_counts_as_in_shells(stage: Stage, report: Report) -> None:
    stage.runs("import os; os.kill(os.getpid(), 11)")
    assert await life(stage.job(report)) == 128 + 11


async def test_what_the_script_leaves_behind_ends_with_the_run(stage: Stage, report: Report) -> None:
    stage.runs(
        "import os, subprocess\n"
        "p = subprocess.Popen(['sh', '-c', 'setsid sleep 1000 & echo $!'], stdout=subprocess.PIPE)\n"
        "open(os.environ['OUT'], 'wb').write(p.stdout.readline())\n"
    )
    job = stage.job(report)
    assert await life(job) == 0
    assert not Path(f"/proc/{int(stage.out)}").exists()
    assert processes_of(job.run_id) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_script_may_end_in_order(stage: Stage, report: Report, number: int) -> None:
    stage.runs(
        "import os, time\n"
        "out = open(os.environ['OUT'], 'w', 1)\n"
        "try:\n"
        "    print('running', file=out); time.sleep(1000)\n"
        "except KeyboardInterrupt:\n"
        "    print('saved', file=out)\n"
    )
    job = stage.job(report)

    async def interrupt() -> None:
        while not (stage.folder / "out").exists() or "running" not in stage.out:
            await asyncio.sleep(0.01)
        job.interrupt(number)

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(interrupt())
        assert await life(job) == 0
    assert stage.out == "running\nsaved\n"
    assert job.was_interrupted


async def test_a_start_that_is_interrupted_leaves_nothing(stage: Stage, report: Report) -> None:
    stage.behaviour = {"local1": "mute"}
    job = stage.job(report, local_nodes=2)

    async def interrupt() -> None:
        while not (stage.folder / "1.json").exists():
            await asyncio.sleep(0.01)
        job.interrupt(signal.SIGINT)

    began = time.monotonic()
    main = asyncio.create_task(life(job))
    async with asyncio.timeout(20):
        await interrupt()
        await asyncio.wait([main])
    assert main.cancelled()
    assert time.monotonic() - began < 10
    assert processes_of(job.run_id) == []


async def test_an_interrupt_shortens_an_end_that_has_begun(
    stage: Stage, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "_ALL_GRACE_S", 0.5)
    stage.behaviour = {"localhost": "stubborn"}
    job = stage.job(report)
    async with asyncio.timeout(10):
        async with job:
            assert await job.run_script() == 0
            asyncio.get_running_loop().call_later(0.1, job.interrupt, signal.SIGINT)


async def test_a_command_that_cannot_end_a_daemon_does_not_hold_the_launcher(
    stage: Stage, report: Report, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = ("sh", "-c", 'rm -rf "$0"; exec sleep 1000')
    monkeypatch.setattr(SshConnector, "end_command", lambda self, answer: (*hanging, answer["run_dir"]))
    monkeypatch.setattr(job_module, "_END_COMMAND_TIMEOUT_S", 0.1)
    monkeypatch.setattr(job_module, "_ALL_GRACE_S", 1.0)
    stage.behaviour = {"there": "stubborn"}
    job = stage.job(report, [Host("there")])
    stage.runs("import time; time.sleep(1000)")

    async def interrupt() -> None:
        while "ready in" not in screen.getvalue():
            await asyncio.sleep(0.01)
        job.interrupt(signal.SIGINT)

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(interrupt())
        assert await life(job)


async def test_an_interrupted_launcher_does_not_wait_for_the_archive(
    stage: Stage, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = threading.Event()
    monkeypatch.setattr(job_module, "pack", lambda folder: packed.wait())
    late = threading.Timer(3, packed.set)
    late.start()
    job = stage.job(report, [Host("there")], sync=stage.folder)
    loop = asyncio.get_running_loop()
    loop.call_later(0.1, job.interrupt, signal.SIGTERM)
    with pytest.raises(asyncio.CancelledError):
        await life(job)
    await loop.shutdown_default_executor()
    assert not packed.is_set()
    late.cancel()
    packed.set()


async def test_who_ignores_the_first_interrupt_is_killed_within_five_seconds(stage: Stage, report: Report) -> None:
    stage.behaviour = {"localhost": "stubborn"}
    stage.runs(DEAF)
    job = stage.job(report)
    interrupted = 0.0

    async def interrupt() -> None:
        nonlocal interrupted
        while not (stage.folder / "out").exists():
            await asyncio.sleep(0.01)
        interrupted = time.monotonic()
        job.interrupt(signal.SIGINT)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(interrupt())
        assert await life(job) == 128 + 9
    assert time.monotonic() - interrupted < 9  # five, and what a busy machine needs
    assert processes_of(job.run_id) == []


async def test_a_second_interrupt_ends_everything_at_once(
    stage: Stage, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "_ALL_GRACE_S", 60.0)
    monkeypatch.setattr(job_module, "_SCRIPT_GRACE_S", 60.0)
    stage.behaviour = {"localhost": "stubborn"}
    stage.runs(DEAF)
    job = stage.job(report)
    killed = 0.0

    async def interrupt() -> None:
        nonlocal killed
        while not (stage.folder / "out").exists():
            await asyncio.sleep(0.01)
        job.interrupt(signal.SIGINT)
        await asyncio.sleep(0.05)
        killed = time.monotonic()
        job.kill()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(interrupt())
        await life(job)
    assert time.monotonic() - killed < 2.5
    assert processes_of(job.run_id) == []


async def test_this_machine_by_its_own_name_needs_no_ssh(stage: Stage, report: Report) -> None:
    assert await life(stage.job(report, [Host(socket.gethostname())])) == 0
    assert stage.daemon(0)["config"]["bind"] is None

"""The fake hosts are as separate as real ones, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests._support.fake_hosts import CHECKOUT, FakeHosts, missing
from tests._support.leaks import wait_ended

pytestmark = [pytest.mark.namespaces, pytest.mark.slow]

MakeHosts = Callable[..., FakeHosts]


def test_hosts_reach_each_other_by_ssh_with_strict_host_keys(fake_hosts: MakeHosts) -> None:
    hosts = fake_hosts(2)
    ssh = ["ssh", *hosts.ssh_args, "-o", "StrictHostKeyChecking=yes"]
    for near, far in [(hosts.driver, hosts[0]), (hosts[0], hosts[1]), (hosts[1], hosts[0]), (hosts[1], hosts.driver)]:
        assert near.run([*ssh, far.hostname, "hostname"]).stdout.strip() == far.hostname
        assert near.run([*ssh, far.address, "hostname"]).stdout.strip() == far.hostname


def test_each_host_is_a_machine_of_its_own(fake_hosts: MakeHosts) -> None:
    hosts = fake_hosts(2, names=["north", "south"])
    for question in ["hostname", "cat /etc/machine-id", "cat /proc/sys/kernel/random/boot_id", "ip -o -4 address"]:
        answers = [host.run(["sh", "-c", question]).stdout for host in [hosts.driver, *hosts]]
        assert len(set(answers)) == 3, (question, answers)
    assert [host.run(["hostname"]).stdout for host in hosts] == ["north\n", "south\n"]


def test_power_off_ends_every_process_of_that_host_only(fake_hosts: MakeHosts) -> None:
    hosts = fake_hosts(2)
    sleepers = [host.popen(["setsid", "sleep", "60"], env={"RLINF_RUN_ID": "0badcafe"}) for host in hosts]
    waiting = [host.popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for host in hosts]
    for process in waiting:  # an answer shows that the host runs what it was given
        process.stdin.write(b"x\n")
        process.stdin.flush()
        assert process.stdout.read(1) == b"x"
    hosts[0].kill()
    assert [process.wait(5) for process in (sleepers[0], waiting[0])] == [-signal.SIGKILL] * 2
    assert hosts[0].processes() == []
    assert [process.poll() for process in (sleepers[1], waiting[1])] == [None, None]
    assert hosts[1].run(["true"]).returncode == 0
    hosts[1].kill()
    for process in [*sleepers, *waiting]:
        process.wait(5)
    for process in waiting:
        process.communicate()


def traces() -> dict[str, object]:
    """What fake hosts could leave on the machine."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    named = Path("/run/netns")
    return {
        "links": [line.split(": ")[1] for line in links.splitlines()],
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "named namespaces": sorted(os.listdir(named)) if named.exists() else [],
    }


def test_nothing_is_left_on_the_machine_also_after_a_failure() -> None:
    before = traces()
    hosts = FakeHosts(2)
    started: list[subprocess.Popen[bytes]] = []
    pids: list[int] = []

    def use_and_fail() -> None:
        with hosts:
            everyone = [hosts.driver, *hosts]
            started.extend(host.popen(["setsid", "sleep", "60"]) for host in everyone)
            pids.extend(pid for host in everyone for pid in host.processes())
            assert len(pids) >= len(everyone) * 2
            assert traces()["links"] == before["links"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use_and_fail()
    for process in started:
        process.wait(5)
    assert wait_ended(pids, 5) == []
    assert traces() == before
    assert not hosts.directory.exists()


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_killed_test_process_takes_its_hosts_along() -> None:
    script = (
        "from tests._support.fake_hosts import FakeHosts\n"
        "with FakeHosts(2) as hosts:\n"
        "    hosts[1].popen(['setsid', 'sleep', '60'])\n"
        "    hosts.driver.popen(['setsid', 'sleep', '60'])\n"
        "    print(*(pid for host in [hosts.driver, *hosts] for pid in host.processes()), flush=True)\n"
        "    print(hosts.directory, flush=True)\n"
        "    input()\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as test:
        pids = [int(pid) for pid in test.stdout.readline().split()]
        directory = Path(test.stdout.readline().strip())
        assert len(pids) >= 9
        test.kill()
    assert wait_ended(pids, 5) == []
    for file in directory.iterdir():  # the one thing that only the killed process could have removed
        file.unlink()
    directory.rmdir()

"""Messages between two machines: faults of every kind, each of which leaves the next exchange working."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from tests._support.fake_hosts import CHECKOUT, FakeHosts

pytestmark = [pytest.mark.namespaces, pytest.mark.slow]

SCRIPT = """
import os, signal, sys, time
sys.path.insert(0, {checkout!r})
import torch
from rlinf_async import Cluster, NodePlacementStrategy
from tests._support import exchanges, failing_exchanges
from tests._support.exchanges import Talker

LARGE = 600 << 20

def works(a, group, name):
    echoing = group.do(failing_exchanges.echo_one, "a")
    assert a.do(failing_exchanges.say_and_hear, name, 20 << 20).wait(20) == [20 << 20]
    echoing.wait(5)
    return True

if __name__ == "__main__":
    with Cluster(num_nodes=2) as cluster:
        a, b, c, d = (
            Talker.create_group().launch(cluster, NodePlacementStrategy([node]), name=name).wait_ready()
            for name, node in (("a", 0), ("b", 1), ("c", 1), ("d", 0))
        )
        echoing = b.do(exchanges.echo, "a")
        print("WRONG", a.do(exchanges.ask_for_echoes, "b").wait(30), echoing.wait(5), flush=True)

        sending = b.do(failing_exchanges.send_blank_in_time, "a", LARGE, 0.1)
        receiving = a.do(failing_exchanges.receive_in_time, "b", 0.1)
        late = [sending.wait(5)[0].partition(":")[0], receiving.wait(5)[0].partition(":")[0]]
        print("LATE", late, works(a, b, "b"), flush=True)

        victim = b.do(failing_exchanges.pid).wait()[0]
        b.do(failing_exchanges.send_without_waiting, "a", LARGE).wait()
        receiving = a.do(failing_exchanges.fail_to_receive, "b", 0)
        time.sleep(0.1)
        c.do(failing_exchanges.kill, victim).wait()
        print("DEAD", "killed by SIGKILL" in receiving.wait(3)[0], works(a, c, "c"), flush=True)

        sending = c.do(failing_exchanges.send_without_waiting, "a", LARGE)
        receiving = a.do(failing_exchanges.fail_to_receive, "c", 0)
        sending.wait()
        print("PULL", flush=True)
        print("LOST", receiving.wait(30)[0].partition(":")[0], works(a, d, "d"), flush=True)
"""


def test_a_deadline_a_death_and_a_pulled_cable_in_mid_transfer_leave_the_next_exchange_working(
    fake_hosts: Callable[..., FakeHosts], tmp_path: Path
) -> None:
    hosts = fake_hosts(2)
    script, nodes = tmp_path / "exchange.py", tmp_path / "nodes.txt"
    script.write_text(dedent(SCRIPT.format(checkout=str(CHECKOUT))))
    nodes.write_text("node0\nnode1\n")
    command = [sys.executable, "-m", "rlinf_launcher", "--ssh-args", " ".join(hosts.ssh_args), "--hosts", nodes]
    process = hosts.driver.popen(
        [*command, "--sync", str(tmp_path), "--", script],
        cwd=CHECKOUT,
        env={"RLINF_LEASE_S": "3"},
        stdout=-1,
        stderr=-1,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith("PULL"):
            hosts[1].link_down()
            break
    rest, complaints = process.communicate(timeout=60)
    said += rest
    assert "WRONG [[]] [None]" in said, said + complaints
    assert "LATE ['DeadlineExceeded', 'DeadlineExceeded'] True" in said, said + complaints
    assert "DEAD True True" in said, said + complaints
    assert "LOST NodeLost True" in said, said + complaints

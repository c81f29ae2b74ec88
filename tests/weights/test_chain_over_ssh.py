"""Chains of hosts over real ssh and their own networks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests._support.fake_hosts import CHECKOUT, FakeHosts

pytestmark = [pytest.mark.namespaces, pytest.mark.slow]


def test_three_machines_cost_the_senders_network_one_and_if_two_are_parted_nobody_lacks_a_version(
    fake_hosts: Callable[..., FakeHosts], tmp_path: Path
) -> None:
    hosts = fake_hosts(4)
    nodes, word = tmp_path / "nodes.txt", tmp_path / "word"
    nodes.write_text("node0\nnode1 slots=2\nnode2\nnode3\n")
    os.mkfifo(word)
    launch = [sys.executable, "-m", "rlinf_launcher", "--ssh-args", " ".join(hosts.ssh_args), "--hosts", str(nodes)]
    script = [str(CHECKOUT / "tests" / "weights" / "along_hosts.py"), str(word)]
    process = hosts.driver.popen(
        [*launch, "-e", f"PYTHONPATH={CHECKOUT}", "--", *script], cwd=CHECKOUT, stdout=-1, stderr=-2, text=True
    )
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith("PART"):
            for number in (1, 2):  # isolated ports of a switch reach all others but each other
                hosts.driver.run(["ip", "link", "set", f"port{number}", "type", "bridge_slave", "isolated", "on"])
            word.write_text("parted")
            break
    rest, _ = process.communicate(timeout=120)
    said += rest
    assert "DONE" in said, said
    sent = [float(line.split()[1]) for line in said.splitlines() if line.startswith("SENT")]
    assert all(1.0 <= times < 1.2 for times in sent[:3]), said
    assert 1.9 < sent[3] < 2.1, said  # the one that cannot be reached has it from the sender, and passes it on
    assert all(times < 1.2 for times in sent[4:]), said  # the two are not neighbours any more
    assert len(sent) == 6, said
    assert said.count("are kept apart") == 1, said

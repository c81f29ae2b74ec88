"""Every scheme between two hosts over real ssh."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests._support.fake_hosts import CHECKOUT, FakeHosts
from tests.weights.contract.claims import APART, CALLS
from tests.weights.contract.suite import claims_apart, ways_of

pytestmark = [pytest.mark.namespaces, pytest.mark.slow]


def test_every_scheme_keeps_its_promises_to_another_host(fake_hosts: Callable[..., FakeHosts], tmp_path: Path) -> None:
    """One job goes through all of them.  The others are for processes that have pipes to each other."""
    hosts = fake_hosts(2)
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("node0 slots=4\nnode1 slots=4\n")
    launch = [sys.executable, "-m", "rlinf_launcher", "--ssh-args", " ".join(hosts.ssh_args), "--hosts", str(nodes)]
    script = [str(CHECKOUT / "tests" / "weights" / "across_hosts.py"), hosts[0].address]
    done = hosts.driver.run(
        [*launch, "-e", f"PYTHONPATH={CHECKOUT}", "--", *script], cwd=CHECKOUT, check=True, timeout=300
    )
    said = done.stdout.splitlines()
    kept = [line for line in said if line.startswith("KEPT")]
    assert kept == [f"KEPT {way} {len(claims_apart(way))}" for way in ways_of(APART)], done.stdout + done.stderr
    called = [line for line in said if line.startswith("CALLED")]
    assert called == [f"CALLED {kind} {form}" for kind in CALLS for form in ("state_dict", "tensordict")], (
        done.stdout + done.stderr
    )

"""Every scheme that reaches another machine, between two hosts over real ssh."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.namespaces import CHECKOUT, FakeHosts

pytestmark = pytest.mark.namespaces


def test_every_scheme_brings_whole_versions_to_another_host(
    fake_hosts: Callable[..., FakeHosts], tmp_path: Path
) -> None:
    """One job goes through all of them.  The others are for processes that have pipes to each other."""
    hosts = fake_hosts(2)
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("node0 slots=4\nnode1 slots=4\n")
    launch = [sys.executable, "-m", "launcher", "--ssh-args", " ".join(hosts.ssh_args), "--hosts", str(nodes)]
    script = [str(CHECKOUT / "tests" / "weights" / "across_hosts.py"), hosts[0].address]
    done = hosts.driver.run(
        [*launch, "-e", f"PYTHONPATH={CHECKOUT}", "--", *script], cwd=CHECKOUT, check=True, timeout=300
    )
    whole = sorted(line.removeprefix("WHOLE ") for line in done.stdout.splitlines() if line.startswith("WHOLE"))
    linked = [
        f"{kind} {apply} {form}"
        for kind in ("workers", "distributed")
        for apply in ("copy", "map")
        for form in ("state_dict", "tensordict")
    ]
    called = [
        f"{kind} copy {form}" for kind in ("worker", "rpc", "module transform") for form in ("state_dict", "tensordict")
    ]
    assert whole == sorted(linked + called), done.stdout + done.stderr

"""Daemons that are stopped (SIGSTOP) for longer than their lease: lost once, and ended by their guardian."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from rlinf_async import Cluster, NodeLost, NodePlacementStrategy
from tests._support.workers import Plain

pytestmark = pytest.mark.slow

LEASE_S = 3.0


def test_a_daemon_that_is_stopped_for_longer_than_its_lease_ends_with_its_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RLINF_LEASE_S", str(LEASE_S))
    with Cluster(local_nodes=2, log_to_driver=False) as cluster:
        group = Plain.create_group().launch(cluster, NodePlacementStrategy([0, 1]), name="plain").wait_ready()
        pids = group.pid().wait()
        daemon = psutil.Process(cluster.status(1)["pid"])
        handle = group.sleep(60)
        daemon.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(NodeLost, match=f"no sign of life for {LEASE_S * 1.1:.1f} s"):
            handle.wait()
        assert LEASE_S - 0.5 < time.monotonic() - began < LEASE_S * 1.1 + 2.5
        assert group[0].hello().wait() == [0]  # of the other node nothing is lost
        # Before a supervisor would start its ranks elsewhere.
        _, alive = psutil.wait_procs([daemon, psutil.Process(pids[1])], timeout=4)
        assert not alive, alive
        with pytest.raises(NodeLost):
            group[1].hello().wait()
        os.kill(pids[0], 0)

"""Messages whose sender or receiver dies, leaves, or is late."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlinf_async import Cluster, NodePlacementStrategy
from tests._support import failing_exchanges
from tests._support.exchanges import Talker, everybody, segments

pytestmark = pytest.mark.shared_cluster
LOCAL_NODES = 2


class Groups:
    """Launches groups of talkers, by name, and closes what is left of them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._groups: list[Any] = []

    def launch(self, name: str, *nodes: int) -> Any:
        placement = NodePlacementStrategy(list(nodes))
        self._groups.append(Talker.create_group().launch(self._cluster, name=name, placement=placement))
        return self._groups[-1].wait_ready()

    def close(self) -> None:
        for group in self._groups:
            group.close()


@pytest.fixture
def groups(cluster: Cluster) -> Iterator[Groups]:
    groups = Groups(cluster)
    yield groups
    groups.close()


def until(condition: Callable[[], bool], seconds: float) -> float:
    """How long it took."""
    since = time.monotonic()
    while not condition():
        assert time.monotonic() - since < seconds
        os.sched_yield()
    return time.monotonic() - since


@pytest.mark.parametrize("node", [0, 1])
def test_a_hundred_pending_operations_fail_within_2_s_of_the_peers_death_and_others_go_on(
    groups: Groups, node: int
) -> None:
    a, b, c = (groups.launch(name, where) for name, where in (("a", 0), ("b", node), ("c", node)))
    waiting = a.ado(failing_exchanges.wait_for_the_dead, "b", 0)
    until(lambda: a.ado(failing_exchanges.is_waiting).wait()[0], 5)
    victim = b.do(failing_exchanges.pid).wait()[0]
    os.kill(victim, signal.SIGKILL)
    killed = time.time()
    ((count, errors, failed),) = waiting.wait()
    assert count == 100
    assert errors == [f"WorkerDied: rank 0 of group 'b' on local-{node} (pid {victim}) was killed by SIGKILL"]
    assert failed - killed < 2
    echoing = c.do(failing_exchanges.echo_one, "a")
    assert a.do(failing_exchanges.say_and_hear, "c", 3 << 20).wait() == [3 << 20]
    echoing.wait()
    assert "killed by SIGKILL" in a.do(failing_exchanges.fail_to_receive, "b", 0).wait()[0]


@pytest.mark.slow
def test_shared_memory_is_free_again_when_sender_and_receiver_are_killed(groups: Groups) -> None:
    a, b = (groups.launch(name, 0, 0) for name in "ab")
    pids = a.do(failing_exchanges.pid).wait() + b.do(failing_exchanges.pid).wait()
    a.do(failing_exchanges.send_without_waiting, "b", 1 << 30).wait()
    assert b.do(failing_exchanges.receive_and_keep, "a").wait() == [1 << 30] * 2
    held = segments(pids)
    assert sum(held.values()) > 2000 << 20
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    # A second where nothing else runs.  What nobody holds is free; the kernel's count would show what others do, too.
    assert until(lambda: not held.keys() & segments(everybody()).keys(), 5) < 5


def test_everybody_who_waits_in_a_broadcast_learns_of_the_death_of_a_member(groups: Groups) -> None:
    a, b = groups.launch("a", 0), groups.launch("b", 0, 1, 1)
    members = [("a", 0), ("b", [0, 1, 2])]
    waiting = b.execute_on(0, 1).do(failing_exchanges.fail_to_broadcast, members)
    os.kill(b.execute_on(2).do(failing_exchanges.pid).wait()[0], signal.SIGKILL)
    for text in waiting.wait():
        assert text.startswith("WorkerDied: rank 2 of group 'b'")
    # The source hears of it at its first word to them, which they may be sent nevertheless.
    until(lambda: a.do(failing_exchanges.fail_to_broadcast, members).wait()[0].startswith("WorkerDied: rank 2"), 2)

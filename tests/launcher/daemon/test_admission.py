"""Connections without a HELLO: bounded in number, each with a deadline, and without leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rlinf_async import Cluster, settings
from rlinf_async._core import frames
from rlinf_async._wire.local_socket import connect
from rlinf_launcher.daemon.admission import HelloAdmission
from rlinf_launcher.daemon.endpoint import Endpoint
from tests._support.unauthenticated_clients import hello, node_directory, read_to_the_end
from tests._support.until import until

pytestmark = pytest.mark.shared_cluster

MOST = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.UNAUTHENTICATED_CONNECTIONS.variable, str(MOST))
        patch.setenv(settings.GREETING_TIMEOUT_S.variable, "1")
        with Cluster(num_nodes=1, log_to_driver=False) as cluster:
            yield cluster


@contextlib.contextmanager
def knocking(cluster: Cluster, count: int, say: bytes = b"") -> Iterator[list[socket.socket]]:
    """Context manager: connections that send that, and hang up at the end of the block."""
    path = os.path.join(node_directory(cluster), "node.sock")
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            sockets.append(stack.enter_context(connect(path)))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sockets[-1].sendall(say)
        yield sockets


def is_heard(sock: socket.socket) -> bool:
    """True if the daemon greets back; its other messages are not awaited."""
    sock.settimeout(10)
    (welcome,) = frames.FrameReader().feed(sock.recv(65536))
    return welcome[0] == frames.HELLO


def files_of(cluster: Cluster) -> int:
    return len(os.listdir(f"/proc/{cluster.status()['pid']}/fd"))


def resident(cluster: Cluster) -> int:
    """Return the resident bytes of the daemon."""
    pages = int(Path(f"/proc/{cluster.status()['pid']}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_the_oldest_silent_connections_are_evicted_first(cluster: Cluster) -> None:
    files = files_of(cluster)
    with knocking(cluster, 5 * MOST) as silent:
        for sock in silent[:-MOST]:
            assert read_to_the_end(sock) == b""
        assert files_of(cluster) == files + MOST
        assert cluster.status()["endpoints"] == 1
    logs = list(Path(cluster.log_dir).glob("daemon*"))
    until(lambda: any(f" {4 * MOST} connections that did not say hello were ended" in log.read_text() for log in logs))


def test_a_connection_without_hello_counts_as_silent(cluster: Cluster) -> None:
    files = files_of(cluster)
    with knocking(cluster, 5 * MOST, b"\x97") as chatting:  # how a frame begins
        for sock in chatting[:-MOST]:
            assert read_to_the_end(sock) == b""
        assert files_of(cluster) <= files + 2 * MOST  # a socket and a pidfd each
        assert cluster.status()["endpoints"] <= MOST + 1


def test_a_silent_connection_has_a_deadline(cluster: Cluster) -> None:
    with knocking(cluster, 1) as (silent,):
        since = time.monotonic()
        assert read_to_the_end(silent) == b""
        assert 0.5 < time.monotonic() - since < 8


def test_whoever_says_hello_stays_however_many_are_silent(cluster: Cluster) -> None:
    with (
        knocking(cluster, 3 * MOST, hello()) as known,
        knocking(cluster, 5 * MOST),
        knocking(cluster, 1, hello()) as (late,),
    ):
        assert all(is_heard(sock) for sock in (*known, late))
    assert cluster.status()["node"] == 0


def test_a_second_hello_changes_nothing(cluster: Cluster) -> None:
    ask = frames.pack((frames.REQUEST, 0, 0, 0, 1, "NodeStatus", {}))
    with knocking(cluster, 1, hello() + hello(role="worker", address="x:0") + ask) as (twice,):
        twice.settimeout(10)
        reader, heard = frames.FrameReader(), []
        while len(heard) < 2:
            heard += [frame[0] for frame in reader.feed(twice.recv(65536))]
        assert heard == [frames.HELLO, frames.ANSWER]


def test_a_second_thousand_of_silent_connections_adds_no_memory(cluster: Cluster) -> None:
    def knock_often() -> int:
        for _ in range(10):
            with knocking(cluster, 100):
                pass
        return resident(cluster)

    first = knock_often()
    second = knock_often()
    assert second - first < 2 << 20
    assert cluster.status()["endpoints"] == 1


def test_a_daemon_without_descriptors_does_not_spin_and_goes_on(cluster: Cluster) -> None:
    """A listener that is readable but fails to accept would keep the loop busy."""
    pid = cluster.status()["pid"]
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with knocking(cluster, 1, hello()) as (known,):
        assert is_heard(known)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            with knocking(cluster, 1, hello()) as (late,):
                before = cpu_seconds(pid)
                late.settimeout(0.5)
                with pytest.raises(TimeoutError):
                    late.recv(1)
                assert cpu_seconds(pid) - before < 0.25
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
                assert is_heard(late)
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("said", [b"", b"\x97"], ids=["nothing", "something"])
def test_a_connection_that_ends_here_is_not_watched_any_more(said: bytes) -> None:
    """The next connection reuses the descriptor, which the loop must no longer watch."""

    def refuse(sock: socket.socket) -> Endpoint:
        raise OSError("no descriptor is left")

    loop = asyncio.new_event_loop()
    admission = HelloAdmission(loop, refuse, lambda endpoint: None)
    near, far = socket.socketpair()
    fd = near.fileno()
    admission.add(near)
    far.sendall(said)
    far.close()
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    assert near.fileno() == -1
    assert not loop.remove_reader(fd)
    loop.close()


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)

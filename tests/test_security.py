"""Strangers get nowhere: no byte of theirs is unpickled, no secret lies about, and no frame lies about its sender."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pickle
import random
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rlinf_async import Cluster, LaunchError, NodePlacementStrategy, VersionMismatch, WorkerDied
from rlinf_async.core import frames
from rlinf_async.wire import credentials
from rlinf_async.wire.credentials import NodeCredentials, RunAuthority
from rlinf_async.wire.unix import connect
from tests import leaks
from tests.namespaces import CHECKOUT
from tests.orphans import Broken
from tests.workers import Plain, SeedWorker

pytestmark = pytest.mark.shared_cluster

BOTH = NodePlacementStrategy([0, 1])
NOBODY = 65534


class Canary:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> Any:
        return open, (self._path, "w")


@dataclass
class Run:
    """A run that is alive while strangers knock."""

    run: str
    secrets: list[str]
    ask: Callable[[], None]
    """Fails unless everything still works."""


# ---- the run, in this process


@pytest.fixture(scope="module")
def issued() -> Iterator[list[NodeCredentials]]:
    """Every node's credentials, as they are made."""
    made: list[NodeCredentials] = []
    issue = RunAuthority.issue

    def recorded(self: RunAuthority, node: int) -> NodeCredentials:
        made.append(issue(self, node))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunAuthority, "issue", recorded)
        yield made


@pytest.fixture(scope="module")
def cluster(issued: list[NodeCredentials]) -> Iterator[Cluster]:
    with Cluster(local_nodes=2, log_to_driver=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def group(cluster: Cluster) -> Iterator[Any]:
    group = Plain.create_group().launch(cluster, placement=BOTH, name="plain")
    yield group.wait_ready()
    group.close()


@pytest.fixture(scope="module")
def torch_group(cluster: Cluster) -> Iterator[Any]:
    group = SeedWorker.create_group().launch(cluster, placement=BOTH, name="torch")
    group.initialize().wait()
    yield group
    group.close()


@pytest.fixture(scope="module")
def alive(cluster: Cluster, group: Any, torch_group: Any, issued: list[NodeCredentials]) -> Run:
    def ask() -> None:
        assert group.hello().wait(timeout=10) == [0, 1]
        assert [float(sum_) for sum_ in torch_group.initialize().wait(timeout=10)] == [2.0, 2.0]
        assert [cluster.status(node)["node"] for node in (0, 1)] == [0, 1]

    secrets = [line.marker for line in cluster._lifelines]
    return Run(cluster.run_id, secrets + key_lines(issued), ask)


def key_lines(issued: Sequence[NodeCredentials]) -> list[str]:
    """What nobody may read, in pieces that survive being wrapped: the lines of the private keys."""
    return [line for one in issued for line in one.key.splitlines() if line and "-----" not in line]


# ---- who listens


@dataclass(frozen=True)
class Listener:
    """A listening socket: of TCP an address and a port, of UNIX a path."""

    pid: int
    address: str
    port: int | None = None

    @property
    def is_tcp(self) -> bool:
        return self.port is not None


def listeners(pids: Sequence[int]) -> list[Listener]:
    """Every listening socket of these processes, each once."""
    found = {}
    for pid in pids:
        open_files = set()
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                open_files.add(os.readlink(f"/proc/{pid}/fd/{number}"))
        for inode, listener in listening_sockets(pid):
            if f"socket:[{inode}]" in open_files:
                found[inode] = listener
    return list(found.values())


def listening_sockets(pid: int) -> Iterator[tuple[str, Listener]]:
    """(inode, socket) for every listening socket of a process's network."""
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                address, port = fields[1].split(":")
                words = [bytes.fromhex(address[start : start + 8])[::-1] for start in range(0, len(address), 8)]
                yield fields[9], Listener(pid, str(ipaddress.ip_address(b"".join(words))), int(port, 16))
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if int(fields[3], 16) & 0x10000:
            yield fields[6], Listener(pid, fields[7] if len(fields) > 7 else "")


def listeners_of(run: str) -> list[Listener]:
    return listeners(leaks.processes_of_run(run))


def look_at_the_listeners(run: str) -> list[Listener]:
    """All of the run; none of TCP on every interface, none of UNIX where others could come by."""
    found = listeners_of(run)
    for listener in found:
        if listener.is_tcp:
            assert not ipaddress.ip_address(listener.address).is_unspecified, listener
        else:
            path = Path(listener.address)
            assert path.is_absolute(), f"{listener} has an abstract name, which has no owner"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert path.parent.stat().st_uid == os.getuid()
    return found


def test_a_listener_on_every_interface_would_be_seen() -> None:
    with socket.create_server(("", 0)) as everywhere, socket.create_server(("::1", 0), family=socket.AF_INET6) as one:
        found = [(listener.address, listener.port) for listener in listeners([os.getpid()])]
        assert ("0.0.0.0", everywhere.getsockname()[1]) in found
        assert ("::1", one.getsockname()[1]) in found


# ---- strangers at the door


def knocks(canary: bytes) -> dict[str, tuple[bytes, NodeCredentials | None | bool]]:
    """What a stranger sends, and as whom: without TLS (False), without a certificate (None), with one of its own."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
    call = (frames.CALL, 0, 0, [[node, [1, 0, 2, 1, 3, 2]] for node in (0, 1)], 1, "hello", 0, canary)
    hello = (frames.HELLO, 0, 0, {"role": "driver", "protocol": frames.PROTOCOL})
    noise = random.Random(5).randbytes(4096)
    own = RunAuthority("0badcafe").issue(0)
    return {
        "noise": (noise, False),
        "HTTP/2": (preface + canary, False),
        "pickle": (canary, False),
        "frames": (frames.pack(hello) + frames.pack(call), False),
        "TLS without a certificate": (preface + canary, None),
        "TLS with a certificate of its own": (preface + canary, own),
    }


def knock(address: str, port: int, payload: bytes, identity: NodeCredentials | None | bool) -> bytes:
    """What is answered, within half a second; of TLS what is inside."""
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1) as plain:
        plain.settimeout(0.5)
        if identity is False:
            return said_by(plain, payload)
        with contextlib.closing(tls_context(identity).wrap_socket(plain)) as secure:
            return said_by(secure, payload)
    return b""


def said_by(sock: socket.socket, payload: bytes) -> bytes:
    sock.sendall(payload)
    answer = b""
    with contextlib.suppress(OSError):
        while data := sock.recv(65536):
            answer += data
    return answer


def tls_context(identity: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if identity is not None:
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(f"{identity.cert}\n{identity.key}")
            file.flush()
            context.load_cert_chain(file.name)
    return context


SETTINGS = 4
"""The type of the HTTP/2 frame that a server begins with."""


def is_http2(answer: bytes) -> bool:
    return len(answer) > 9 and answer[3] == SETTINGS


def test_the_canary_sings_where_it_is_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Canary(tmp_path / "canary"))).close()
    assert (tmp_path / "canary").exists()


def test_a_node_is_let_in_by_the_same_door(alive: Run, issued: list[NodeCredentials]) -> None:
    """So the strangers below are turned away for being strangers."""
    answers = [
        knock(listener.address, listener.port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", issued[0])
        for listener in listeners_of(alive.run)
        if listener.port is not None and psutil.Process(listener.pid).cmdline()[-1] == "launcher.daemon"
    ]
    assert [is_http2(answer) for answer in answers] .count(True) == 2


def turn_strangers_away(alive: Run, folder: Path) -> None:
    canary = folder / "canary"
    found = look_at_the_listeners(alive.run)
    assert len([listener for listener in found if listener.is_tcp]) >= 4  # two daemons, a store, a pair of gloo's
    assert len([listener for listener in found if not listener.is_tcp]) == 2
    for name, (payload, identity) in knocks(pickle.dumps(Canary(canary))).items():
        for listener in found:
            if listener.port is not None:
                answer = knock(listener.address, listener.port, payload, identity)
                assert not is_http2(answer), f"{name} was let in at {listener}"
        alive.ask()
        assert not canary.exists(), name
    assert {pid_and_place(one) for one in look_at_the_listeners(alive.run)} == {pid_and_place(one) for one in found}


def pid_and_place(listener: Listener) -> tuple[str, int | None]:
    return listener.address, listener.port


def test_strangers_get_nowhere_at_a_cluster_of_this_process(alive: Run, tmp_path: Path) -> None:
    turn_strangers_away(alive, tmp_path)

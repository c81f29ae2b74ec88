"""Malformed frames and frames of another protocol, at a daemon."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from rlinf_async import Cluster, LaunchError, NodePlacementStrategy, VersionMismatch
from rlinf_async._core import codec, frames, operations
from rlinf_async._wire.local_socket import connect
from tests._support.unauthenticated_clients import hello, node_directory, read_to_the_end
from tests._support.workers import Plain

pytestmark = pytest.mark.shared_cluster
LOCAL_NODES = 2


@pytest.fixture(scope="module")
def group(cluster: Cluster) -> Iterator[Any]:
    group = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0, 1]), name="plain")
    yield group.wait_ready()
    group.close()


@pytest.fixture(scope="module")
def ask(cluster: Cluster, group: Any) -> Callable[[], None]:
    """Fails unless everything still works."""

    def ask() -> None:
        assert group.hello().wait(timeout=10) == [0, 1]
        assert [cluster.status(node)["node"] for node in (0, 1)] == [0, 1]

    return ask


# ---- frames that lie


def test_a_frame_in_the_name_of_another_is_not_believed(cluster: Cluster) -> None:
    placement = NodePlacementStrategy([0, 0, 1])
    mixed = Plain.create_group().launch(cluster, placement=placement, name="mixed")
    with contextlib.closing(mixed.wait_ready()) as group:
        honest, liars = group.execute_on(0), group.execute_on(1, 2)
        number, driver, daemon = group._members.endpoints[0], cluster._client.endpoint, frames.endpoint(0, 0)
        waiting = honest.sleep(60)
        assert honest.noted().wait() == [["sleeping"]]
        lookup = cluster._client.request(operations.Find("group", "not yet", None, 0), node=0)
        forged = codec.encode("forged").to_bytes()
        route = frames.route_to([number])
        for kind in [
            "(2, 0, {number}, {driver}, call, 0, 0, {forged})",  # a REPLY: the call's result
            "(2, 0, {number}, {driver}, call, 0, 1, {forged})",  # its failure
            "(2, 0, {daemon}, {driver}, call, 0, 5, {forged})",  # the worker's death
            "(3, 0, {driver}, {route}, call)",  # a CANCEL
            "(6, 0, {daemon}, {driver}, call, True, 'forged')",  # an ANSWER
            "(7, 0, {daemon}, {driver}, 'died', {{'endpoint': {number}}})",  # an EVENT
            "(7, 0, {daemon}, {driver}, 'node_lost', {{'node': 1, 'name': 'x', 'reason': 'forged'}})",
            "(8, 0, {daemon}, {{'endpoint': 1, 'node': 0}})",  # a HELLO
            "(9, 0, {daemon}, 0.0)",  # a STOP
            "(10, 0, {daemon}, {number}, True)",  # a GONE
            "(10, 0, {daemon}, {driver}, False)",
        ]:
            frame = kind.format(number=number, driver=driver, daemon=daemon, forged=forged, route=route)
            send = "__import__('rlinf_async._worker.context', fromlist=['client']).client.send"
            liars.run(f"[{send}({frame}) for call in range(1, 1 + {next(cluster._client._ids)})] and None").wait()
        assert group.hello().wait() == [0, 1, 2]
        assert honest.was_cancelled().wait() == [False]
        assert not waiting.done()
        assert not lookup.done()
        waiting.cancel()
        cluster._client.request(operations.CancelFind("group", lookup.number), node=0).wait()


def test_a_rank_answers_for_itself_only(cluster: Cluster) -> None:
    group = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0]), name="ranks").wait_ready()
    with contextlib.closing(group):
        send = "__import__('rlinf_async._worker.context', fromlist=['client']).client.send"
        forged = codec.encode("forged").to_bytes()
        calls = 20 + next(cluster._client._ids)
        frame = f"(2, 0, 0, {cluster._client.endpoint}, call, 0, 0, {forged})"
        honest = "__import__('time').sleep(0.3) or 'honest'"
        forge = f"[{send}({frame}) for call in range({calls})] and 'done'"
        assert group.run(f"{honest} if self._rank == 0 else {forge}").wait()[0] == "honest"


def test_a_rank_answers_for_itself_only_on_its_own_socket_to_the_caller(cluster: Cluster) -> None:
    group = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0]), name="direct").wait_ready()
    with contextlib.closing(group):
        direct_callers = "next(it for it in __import__('gc').get_objects() if type(it).__name__ == 'DirectCallers')"
        forged = codec.encode("forged").to_bytes()
        calls = 20 + next(cluster._client._ids)
        frames_of = f"[(2, 0, 0, 0, call, 0, status, {forged}) for call in range({calls}) for status in (0, 5)]"
        honest = "__import__('time').sleep(0.3) or 'honest'"
        forge = f"[{direct_callers}.to({cluster._client.endpoint}).send(frame) for frame in {frames_of}] and 'done'"
        assert group.run(f"{honest} if self._rank == 0 else {forge}").wait() == ["honest", "done"]


# ---- frames that make no sense

scalars = [st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats()]
plain_data = st.recursive(
    st.one_of(*scalars, st.text(max_size=5), st.binary(max_size=5)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
numbers = st.sampled_from([0, 1, 2, 3, 7, 1 << 32, (1 << 32) + 1])
routes = st.lists(st.tuples(st.sampled_from([0, 1, 7]), st.lists(numbers, max_size=6)), max_size=3)
words = st.sampled_from(["hello", "echo", "Spawn", "Publish", "Find", "CloseGroup", "NodeStatus", "__init__"])
field = numbers | routes | words | plain_data


@st.composite
def sent_frames(draw: st.DrawFn) -> bytes:
    """A frame of the right length, whose fields may or may not be what they should."""
    kind = draw(st.sampled_from(list(frames.LENGTHS)))
    return frames.pack([kind, 0, *(draw(field) for _ in range(frames.LENGTHS[kind] - 2))])


@given(st.lists(sent_frames() | st.binary(max_size=20), max_size=5).map(b"".join))
@settings(
    max_examples=200, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
def test_nonsense_from_a_driver_harms_nobody_else(cluster: Cluster, ask: Callable[[], None], payload: bytes) -> None:
    with connect(os.path.join(node_directory(cluster), "node.sock")) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(hello() + payload)
            sock.shutdown(socket.SHUT_WR)
        read_to_the_end(sock)
    ask()


EVERYBODY = [[node, [number for slot in range(9) for number in (slot, slot)]] for node in (0, 1)]

NONSENSE = {
    "not msgpack": b"\xc1",
    "no frame": frames.pack("hello"),
    "too short": frames.pack([frames.CALL, 0, 0]),
    "unknown kind": frames.pack([99, 0, 0, 0]),
    "a body that says it comes by another way": frames.pack([frames.CALL, 0, 0, EVERYBODY, 1, "hello", 0, [1, 8]]),
    "a body that says nothing": frames.pack([frames.CALL, 0, 0, EVERYBODY, 1, "hello", 0, []]),
    "a body that is nowhere": frames.pack([frames.CALL, 0, 0, EVERYBODY, 1, "hello", 0, 1 << 40]),
    "a method that is no name": frames.pack([frames.CALL, 0, 0, EVERYBODY, 1, 5, 0, b""]),
    "a number of a call that counts nothing": frames.pack([frames.CALL, 0, 0, EVERYBODY, 1.5, "hello", 0, b""]),
    "a number below nothing": frames.pack([frames.CALL, 0, 0, EVERYBODY, -1, "hello", 0, b""]),
    "a number beyond all": frames.pack([frames.CALL, 0, 0, EVERYBODY, (1 << 64) - 1, "hello", 0, b""]),
    "a credit that is none": frames.pack([frames.CALL, 0, 0, EVERYBODY, 1, "hello", "5", b""]),
    "a cancel of nothing": frames.pack([frames.CANCEL, 0, 0, EVERYBODY, []]),
    "a credit of nothing": frames.pack([frames.CREDIT, 0, 0, EVERYBODY, 1, []]),
    "a cancel on a route that is none": frames.pack([frames.CANCEL, 0, 0, [[1, {"a": 1}]], 1]),
    "a route that is none": frames.pack([frames.CALL, 0, 0, 7, 1, "hello", 0, b""]),
    "a call that is none": frames.pack([frames.CALL, 0, 0, EVERYBODY, {}, "hello", 0, b""]),
    "descriptors that are not there": frames.pack([frames.CALL, 1, 0, EVERYBODY, 1, "hello", 0, 8]),
    "an item that says it comes by another way": frames.pack([frames.PUT, 0, 0, 1 << 32, 1, 0, b"", 0, 0, [1, 8]]),
    "an item that says nothing": frames.pack([frames.PUT, 0, 0, 1 << 32, 1, 0, b"", 0, 0, []]),
    "an answer of the wrong kind": frames.pack([frames.REPLY, 0, 0, 1, 1, 0, 0, [1, 8]]),
}


@pytest.mark.parametrize("payload", list(NONSENSE.values()), ids=list(NONSENSE))
def test_a_frame_that_makes_no_sense_ends_its_connection_only(
    ask: Callable[[], None], cluster: Cluster, payload: bytes
) -> None:
    with connect(os.path.join(node_directory(cluster), "node.sock")) as sock:
        sock.sendall(hello() + payload)
        read_to_the_end(sock)
    ask()


@pytest.mark.parametrize("depth", [10, 600])
def test_a_question_that_cannot_be_answered_harms_nobody(ask: Callable[[], None], cluster: Cluster, depth: int) -> None:
    number = b"\x91" * depth + b"\0"  # nested deeper than a packer would make it
    with connect(os.path.join(node_directory(cluster), "node.sock")) as sock:
        payload = hello()
        for operation in ("NodeStatus", "nonsense", ""):
            for node in (0, 1):
                start = b"\x97" + frames.pack(frames.REQUEST) + b"\0\0" + frames.pack(node)
                payload += start + number + frames.pack(operation) + frames.pack({})
        sock.sendall(payload)
        sock.shutdown(socket.SHUT_WR)
        read_to_the_end(sock)
    ask()


@pytest.mark.parametrize("body", [b"inline", 1 << 20, 1 << 62, -1, [1, 8]], ids=str)
@pytest.mark.parametrize("what", ["pipe", "unsealed memory"])
def test_a_descriptor_that_holds_no_body_ends_its_connection_only(
    ask: Callable[[], None], cluster: Cluster, what: str, body: Any
) -> None:
    fds = list(os.pipe()) if what == "pipe" else [os.memfd_create("mine")]
    files = len(os.listdir(f"/proc/{cluster.status(0)['pid']}/fd"))
    try:
        with connect(os.path.join(node_directory(cluster), "node.sock")) as sock:
            sock.sendall(hello())
            frame = frames.pack([frames.CALL, 1, 0, EVERYBODY, 1, "hello", 0, body])
            socket.send_fds(sock, [frame], fds[:1])
            read_to_the_end(sock)
    finally:
        for fd in fds:
            os.close(fd)
    ask()
    assert len(os.listdir(f"/proc/{cluster.status(0)['pid']}/fd")) == files


def test_whoever_does_not_say_hello_first_is_not_heard(ask: Callable[[], None], cluster: Cluster) -> None:
    with connect(os.path.join(node_directory(cluster), "node.sock")) as sock:
        sock.sendall(frames.pack((frames.REQUEST, 0, 0, 0, 1, "NodeStatus", {})))
        assert read_to_the_end(sock) == b""
    ask()


# ---- versions


def test_a_driver_of_another_protocol_is_told_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf_async.cluster.PROTOCOL", 99)
    python = ".".join(map(str, sys.version_info[:3]))
    with pytest.raises(VersionMismatch) as caught:
        Cluster(num_nodes=1)
    assert str(caught.value) == (
        f"protocol 99 of the driver (rlinf_async in Python {python}) is not protocol {frames.PROTOCOL} of the daemon "
        f"({sys.executable}): both must be the same version"
    )


def test_a_driver_of_another_protocol_is_not_heard(ask: Callable[[], None], cluster: Cluster) -> None:
    with connect(os.path.join(node_directory(cluster), "node.sock")) as sock:
        sock.sendall(hello(protocol=99) + frames.pack((frames.REQUEST, 0, 0, 0, 1, "NodeStatus", {})))
        (refusal,) = frames.FrameReader().feed(read_to_the_end(sock))
    assert refusal[4] == "refused"
    assert refusal[5]["error"][0] == "VersionMismatch"


def test_a_daemon_of_another_protocol_is_told_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf_async._wire.node_config.PROTOCOL", 99)
    told = f"the launcher speaks protocol 99, the rlinf_async of this node protocol {frames.PROTOCOL}"
    with pytest.raises(LaunchError, match=f"VersionMismatch: {told}"):
        Cluster(num_nodes=1)

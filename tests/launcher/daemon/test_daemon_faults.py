"""Faults around a daemon, which must neither end nor block it, nor leave anything behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlinf_async import Cluster, LaunchError, NodeLost, NodePlacementStrategy, WorkerDied, settings
from rlinf_async._core import frames, operations
from rlinf_async._core.frames import Status
from rlinf_async._core.pool import Pool
from rlinf_async._core.segment import close_fds, write_segment
from rlinf_launcher.daemon import worker_output
from rlinf_launcher.daemon.endpoint import MAX_QUEUED_BYTES, Endpoint
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.node import _logged
from rlinf_launcher.daemon.node_link import _HEADER, NodeLink
from rlinf_launcher.daemon.router import Router
from rlinf_launcher.daemon.service import DaemonService
from rlinf_launcher.daemon.templates import Template, Templates
from rlinf_launcher.daemon.worker_groups import LocalGroup, Site
from rlinf_launcher.daemon.worker_output import WorkerOutput
from tests._support.workers import Parent, Plain

ONE = NodePlacementStrategy([0])


class Link:
    """A link to another node that takes control frames and loses its bulk stream."""

    def __init__(self, error: Exception | None = None) -> None:
        self.on_control: Callable[[bytes], None] | None = None
        self.on_bulk: Callable[[bytes], None] | None = None
        self.on_lost: Callable[[str], None] | None = None
        self.sent: list[bytes] = []
        self.error = error
        self.lease = 15.0
        self.peer_has_ended = False
        self.seconds_down = 0.0

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    async def send_bulk(self, piece: bytes) -> None:
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        return


class Client:
    """A process of this node as a router knows it; records the frames that it gets."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.queued_bytes = 0
        self.on_drained: Any = None

    def send(self, frame: Any, fds: Any = ()) -> None:
        self.sent.append(frame)
        for fd in fds:
            os.close(fd)

    def close(self) -> None:
        return


def attach(to: Router, role: str = "driver") -> tuple[Endpoint, Client]:
    endpoint, client = to.new_endpoint(role), Client()
    endpoint.connection = client  # type: ignore[assignment]
    if role == "worker":
        endpoint.process = object()  # type: ignore[assignment]
    return endpoint, client


def new_router() -> Router:
    return Router(asyncio.get_running_loop(), 0, lambda *_: None)


def body(size: int = 100_000) -> tuple[int, int]:
    return write_segment([bytes(size)], size), size


def call(source: Endpoint, route: list[Any], size: Any = b"", count: int = 0) -> list[Any]:
    return [frames.CALL, count, source.id, route, 7, "method", 0, size]


# -- neighbours -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [NodeLost("gone"), OSError("unreadable"), MemoryError()])
async def test_a_node_lost_within_a_body_keeps_neither_side(
    error: Exception,
) -> None:
    lost: list[str] = []
    link = Link(error)
    node_link = NodeLink(1, "far", link, lambda *_: None, lambda _, reason: lost.append(reason), Pool(0))
    descriptors = [body() for _ in range(3)]
    for fd, size in descriptors:
        node_link.send([frames.REPLY, 1, 0, 1, 7, 0, 0, size], [fd])
    await node_link.send_bodies()
    node_link._gone("the connection broke")
    assert len(lost) == 1
    for fd, _ in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


async def test_gone_comes_after_everything_that_the_process_sent() -> None:
    """The body of an item is in transfer, followed by the process's confirmation of items."""
    came: list[int] = []

    def on_frame(node_link: NodeLink, frame: list[Any], fds: list[int]) -> None:
        came.append(frame[0])
        close_fds(fds)

    node_link = NodeLink(1, "far", Link(), on_frame, lambda *_: None, Pool(0))
    worker, daemon, here = frames.endpoint(1, 3), frames.endpoint(1, 0), frames.endpoint(0, 0)
    said = [
        (frames.PUT, 0, worker, here, 7, 1, b"k", 0, frames.WAIT, [1, 4]),
        (frames.QUEUE, 0, worker, here, 7, "taken", [[1, 1]]),
        (frames.GONE, 0, daemon, worker, True),
    ]
    node_link._control(b"".join(map(frames.new_packer().pack, said)))
    assert came == []
    node_link._bulk(_HEADER.pack(1, 4, 0) + b"body")
    assert came == [frames.PUT, frames.QUEUE, frames.GONE]


async def test_a_nodes_failed_task_is_logged_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise RuntimeError("stray")

    await _logged(fail(), "a test")
    assert "a test failed" in caplog.text
    assert "stray" in caplog.text


async def test_a_lost_neighbour_answers_asks_and_calls() -> None:
    to = new_router()
    source, client = attach(to)
    node_link = NodeLink(1, "far", Link(), lambda *_: None, lambda *_: None, Pool(0))
    to.node_links[1] = node_link
    node_link._gone("it burnt")
    to.from_endpoint(source, call(source, [[1, [4, 0]]]), [])
    assert client.sent == []  # what is lost is decided elsewhere
    node_link.lost = "it burnt"
    to.from_endpoint(source, [frames.REQUEST, 0, 0, 1, 3, "NodeStatus", {}], [])
    assert client.sent.pop()[3:] == (source.id, 3, False, ["NodeLost", "node 1 (far) is lost: it burnt"])
    to.from_endpoint(source, call(source, [[1, [4, 0, 5, 2]]]), [])
    assert [(frame[5], frame[6]) for frame in client.sent] == [(0, Status.LOST), (2, Status.LOST)]
    assert frames.unpack(client.sent[0][7]) == [1, "node 1 (far) is lost: it burnt"]


async def test_without_descriptors_every_rank_of_a_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    to = new_router()
    source, client = attach(to)
    workers = [attach(to, "worker") for _ in range(3)]
    fd, size = body()
    copies: list[int] = []

    def dup(fd: int, really: Any = os.dup) -> int:
        if copies:
            raise OSError(24, "Too many open files")
        copies.append(really(fd))
        return copies[0]

    monkeypatch.setattr(os, "dup", dup)
    targets = [number for slot, (worker, _) in enumerate(workers) for number in (worker.number, slot)]
    to.from_endpoint(source, call(source, [[0, targets]], size, 1), [fd])
    assert sorted((frame[5], frame[6]) for frame in client.sent) == [(slot, Status.UNKNOWN) for slot in range(3)]
    assert "Too many open files" in frames.unpack(client.sent[0][7])
    assert not any(worker.sent for _, worker in workers)
    for closed in (fd, *copies):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(closed)


# -- output -----------------------------------------------------------------------------------------------------------


async def test_lines_for_a_slow_reader_are_dropped_and_counted_once() -> None:
    to = new_router()
    endpoint, client = attach(to)

    def write(*lines: str) -> None:
        to.send_event(endpoint.id, "output", {"who": "w:0", "stream": "stdout", "lines": list(lines), "log": "/log"})

    write("a")
    client.queued_bytes = MAX_QUEUED_BYTES + 1
    write("b", "c")
    client.queued_bytes = 0
    write("d")
    assert [frame[5]["lines"] for frame in client.sent] == [["a"]]
    client.on_drained()
    write("e")
    client.on_drained()
    assert [frame[5]["lines"] for frame in client.sent] == [["a"], ["… 3 lines left out here, see /log"], ["e"]]


async def test_an_outputs_end_is_near_even_if_somebody_writes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    reads = []

    def endless(fd: int, size: int) -> bytes:
        reads.append(size)
        assert len(reads) <= worker_output.MAX_LAST_READS
        return b"y\n" * 10

    flooded = WorkerOutput(asyncio.get_running_loop(), read, tmp_path / "log", None)
    monkeypatch.setattr(os, "read", endless)
    flooded.close()
    monkeypatch.undo()
    os.close(write)
    assert len(reads) == worker_output.MAX_LAST_READS


async def test_a_line_that_is_cut_says_so(tmp_path: Path) -> None:
    heard: list[str] = []
    read, write = os.pipe()
    out = WorkerOutput(asyncio.get_running_loop(), read, tmp_path / "log", heard.extend)
    os.write(write, b"x" * (worker_output.MAX_LINE_BYTES + 5) + b"\nshort\n")
    os.close(write)
    out.close()
    assert heard[0].endswith("x… [5 more characters, see the log]")
    assert heard[1] == "short"
    assert out.last_lines()[0].endswith("more characters, see the log]")


async def test_the_last_lines_include_output_that_waits_in_the_pipe(tmp_path: Path) -> None:
    read, write = os.pipe()
    out = WorkerOutput(asyncio.get_running_loop(), read, tmp_path / "log", None)
    os.write(write, b"first\nunfinished")
    assert out.last_lines() == ["first", "unfinished"]
    os.close(write)
    out.close()


# -- templates --------------------------------------------------------------------------------------------------------


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Templates]:
    """Templates whose process is not Python, and is silent."""
    with contextlib.closing(Templates("/bin/cat", dict(os.environ), open_files=1024)) as made:
        yield made


async def test_a_template_that_dies_takes_its_descriptors_along(kept: Templates) -> None:
    kept.watch(asyncio.get_running_loop())
    before = open_files()
    for _ in range(3):
        template = kept.get()  # cat does not know the option -m
        with pytest.raises(LaunchError, match="the worker template exited with code 1"):
            await template.fork({}, [])
        assert template.dead
        assert open_files() == before


@pytest.fixture
async def stuck(tmp_path: Path) -> AsyncIterator[Template]:
    """A template that starts and then does nothing."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o700)
    with contextlib.closing(Template(str(program), dict(os.environ), 1024)) as template:
        template.watch(asyncio.get_running_loop())
        yield template


async def test_births_do_not_wait_for_a_silent_template_for_ever(
    stuck: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.WORKER_IMPORT_TIMEOUT_S.variable, "0.05")
    since = time.monotonic()
    starts = await asyncio.gather(*(stuck.fork({}, []) for _ in range(3)), return_exceptions=True)
    assert time.monotonic() - since < 5
    assert all(isinstance(start, LaunchError) for start in starts)
    assert "has said nothing for 0.05 s while importing torch" in str(starts[0])
    assert stuck.dead


async def test_a_worker_whose_birth_was_cancelled_is_reaped(stuck: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    start = asyncio.ensure_future(stuck.fork({}, []))
    await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far, monkeypatch.context() as answering:
        answering.setattr(stuck, "_socket", near)
        far.send(frames.pack({"pid": pid}))
        stuck._readable()
    async with asyncio.timeout(10):
        while stuck._strays:
            await asyncio.sleep(0)
    assert not psutil.pid_exists(pid)


async def test_a_stopped_template_does_not_keep_a_node_from_closing(stuck: Template) -> None:
    os.kill(stuck.pid, signal.SIGSTOP)
    start = asyncio.ensure_future(stuck.fork({}, []))
    await asyncio.sleep(0)
    stuck.close()
    with pytest.raises(LaunchError, match="closing"):
        await start


async def test_a_template_that_cannot_be_watched_is_not_kept(kept: Templates, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Template, loop: Any) -> None:
        raise OSError("no more descriptors")

    kept.watch(asyncio.get_running_loop())
    before = open_files()
    with monkeypatch.context() as broken:
        broken.setattr(Template, "watch", fail)
        with pytest.raises(OSError, match="no more descriptors"):
            kept.get()
    assert open_files() == before
    assert not kept._templates


# -- the service ------------------------------------------------------------------------------------------------------


def new_service(tmp_path: Path, to: Router, template: Any = None) -> DaemonService:
    class Given:
        python = sys.executable

        def get(self, *_: Any) -> Any:
            return template

        def preloaded(self, *_: Any) -> Any:
            return contextlib.nullcontext(template)

    site = Site("cafecafe", 0, "here", "127.0.0.1", tmp_path, {}, 4)
    abandoned: list[LocalGroup] = []
    given: Any = Given()
    return DaemonService(asyncio.get_running_loop(), site, given, to, abandoned.append)


async def test_only_the_cancelled_lookup_is_forgotten(
    tmp_path: Path,
) -> None:
    service = new_service(tmp_path, new_router())
    for ask in (1, 2, 3):
        await service.names.find(Requester(9, ask), operations.Find("group", "x", None, 0))
    await service.names.cancel_find(Requester(9, 10), operations.CancelFind("group", 2))
    assert list(service.names.groups._lookups) == [(9, 1), (9, 3)]
    service.drop_owner(9)
    assert not service.names.groups._lookups
    await service.handlers.handle(Requester(9, 4), "Find", {"kind": "group", "name": "x", "rank": None, "after": 0})
    assert not service.names.groups._lookups


async def test_a_dead_owners_stores_are_closed_and_groups_not_listed(tmp_path: Path) -> None:
    service = new_service(tmp_path, new_router())
    port = await service.groups.open_store(Requester(9, 1), operations.OpenStore("g", 1))
    service.drop_node(0)
    assert service.groups._abandon.__self__ == list(service.groups.by_number.values())  # type: ignore[attr-defined]
    await service.groups.close_group(service.groups.by_number[1], 0.0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    assert (await service.node_status(Requester(1, 2), operations.NodeStatus()))["groups"] == {}


async def test_who_attaches_later_is_told_which_nodes_are_lost(tmp_path: Path) -> None:
    to = new_router()
    service = new_service(tmp_path, to)
    service.lost.append({"node": 1, "name": "far", "reason": "it burnt"})
    endpoint, client = attach(to)
    service.greet(endpoint)
    assert client.sent[0][3]["lost"] == [{"node": 1, "name": "far", "reason": "it burnt"}]


class Forker:
    """Replacement of a template; its workers do nothing."""

    def __init__(self, fail_after: int = 1000) -> None:
        self.may = asyncio.Event()
        self.pids: list[int] = []
        self.fail_after = fail_after
        self.specs: list[Any] = []

    async def fork(self, spec: Any, fds: Any) -> int:
        self.specs.append(spec)
        await self.may.wait()
        if len(self.pids) == self.fail_after:
            raise LaunchError("no more workers")
        self.pids.append(os.posix_spawn("/bin/sleep", ["sleep", "600"], {}, setpgroup=0))
        return self.pids[-1]


def request(workers: int = 3, **changed: Any) -> operations.Spawn:
    fields: dict[str, Any] = {
        "group": "g",
        "number": 1,
        "workers": [{"rank": rank, "env": {}, "info": {}, "address": f"g:{rank}"} for rank in range(workers)],
        "env": {"OMP_NUM_THREADS": "4,2"},
        "script_env": {},
        "node_env": {},
        "python": None,
        "config": "",
        "seed": None,
        "world_size": workers,
        "max_concurrency": 1,
        "quiet": True,
        "cwd": "/",
        "sys_path": [],
        "script": None,
        "module": None,
        "supervised": False,
        "close_grace": 2.0,
        "preload": [],
        "own_modules": [],
    }
    return operations.Spawn(**{**fields, **changed})


@pytest.mark.parametrize(
    ("variable", "threads"), [({}, 4), ({"OMP_NUM_THREADS": "many"}, 4), ({"OMP_NUM_THREADS": "0"}, 1)], ids=repr
)
@pytest.mark.parametrize("script", [None, "/of/the/driver/train.py"])
async def test_a_worker_starts_with_its_launchs_script_and_threads(
    tmp_path: Path, script: str | None, variable: dict[str, str], threads: int
) -> None:
    to, forker = new_router(), Forker(fail_after=0)
    forker.may.set()
    with pytest.raises(LaunchError, match="no more workers"):
        await new_service(tmp_path, to, forker).groups.spawn(Requester(9, 1), request(1, script=script, env=variable))
    (spec,) = forker.specs
    assert (spec["script"], spec["threads"]) == (script, threads)


@pytest.mark.parametrize("end", ["close", "owner"])
async def test_workers_born_after_their_groups_end_are_reaped(tmp_path: Path, end: str) -> None:
    to, forker = new_router(), Forker()
    service = new_service(tmp_path, to, forker)
    owner, _ = attach(to)
    start = asyncio.ensure_future(service.groups.spawn(Requester(owner.id, 1), request()))
    while len(forker.specs) < 3:
        await asyncio.sleep(0)
    if end == "close":
        await service.groups.close(Requester(owner.id, 2), operations.CloseGroup("g", 1, 0.0))
    else:
        service.drop_owner(owner.id)
    forker.may.set()
    with pytest.raises(LaunchError, match="closed while its workers were started"):
        await start
    assert len(forker.pids) == 3
    assert not any(psutil.pid_exists(pid) for pid in forker.pids)
    assert list(to.endpoints) == [owner.number]


async def test_of_a_failed_spawn_no_worker_is_left(tmp_path: Path) -> None:
    to, forker = new_router(), Forker(fail_after=2)
    service = new_service(tmp_path, to, forker)
    owner, _ = attach(to)
    forker.may.set()
    with pytest.raises(LaunchError, match="no more workers"):
        await service.groups.spawn(Requester(owner.id, 1), request())
    assert len(forker.pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in forker.pids)
    assert service.groups.by_number == {}
    assert list(to.endpoints) == [owner.number]


# -- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_survives_floods_a_dead_template_and_odd_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """One run for all tests, because a start takes a second."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setitem(os.environ, "ODD", "caf\udce9")
    with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        other = Plain.create_group().launch(cluster, placement=ONE, name="other").wait_ready()
        assert other.run("os.environb[b'ODD']").wait() == [b"caf\xe9"]
        limits = "__import__('resource').getrlimit(7)"
        assert resource.RLIMIT_NOFILE == 7
        assert other.run(limits).wait() == [(soft, hard)]
        threads = Plain.create_group().launch(cluster, ONE, name="threads", env={"OMP_NUM_THREADS": "4,2"})
        assert threads.run("__import__('torch').get_num_threads()").wait() == [4]

        flooding = Plain.create_group().launch(cluster, placement=ONE, name="flooding").wait_ready()
        flooding.run("os.posix_spawn('/usr/bin/yes', ['yes'], os.environ, setsid=True)").wait()
        since = time.monotonic()
        with pytest.raises(WorkerDied):
            flooding.die([0], "SIGKILL").wait()
        assert other.hello().wait(10) == [0]
        assert time.monotonic() - since < 10


@pytest.mark.slow
def test_a_child_group_of_a_dying_parent_is_not_left() -> None:
    with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        parent = Parent.create_group().launch(cluster, placement=ONE, name="parent").wait_ready()
        handle = parent.children()
        os.kill(parent.worker_info_list[0].worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied):
            handle.wait()
        parent.close()
        deadline = time.monotonic() + 10
        while cluster.status()["endpoints"] > 1 and time.monotonic() < deadline:
            os.sched_yield()
        assert cluster.status()["groups"] == {}
        assert cluster.status()["endpoints"] == 1

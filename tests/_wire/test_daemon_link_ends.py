"""Ends of a link between daemons: goodbye, death, freeze."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from rlinf_async import settings
from rlinf_async._wire import daemon_link as link_module, grpc as module
from rlinf_async.errors import ClosedError, NodeLost
from tests._support.daemon_link_pairs import (
    AUTHORITY,
    PIECE,
    RUN,
    Owner,
    Server,
    both_loops,
    either_loop,
    grpc,
    once,
    pair,
    pour,
)

pytestmark = both_loops
event_loop_policy = either_loop


@pytest.mark.parametrize("closer", ["dialled", "accepted"])
async def test_closing_sends_what_is_queued_and_tells_the_other_side_once(closer: str):
    async with pair() as (left, right):
        here, there = (left, right) if closer == "dialled" else (right, left)
        for _ in range(100):
            here.link.send(bytes(10_000))
        for _ in range(4):
            await here.link.send_bulk(bytes(PIECE))
        await here.link.close()
        await there.until(lambda: there.lost)
        assert len(there.control) == 1_000_000
        assert len(there.bulk) == 4
        await here.link.close()
        await there.link.close()
        assert there.lost == [link_module.CLOSED]
        assert here.lost == []
        here.link.send(b"dropped")
        with pytest.raises(ClosedError):
            await here.link.send_bulk(b"refused")


async def test_both_sides_may_close_at_once():
    async with pair() as (left, right):
        await asyncio.gather(left.link.close(), right.link.close())
        assert left.lost == right.lost == []


async def test_a_stopped_server_closes_its_links_and_accepts_no_more():
    async with Server() as server:
        left = Owner(await server.dialled())
        Owner(await server.accepted.get())
        await server.peer_server.stop()
        await left.until(lambda: left.lost)
        assert left.lost == [link_module.CLOSED]
        with pytest.raises(NodeLost, match=server.address):
            await server.dialled()
        await left.link.close()


async def test_who_waits_to_send_bulk_hears_of_the_end():
    async with Server() as server:
        link = await server.dialled()
        accepted = await server.accepted.get()  # not listening, so that the stream fills up
        waiting = [asyncio.create_task(pour(link, 400)) for _ in range(20)]
        await asyncio.wait(waiting, timeout=0.3)
        assert not any(task.done() for task in waiting)
        await asyncio.gather(accepted.close(), link.close())
        done, _ = await asyncio.wait(waiting, timeout=5)
        assert len(done) == len(waiting)
        for task in waiting:
            with pytest.raises(ClosedError, match="node 1"):
                await task


@pytest.mark.parametrize("failing", ["dialled", "accepted"])
async def test_a_callback_that_fails_ends_the_link_on_both_sides_and_is_reported(failing: str):
    reported: list[str] = []  # not the exceptions: their frames would keep the link
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(repr(context["exception"])))
    async with pair() as (left, right):
        here, there = (left, right) if failing == "dialled" else (right, left)

        def fail(_: bytes) -> None:
            raise KeyError("no such call")

        here.link.on_control = fail
        there.link.send(b"call")
        await here.until(lambda: here.lost)
        await there.until(lambda: there.lost)
        assert here.lost == there.lost == ["on_control failed: KeyError('no such call')"]
    assert reported == ["KeyError('no such call')"]


PEER = """
import asyncio, json, sys
from rlinf_async._wire.credentials import NodeCredentials
from rlinf_async._wire.dial import dial
from rlinf_async._wire.peer_server import PeerServer

def listen(link):
    link.on_control = link.send
    link.on_bulk = lambda piece: None
    link.on_lost = lambda reason: print(json.dumps(reason), flush=True)

async def main(role, address, run, credentials, lease):
    identity = NodeCredentials(**credentials)
    server = PeerServer(1 if role == "accepts" else 0, run, identity, "127.0.0.1", listen, lease=lease)
    own = await server.start()
    if role == "accepts":
        print(json.dumps(own), flush=True)
    else:
        options = {"run": run, "credentials": identity, "lease": lease, "own_address": own}
        listen(await dial(address, node=0, peer=1, timeout=10, **options))
    await asyncio.Event().wait()

asyncio.run(main(**json.loads(sys.stdin.readline())))
"""


@asynccontextmanager
async def remote(role: str, lease: float) -> AsyncIterator[tuple[Owner, asyncio.subprocess.Process]]:
    """A link to a process of its own, which accepts the link or dials it and echoes what it is sent."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PEER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    server = Server(lease=lease)
    config = {"role": role, "address": "", "run": RUN, "lease": lease}
    try:
        async with asyncio.timeout(30):
            if role == "accepts":
                config["credentials"] = asdict(AUTHORITY.issue(1))
                process.stdin.write(json.dumps(config).encode() + b"\n")
                server.address = json.loads(await process.stdout.readline())
                link = await server.dialled(lease=lease)
            else:
                config["address"] = await server.peer_server.start()
                config["credentials"] = asdict(AUTHORITY.issue(0))
                process.stdin.write(json.dumps(config).encode() + b"\n")
                link = await server.accepted.get()
        owner = Owner(link)
        link.send(b"there?")
        await owner.until(lambda: owner.control == b"there?")
        yield owner, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await owner.link.close()
        await server.peer_server.stop()


@pytest.mark.parametrize("role", ["accepts", "dials"])
async def test_the_death_of_the_peer_is_known_within_a_second(role: str):
    async with remote(role, settings.LEASE_S.default) as (owner, process):
        start = time.monotonic()
        process.kill()
        await owner.until(lambda: owner.lost)
        assert time.monotonic() - start < 1
        assert len(owner.lost) == 1
        assert owner.lost[0].startswith("the connection broke")
        with pytest.raises(NodeLost, match="the connection broke"):
            await owner.link.send_bulk(b"late")


@pytest.mark.parametrize("role", ["accepts", "dials"])
async def test_a_frozen_peer_is_lost_once_its_lease_is_over(role: str):
    entered = time.monotonic()
    async with remote(role, 0.5) as (owner, process):
        start = time.monotonic()
        process.send_signal(signal.SIGSTOP)
        await owner.until(lambda: owner.lost)
        assert 0.4 < time.monotonic() - start < 3
        assert len(owner.lost) == 1
        measured = re.match(r"no sign of life for (\d+\.\d) s, and its lease is 0.5 s", owner.lost[0])
        assert measured is not None
        assert 0.5 <= float(measured[1]) <= time.monotonic() - entered + 0.1


async def test_closing_does_not_wait_for_a_frozen_peer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(link_module, "CLOSE_TIMEOUT_S", 0.3)
    async with remote("accepts", settings.LEASE_S.default) as (owner, process):
        process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        await owner.link.close()
        assert 0.2 < time.monotonic() - start < 2
        assert owner.lost == []


@once
def test_an_idle_link_outlives_many_leases():
    async def idle() -> None:
        async with Server(lease=0.5) as server:
            left = Owner(await server.dialled(lease=0.5))
            right = Owner(await server.accepted.get())
            with pytest.raises(TimeoutError):  # a server that was not told otherwise gives up at the third ping
                await left.until(lambda: left.lost or right.lost, timeout=4.5)
            assert left.lost == right.lost == []
            await left.link.close()

    asyncio.run(idle())


@once
def test_grpc_knows_every_option_that_it_is_given():
    """An option that gRPC does not know is ignored without a word."""
    library = Path(grpc._cython.cygrpc.__file__).read_bytes()
    for name, _ in module._server_options(1, 1, 1) + module._channel_options(1, "name"):
        assert name.encode() in library, name


async def test_fifty_links_leave_no_thread_no_descriptor_and_no_line_in_a_log(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    caplog.set_level(logging.INFO)
    async with pair():
        pass  # gRPC's own threads exist from now on
    process = psutil.Process()
    threads, descriptors = threading.active_count(), process.num_fds()
    for number in range(50):
        async with pair() as (left, right):
            left.link.send(b"ping")
            right.link.send(b"pong")
            if number % 2:
                await left.until(lambda: left.control)
            if number % 3:
                await right.link.close()
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
    assert threading.active_count() == threads
    assert process.num_fds() < descriptors + 50  # gRPC closes its sockets a little later

"""Links between daemons, over real gRPC on the loopback."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from types import SimpleNamespace

import pytest

from rlinf_async._wire import daemon_link
from rlinf_async._wire.daemon_link import CLOSED, MAX_MESSAGE_BYTES, Broken, Over, PeerLink, Received, Wire
from rlinf_async.errors import AuthError
from tests._support.daemon_link_pairs import (
    PIECE,
    Owner,
    Server,
    both_loops,
    either_loop,
    once,
    pair,
    pour,
)

pytestmark = both_loops
event_loop_policy = either_loop


async def test_the_end_of_a_wire_is_waited_for():
    over = Over()
    waiting = asyncio.ensure_future(over.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    over.set(in_order=True)
    over.set()
    await waiting
    assert over.in_order


async def test_bytes_go_both_ways_on_both_streams():
    async with pair() as (left, right):
        assert (left.link.peer, right.link.peer) == (1, 0)
        for here, there in ((left, right), (right, left)):
            here.link.send(b"call")
            await here.link.send_bulk(b"piece")
            await there.until(lambda there=there: there.control == b"call" and there.bulk == [b"piece"])


async def test_a_thousand_sends_leave_in_one_message():
    async with pair() as (left, right):
        sent = [b"%099d\n" % number for number in range(1000)]
        for data in sent:
            left.link.send(data)
        await right.until(lambda: len(right.control) == 100_000)
        assert right.control == b"".join(sent)
        assert right.control_messages == 1


async def test_a_long_queue_leaves_in_messages_of_at_most_256_kib():
    async with pair() as (left, right):
        sizes: list[int] = []
        right.link.on_control = lambda data: (sizes.append(len(data)), right._on_control(data))[0]
        sent = [bytes([number % 256]) * 1000 for number in range(1000)] + [os.urandom(600_000), b"end"]
        for data in sent:
            left.link.send(data)
        await right.until(lambda: len(right.control) == 1_600_003)
        assert right.control == b"".join(sent)
        assert max(sizes) <= PIECE
        assert len(sizes) <= 8


async def test_order_holds_in_both_directions_at_once():
    async with pair() as (left, right):
        sent: dict[Owner, list[bytes]] = {left: [], right: []}

        async def talk(owner: Owner) -> None:
            for number in range(500):
                data = b"%d." % number * (number % 7 + 1)
                sent[owner].append(data)
                owner.link.send(data)
                await owner.link.send_bulk(data)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(talk(left))
            tasks.create_task(talk(right))
        for here, there in ((left, right), (right, left)):
            await there.until(lambda here=here, there=there: there.bulk == sent[here])
            await there.until(lambda here=here, there=there: there.control == b"".join(sent[here]))


async def test_a_call_overtakes_the_bulk_that_was_sent_before_it():
    async with pair() as (left, right):
        right.link.on_control = right.link.send  # an echo

        async def pour() -> None:
            piece = bytes(PIECE)
            for _ in range(256):
                await left.link.send_bulk(piece)

        pouring = asyncio.create_task(pour())
        await right.until(lambda: right.bulk)
        times = []
        while not pouring.done() and len(times) < 20:
            start, known = time.perf_counter(), len(left.control)
            left.link.send(b"echo")
            await left.until(lambda known=known: len(left.control) > known)
            times.append(time.perf_counter() - start)
        assert len(times) >= 10, "the echoes waited for the bulk"
        assert statistics.median(times) < 0.1
        await pouring
        await right.until(lambda: len(right.bulk) == 256)


async def test_bulk_waits_for_the_network_instead_of_filling_memory():
    async with Server() as server:
        link = await server.dialled()
        pouring = asyncio.create_task(pour(link, 400))
        accepted = await server.accepted.get()
        assert len(link._bulk) <= 4
        right, left = Owner(accepted), Owner(link)
        await right.until(lambda: len(right.bulk) == 400)
        await pouring
        assert [piece[:4] for piece in right.bulk] == [number.to_bytes(4) for number in range(400)]
        await link.close()
        assert left.lost == []


async def test_nothing_that_arrives_before_the_owner_listens_is_lost():
    async with Server() as server:
        link = await server.dialled()
        accepted = await server.accepted.get()
        accepted.send(b"early")
        await accepted.send_bulk(b"bird")
        other = await server.dialled(node=2)  # by now both have arrived
        left = Owner(link)
        await left.until(lambda: left.control == b"early" and left.bulk == [b"bird"])
        await link.close()
        await other.close()


async def test_who_begins_to_listen_after_the_end_is_told_of_it():
    async with Server() as server:
        link = await server.dialled()
        await link.close()
        right = Owner(await server.accepted.get())
        await right.until(lambda: right.lost)
        await right.link.close()
        assert right.lost == [CLOSED]


@pytest.mark.parametrize("size", [0, MAX_MESSAGE_BYTES + 1])
async def test_a_piece_that_grpc_would_choke_on_is_refused_before_it_leaves(size: int):
    async with pair() as (left, right):
        with pytest.raises(ValueError, match=str(size)):
            await left.link.send_bulk(bytes(size))
        left.link.send(b"")
        await left.link.send_bulk(bytes(MAX_MESSAGE_BYTES))
        await right.until(lambda: right.bulk)
        assert right.lost == []


class Stream:
    """A stream on paper: it brings what the test says, and again and again what it has to repeat."""

    def __init__(self, repeated: bytes = b"") -> None:
        self.coming: asyncio.Queue[bytes] = asyncio.Queue()
        self._repeated = repeated

    async def read(self) -> bytes:
        if not self._repeated:
            return await self.coming.get()
        await asyncio.sleep(0.01)
        return self._repeated

    async def write(self, data: bytes) -> None: ...


@pytest.mark.parametrize(("stream", "said"), [("control", daemon_link._HEADER.pack(0, 0) + b"x"), ("bulk", b"x")])
@once
async def test_a_message_of_either_stream_is_a_sign_of_life(stream: str, said: bytes, monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr(daemon_link, "clock", SimpleNamespace(monotonic=lambda: now))
    wire = Wire(Stream(), Stream())
    owner = Owner(PeerLink(1, wire))
    now += 10
    assert owner.link.seconds_down == 10
    getattr(wire, stream).coming.put_nowait(said)
    await owner.until(lambda: owner.control or owner.bulk)
    assert owner.link.seconds_down == 0
    for each in (wire.control, wire.bulk):
        each.coming.put_nowait(daemon_link._GOODBYE)
    await owner.link.close()


@once
async def test_who_is_heard_and_hears_nothing_gets_another_connection():
    async def accepts(address: str, timeout: float) -> bool:
        return True

    async def redial(received: Received, seconds: float) -> tuple[Wire, Received]:
        raise AuthError("it was meant to")

    deaf = Stream(daemon_link._HEADER.pack(0, daemon_link._DEAF))
    owner = Owner(PeerLink(1, Wire(deaf, Stream()), lease=1, accepts=accepts, redial=redial))
    await owner.until(lambda: owner.lost, timeout=5)
    assert owner.lost == ["what is sent does not arrive, and it does not go on with this link: it was meant to"]


@once
async def test_a_link_that_has_ended_sends_no_heartbeats():
    wire = Wire(Stream(), Stream())
    link = PeerLink(1, wire)
    for each in (wire.control, wire.bulk):
        each.coming.put_nowait(daemon_link._GOODBYE)
    await link.close()
    assert link._beat.cancelled()


async def broken() -> bytes:
    raise Broken("it broke")


async def accepts_nothing_yet(address: str, timeout: float) -> None: ...


@once
async def test_a_connection_that_comes_in_the_moment_of_a_close_is_over():
    """The server's handler of that connection waits for its end, and the server for its handlers."""
    wire, new = Wire(Stream(), Stream()), Wire(Stream(), Stream())
    wire.control.read = broken
    owner = Owner(PeerLink(1, wire, accepts=accepts_nothing_yet))
    async with asyncio.timeout(5):
        await wire.over.wait()
        owner.link.resume(new, (0, 0))
        owner.link._task.cancel()
        await asyncio.wait([owner.link._task])
        await new.over.wait()


@once
async def test_a_connection_that_comes_as_the_lease_expires_is_used():
    wire, new = Wire(Stream(), Stream()), Wire(Stream(), Stream())
    wire.control.read = broken
    owner = Owner(PeerLink(1, wire, accepts=accepts_nothing_yet))
    owner.link._last_arrival -= 60
    async with asyncio.timeout(5):
        await wire.over.wait()  # the lease's timer fires after this waiter, in the same turn of the loop
        owner.link.resume(new, (0, 0))
        new.control.coming.put_nowait(daemon_link._HEADER.pack(0, 0) + b"x")
        await owner.until(lambda: owner.control or owner.lost)
        assert (owner.control, owner.lost) == (b"x", [])
        for each in (new.control, new.bulk):
            each.coming.put_nowait(daemon_link._GOODBYE)
        await owner.link.close()


@once
async def test_whatever_ends_a_link_its_owner_hears_of_it():
    async def redial(received: Received, seconds: float) -> tuple[Wire, Received]:
        raise OSError("no descriptor is free")

    wire = Wire(Stream(), Stream())
    wire.control.read = broken
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(repr(context["exception"])))
    owner = Owner(PeerLink(1, wire, accepts=accepts_nothing_yet, redial=redial))
    await owner.until(lambda: owner.lost, timeout=5)
    assert owner.lost == ["OSError('no descriptor is free')"]
    assert told == owner.lost

"""Deaths and stops of receivers and senders during an update, through every scheme."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlinf_async.errors import DeadlineExceeded, PeerLost
from tests._support.dying_model import Fragile
from tests._support.weight_parts import StoreMail
from tests.weights.children import Child, child
from tests.weights.scheme_child import SCHEMES, half_way, scheme_of

pytestmark = [pytest.mark.usefixtures("fork_server"), pytest.mark.slow]

KINDS = list(SCHEMES)
STRESS = float(os.environ.get("RLINF_STRESS_SECONDS", "1"))
"""Seconds of the stress tests; from 10 on with all their readers."""

every_kind = pytest.mark.parametrize("kind", KINDS)
every_way = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "shared memory"])
"""Shared memory is the way of "multiprocess", with a buffer of the sender's beside it."""
every_signal = pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])


class Sending:
    """A sender in this process, with receivers in others."""

    def __init__(self, kind: str, **options: Any) -> None:
        self.kind = kind
        self.model = Fragile(width=options.pop("width", 100))
        self.scheme = scheme_of(kind, **options)
        self.store: Any = None
        if kind == "distributed":
            self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._stack = contextlib.AsyncExitStack()

    async def begin(self, count: int, role: str = "receive", **facts: Any) -> list[Child]:
        receivers = await asyncio.gather(*(self.child(number, role, **facts) for number in range(count)))
        if self.store is not None:
            ways = {"store": self.store, "num_workers": count}
        else:
            ways = {"pipes": [each.pipe for each in receivers]}
        self.scheme.init_on_sender("policy", source_model=self.model, **ways)
        return receivers

    async def child(self, number: int, role: str = "receive", **facts: Any) -> Child:
        port = self.store.port if self.store is not None else 0
        facts = {"kind": self.kind, "me": number, "port": port} | facts
        receiver = await self._stack.enter_async_context(child(role, "scheme_child", **facts))
        assert await receiver.story() == "serving"
        return receiver

    async def send(self, value: float, order: Any = None, **options: Any) -> Any:
        self.model.fill(value)
        self.model.order = order
        return await self.scheme.get_sender().send(**options)

    async def __aenter__(self) -> Sending:
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        await self.scheme.close()
        await self._stack.aclose()


async def look(receiver: Child) -> Any:
    receiver.tell("look")
    return await receiver.story()


async def end(*receivers: Child) -> None:
    for each in receivers:
        each.tell("end")
    for each in receivers:
        assert await each.ended() == 0


@every_signal
@every_way
async def test_a_receiver_that_fails_half_way_is_named_in_time_and_the_others_have_the_version(
    kind: str, how: signal.Signals
) -> None:
    async with Sending(kind) as sending:
        bad, good = await sending.begin(2)
        await sending.send(1.0, timeout=30)
        with pytest.raises((DeadlineExceeded, PeerLost)) as raised:
            async with asyncio.timeout(60):
                await sending.send(2.0, {"victim": 0, "signal": how}, timeout=2)
        assert "worker 0 does not have version 2" in str(raised.value.__notes__)
        assert "worker 1" not in str(raised.value.__notes__)
        assert await look(good) == [2, [2.0]]
        if how == signal.SIGSTOP:
            bad.signal(signal.SIGCONT)
            assert (await sending.send(3.0, timeout=30)).version == 3
            assert await look(bad) == [3, [3.0]]
            await end(bad)
        else:
            assert (await sending.send(3.0, worker_ids=[1], timeout=30)).version == 3
        assert await look(good) == [3, [3.0]]
        await end(good)


@pytest.mark.stress
@every_signal
async def test_a_receiver_that_fails_while_bytes_are_on_their_way_holds_up_nobody(how: signal.Signals) -> None:
    async with Sending("distributed", width=1500) as sending:
        facts = {"width": 1500}
        bad, good = await sending.begin(1, signal_in_transfer=[how, 2], **facts), None
        (bad,) = bad
        await sending.send(1.0, timeout=30)
        for version in (2, 3):
            with pytest.raises((DeadlineExceeded, PeerLost)) as raised:
                async with asyncio.timeout(50):  # the transport's own would be 60 s
                    await sending.send(float(version), timeout=1.5)
            assert f"worker 0 does not have version {version}" in str(raised.value.__notes__)
        if how == signal.SIGSTOP:
            bad.signal(signal.SIGCONT)
            good = bad
        else:
            good = await sending.child(0, **facts)
        assert (await sending.send(4.0, timeout=30)).version == 4
        assert (await look(good))[1] == [4.0]
        await end(good)


WIDE = {"width": 3000}
"""So many bytes that no socket holds them."""


@pytest.mark.parametrize("moment", ["idle", "half way", "applying"])
async def test_a_killed_worker_of_a_job_is_named_within_a_second(moment: str) -> None:
    facts = {**WIDE, "stop_half_way": 2} if moment == "half way" else {}
    async with Sending("distributed", **(WIDE if facts else {})) as sending:
        (worker,) = await sending.begin(1, **facts)
        await sending.send(1.0, timeout=60)
        if moment == "idle":
            worker.signal(signal.SIGKILL)
            await worker.ended()
        order = {"victim": 0, "signal": signal.SIGKILL} if moment == "applying" else None
        second = asyncio.create_task(sending.send(2.0, order, timeout=600))
        if moment == "half way":
            assert await worker.story() == "half way"
            worker.signal(signal.SIGKILL)
        if moment != "idle":
            await worker.ended()
        begun = time.monotonic()
        with pytest.raises(PeerLost, match="NODE_1 was lost") as raised:
            async with asyncio.timeout(30):
                await second
        assert time.monotonic() - begun < 1
        assert "worker 0 does not have version 2" in str(raised.value.__notes__)


async def test_a_send_that_is_cancelled_waits_for_no_receiver_that_has_stopped_half_way() -> None:
    async with Sending("distributed", **WIDE) as sending:
        (receiver,) = await sending.begin(1, stop_half_way=2, **WIDE)
        await sending.send(1.0, timeout=60)
        second = asyncio.create_task(sending.send(2.0, timeout=600))
        assert await receiver.story() == "half way"
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await receiver.stopped()
        third = asyncio.create_task(sending.send(3.0, timeout=600))
        receiver.signal(signal.SIGCONT)
        async with asyncio.timeout(60):
            assert (await third).version == 3
        assert await look(receiver) == [3, [3.0]]
        await end(receiver)


async def test_a_scheme_that_is_closed_waits_for_no_receiver_that_has_stopped_half_way() -> None:
    async with Sending("distributed", **WIDE) as sending:
        (receiver,) = await sending.begin(1, stop_half_way=1, **WIDE)
        sending.model.fill(1.0)
        await sending.scheme.get_sender().send_async(timeout=600)
        assert await receiver.story() == "half way"
        began = time.monotonic()
        await sending.scheme.close()
        assert time.monotonic() - began < 60


async def test_a_receiver_that_is_closed_waits_for_no_sender_that_has_stopped_half_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model, scheme = Fragile(**WIDE), scheme_of("distributed", ack_timeout=600)
    stopped = threading.Event()
    async with child("send", "scheme_child", kind="distributed", port=store.port, **WIDE) as sender:

        def stop() -> None:
            os.kill(sender.pid, signal.SIGSTOP)
            stopped.set()

        monkeypatch.setattr(StoreMail, "_fill", StoreMail._fill)  # undone after the test
        half_way(2, stop)
        scheme.init_on_worker("policy", model=model, store=store, rank=1)
        serving = scheme.get_receiver().serve()
        assert await asyncio.to_thread(stopped.wait, 60)
        began = time.monotonic()
        await scheme.close()
        await asyncio.wait([serving])
        assert time.monotonic() - began < 60
        assert model.values() == {1.0}


async def test_what_a_cancelled_receive_leaves_half_way_the_next_one_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model, scheme, loop = Fragile(**WIDE), scheme_of("distributed"), asyncio.get_running_loop()
    async with child("send", "scheme_child", kind="distributed", port=store.port, **WIDE) as sender:
        scheme.init_on_worker("policy", model=model, store=store, rank=1)
        receiver = scheme.get_receiver()

        async def receive() -> bool:
            return bool(await receiver.receive(60))

        def stop() -> None:
            os.kill(sender.pid, signal.SIGSTOP)
            loop.call_soon_threadsafe(first.cancel)

        monkeypatch.setattr(StoreMail, "_fill", StoreMail._fill)  # undone after the test
        first = asyncio.create_task(receive())
        half_way(1, stop)
        with pytest.raises(asyncio.CancelledError):
            await first
        sender.signal(signal.SIGCONT)
        assert receiver.version == 0
        assert await receive()
        assert (receiver.version, model.values()) == (1, {1.0})
        sender.signal(signal.SIGKILL)
        await sender.ended()
        await scheme.close()


@every_kind
async def test_a_receiver_that_was_killed_is_whole_when_another_one_takes_its_place(kind: str) -> None:
    async with Sending(kind) as sending:
        first, other = await sending.begin(2)
        await sending.send(1.0, timeout=30)
        first.signal(signal.SIGKILL)
        await first.ended()
        with pytest.raises((DeadlineExceeded, PeerLost), match=r"."):
            await sending.send(2.0, timeout=2)
        second = await sending.child(0)
        if kind == "distributed":
            await sending.send(3.0, timeout=30)
        else:  # the pipe went with the process: the scheme is begun once more
            await sending.scheme.close()
            sending.scheme.init_on_sender("policy", source_model=sending.model, pipes=[second.pipe])
            sending.model.fill(3.0)
            await sending.scheme.connect(timeout=30)
        assert (await look(second))[1] == [3.0]
        await end(second)
        other.signal(signal.SIGKILL)


@every_kind
async def test_when_the_sender_is_killed_a_receiver_keeps_its_last_whole_version(kind: str) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if kind == "distributed" else None
    model = Fragile(width=300)
    scheme = scheme_of(kind)
    facts = {"kind": kind, "width": 300, "port": store.port if store else 0}
    async with child("send", "scheme_child", **facts) as sender:
        scheme.init_on_worker(
            "policy", model=model, **({"store": store, "rank": 1} if store else {"pipe": sender.pipe})
        )
        receiver = scheme.get_receiver()
        serving = receiver.serve()
        await receiver.wait_version(3, timeout=60)
        sender.signal(signal.SIGKILL)
        await sender.ended()
        if not store:
            with pytest.raises(PeerLost):
                await receiver.wait_version(1 << 40, timeout=30)
        async with receiver.reading() as version:
            assert model.values() == {float(version)}
        await scheme.close()
        await asyncio.wait([serving])
        assert model.values() == {float(version)}


@pytest.mark.parametrize("apply", ["copy", "map"])
@every_way
async def test_no_reader_sees_two_versions_of_any_scheme_and_none_goes_back(kind: str, apply: str) -> None:
    """Sends without a pause, and the source is overwritten as soon as it is staged; readers look at every value."""
    async with Sending(kind, apply=apply, width=200) as sending:
        readers = await sending.begin(4 if STRESS >= 10 else 2, "read", apply=apply, width=200)
        sender = sending.scheme.get_sender()
        deadline = time.monotonic() + STRESS
        while time.monotonic() < deadline:
            sending.model.fill(float(sender.version + 1))
            await sender.send_async(timeout=30)
            sending.model.fill(-1.0)
            await sender.wait_async()
        for reader in readers:
            reader.tell("end")
        for reader in readers:
            story = await reader.story()
            assert story["wrong"] == []
            assert story["last"] == sender.version
            assert story["seen"] > 1
            assert await reader.ended() == 0


async def test_when_the_store_of_a_job_dies_serving_ends_with_that() -> None:
    model, scheme = Fragile(1.0), scheme_of("distributed")
    async with child("keep_store", "scheme_child") as keeper:
        store = TCPStore("127.0.0.1", await keeper.story(), is_master=False)
        scheme.init_on_worker("policy", model=model, store=store, rank=1)
        serving = scheme.get_receiver().serve()
        for _ in range(20):
            await asyncio.sleep(0.005)  # it waits
        keeper.signal(signal.SIGKILL)
        await keeper.ended()
        with pytest.raises(PeerLost, match="the store of NODE_1 is gone"):
            async with asyncio.timeout(60):
                await serving
        await scheme.close()
    assert model.values() == {1.0}

"""Random programs of a publisher and receivers on three machines, in every order in which words and pieces arrive."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlinf_async._messaging.state import relay_plan
from rlinf_async.errors import ClosedError, PeerLost, WeightMismatch, WorkerDied
from rlinf_async.weights import Publisher, Subscriber
from rlinf_async.weights.model.copying import copy_in_order
from rlinf_async.weights.plane import applying, host_memory, packing, publisher as publishing
from rlinf_async.weights.plane.outlets import Outlets
from tests.weights.simulated_network import Network, SimulatedAside, SimulatedLink, SimulatedThread

SEEDS = int(os.environ.get("RLINF_SIMULATED_SEEDS", 25))
STEPS = 400
MACHINES = 3
SHAPES = {"a": (5,), "b": (700,), "c": (30, 40)}


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    network = Network()
    monkeypatch.setattr(SimulatedAside, "network", network, raising=False)
    monkeypatch.setattr(SimulatedThread, "network", network, raising=False)
    monkeypatch.setattr(publishing, "Aside", SimulatedAside)
    monkeypatch.setattr(applying, "Aside", SimulatedAside)
    monkeypatch.setattr(host_memory, "LazyThread", SimulatedThread)
    monkeypatch.setattr(relay_plan, "FIRST_PIECE_BYTES", 1 << 11)
    monkeypatch.setattr(
        relay_plan, "chain_sizes", lambda nbytes: [min(2048, nbytes - at) for at in range(0, nbytes, 2048)]
    )
    monkeypatch.setattr(packing, "copy_in_order", functools.partial(copy_in_order, step=2048))
    packed = Outlets.packed

    def pack_on(outlets: Outlets, *facts: Any) -> None:
        packed(outlets, *facts)
        network.meanwhile()

    monkeypatch.setattr(Outlets, "packed", pack_on)
    yield network
    network.timers.clear()


class Receiver:
    """A receiver of a program, as long as it is there.

    Attributes:
        misfit: the destination has another shape for now.
    """

    def __init__(self, network: Network, number: int, machine: int, how: dict[str, Any], dtype: Any) -> None:
        self.number, self.machine, self.dtype = number, machine, dtype
        self.ends = SimulatedLink.pair(network, number, machine)
        self.weights: Any = None
        self.fits(True)
        theirs = {name: how[name] for name in ("apply", "verify")}
        self.subscriber = Subscriber(self.ends[1], find=lambda: self.weights, **theirs)
        self.serving = self.subscriber.serve()

    def fits(self, fits: bool) -> None:
        self.misfit = not fits
        self.weights = {name: torch.zeros(shape, dtype=self.dtype) for name, shape in SHAPES.items()}
        if not fits:
            self.weights["b"] = torch.zeros(9)

    def values(self) -> list[set[float]]:
        return [set(map(float, tensor.unique())) for tensor in self.weights.values()]


class Program:
    """One run.

    Attributes:
        content: of each version, the value of each tensor.
    """

    def __init__(self, network: Network, seed: int) -> None:
        self.network, self.rnd = network, random.Random(seed)
        self.how: dict[str, Any] = {
            "apply": self.rnd.choice(["copy", "map"]),
            "verify": self.rnd.choice(["off", "off", "sha256"]),
            "chain_from": self.rnd.choice([0, 0, 1 << 30]),
            "behind": self.rnd.choice([0, 0, 1, 2]),
        }
        self.log: list[str] = [f"seed {seed} {self.how}"]
        self.source = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
        network.meanwhile = self._meanwhile
        self.publisher = Publisher(self.source, ack_timeout=1000.0, **self.how)
        self.content: dict[int, list[float]] = {}
        self.receivers: dict[int, Receiver] = {}
        self.leaving: list[asyncio.Task[Any]] = []
        self.sending: asyncio.Task[Any] | None = None
        self.handles: list[Any] = []
        """That have not ended, the oldest first."""
        self.handle: Any = None
        self.number = 0
        self.is_for_all = True
        self.is_eventful = True
        self.expired: set[int] = set()
        self.misfits: set[int] = set()
        """Receivers that once were."""

    # -- what users and fate do ---------------------------------------------------------------------------------

    def join(self) -> None:
        self.number += 1
        machine = self.rnd.randrange(MACHINES)
        dtype = self.rnd.choice([torch.float32, torch.float32, torch.bfloat16])
        receiver = self.receivers[self.number] = Receiver(self.network, self.number, machine, self.how, dtype)
        if self.rnd.random() < 0.1:
            receiver.fits(False)
            self.misfits.add(self.number)
        self.log.append(f"{self.number} joins on machine {machine}, {dtype}{', misfit' if receiver.misfit else ''}")
        self.publisher.add(self.number, receiver.ends[0])

    def leave(self) -> None:
        receiver = self._any()
        self.log.append(f"{receiver.number} leaves")
        self.leaving.append(asyncio.ensure_future(receiver.subscriber.close()))
        if self.rnd.random() < 0.5:
            self.publisher.remove(receiver.number)

    def die(self) -> None:
        receiver = self._any()
        self.log.append(f"{receiver.number} dies")
        receiver.ends[1]._end(PeerLost("who is dead says nothing"))
        receiver.ends[1].far_end = None
        receiver.ends[0].cut(WorkerDied(f"receiver {receiver.number} was killed"))
        self.network.die(receiver.number)
        self.leaving.append(asyncio.ensure_future(receiver.subscriber.close()))

    def _any(self) -> Receiver:
        return self.receivers.pop(self.rnd.choice(list(self.receivers)))

    def mend(self) -> None:
        for receiver in self.receivers.values():
            if receiver.misfit:
                self.log.append(f"{receiver.number} is mended")
                receiver.fits(True)

    def publish(self, *, may_choose: bool = True) -> None:
        if self.sending is not None or (self.handles and not self.how["behind"]):
            return
        version = self.publisher.version + 1
        self.content[version] = [float(version % 200)] * len(SHAPES)
        for tensor, value in zip(self.source.values(), self.content[version], strict=True):
            tensor.fill_(value)
        there = list(self.receivers)
        names = self.rnd.sample(there, len(there) // 2) if may_choose and self.rnd.random() < 0.2 else None
        self.log.append(f"publish {version} to {names or 'all'}")
        self.sending = asyncio.ensure_future(self._publish(version, names))

    async def _publish(self, version: int, names: Any) -> None:
        self.handle = handle = await self.publisher.publish(worker_ids=names, version=version)
        self.handles.append(handle)
        self.is_for_all = names is None
        handle._follow(lambda: self._ended(handle))
        for tensor in self.source.values():
            tensor.fill_(-1.0)

    def _ended(self, handle: Any) -> None:
        self.log.append(f"version {handle.version} has ended")
        self.handles.remove(handle)
        if handle.version + self.how["behind"] < self.publisher.version:
            self.expired.add(handle.version)  # some may have been too far behind
        if handle.report is not None and handle.version not in self.expired:
            for name, ack in handle.report.per_worker.items():
                if ack.error is not None and name in self.receivers and name not in self.misfits:
                    self.network.faults.append(f"version {handle.version} failed at {name}: {ack.error!r}")

    def cancel(self) -> None:
        if self.sending is not None and self.rnd.random() < 0.5:
            self.log.append("the sending is cancelled")
            self.sending.cancel()
        elif self.handles and self.rnd.random() < 0.5:
            self.log.append("a handle is cancelled")
            self.rnd.choice(self.handles).cancel()

    def expire(self) -> None:
        if self.handles and self.rnd.random() < 0.3:
            self.log.append("a version's time is over")
            handle = self.rnd.choice(self.handles)
            self.expired.add(handle.version)
            handle._expire()

    def connect(self) -> None:
        if self.publisher.manifest is not None and self.rnd.random() < 0.2:
            self.log.append("connect")
            self.leaving.append(asyncio.ensure_future(self._connect()))

    async def _connect(self) -> None:
        with contextlib.suppress(WeightMismatch, PeerLost, ClosedError):  # of those that do not fit, or have ended
            await self.publisher.connect(1000.0)

    def ring(self) -> None:
        """What is missed after a while is missed now."""
        if self.network.timers and self.rnd.random() < 0.5:
            self.network.timers.pop(0)()

    def look(self) -> None:
        for receiver in self.receivers.values():
            version = receiver.subscriber.version
            if version and not receiver.misfit and not receiver.subscriber._applying.destination.has_moved():
                assert receiver.values() == [{value} for value in self.content[version]], (receiver.number, version)

    def _meanwhile(self) -> None:
        """While a version is packed."""
        for _ in range(self.rnd.randrange(6)):
            if enabled := self.network.enabled():
                self.network.run(self.rnd.choice(enabled))
            if self.is_eventful and self.rnd.random() < 0.1:
                self.rnd.choice([self.join, *([self.die, self.leave] if self.receivers else [])])()

    # -- running ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        acts = [self.join] * 3 + [self.publish] * 4 + [self.cancel, self.expire, self.connect, self.ring, self.mend]
        for _ in range(STEPS):
            enabled = self.network.enabled()
            if enabled and self.rnd.random() < 0.85:
                self.network.run(self.rnd.choice(enabled))
            else:
                act = self.rnd.choice(acts + ([self.leave, self.die] if self.receivers else []))
                act()
            await self._settle()
            self.look()

    async def quiesce(self) -> None:
        """Everything arrives that is on its way."""
        for _ in range(20_000):
            await self._settle()
            if enabled := self.network.enabled():
                self.network.run(self.rnd.choice(enabled))
            elif self.network.timers and not self._is_done():
                self.network.timers.pop(0)()
            else:
                break
        else:
            raise AssertionError("it does not come to rest")
        self.look()

    def _is_done(self) -> bool:
        return not self.handles and all(each.done() for each in (self.sending, *self.leaving) if each is not None)

    async def _settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)
        if self.sending is not None and self.sending.done():
            sending, self.sending = self.sending, None
            if not sending.cancelled():
                sending.result()

    async def end(self) -> None:
        self.is_eventful = False
        await self.quiesce()
        assert self._is_done(), self.publisher
        assert self.network.faults == []
        last, lacking = self.publisher.version, self.publisher.quarantined
        for number, receiver in self.receivers.items():
            if number not in self.misfits and number not in lacking and self.is_for_all:
                assert receiver.subscriber.version == last, (number, receiver.subscriber)
        self.mend()
        for _ in range(2):
            self.publish(may_choose=False)
            await self.quiesce()
            assert self._is_done(), self.publisher
        last = self.publisher.version
        for number, receiver in self.receivers.items():
            assert receiver.subscriber.version == last, (number, receiver.subscriber)
            assert receiver.values() == [{value} for value in self.content[last]], number
        assert self.handle.report is not None
        bad = {name: ack for name, ack in self.handle.report.per_worker.items() if name in self.receivers and ack.error}
        assert not bad, bad
        outlets = self.publisher._outlets
        assert (outlets._lacking, outlets.ledger.pending) == ({}, {})
        store, packing = self.publisher._store, self.publisher._packing
        assert store is not None
        assert packing is not None
        verifying = packing.verifying
        compared = [] if verifying is None else [held.slot for held in verifying._held.values()]
        assert [slot for slot in store._slots if slot.is_held] == compared, "that of the latest version at most"
        assert len(store._slots) <= max(store.slots, self.how["behind"] + 2)
        assert self.network.faults == []

    async def close(self) -> None:
        closing = [*self.leaving, *(asyncio.ensure_future(each.subscriber.close()) for each in self.receivers.values())]
        closing.append(asyncio.ensure_future(self.publisher.close()))
        for _ in range(20_000):
            await self._settle()
            if enabled := self.network.enabled():
                self.network.run(enabled[0])
            elif all(each.done() for each in closing):
                break
        for each in closing:
            await each


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_whoever_comes_goes_and_dies_everybody_who_is_there_has_the_last_version(
    network: Network, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "rlinf_async")
    program = Program(network, seed)
    try:
        await program.run()
        await program.end()
    except BaseException:
        print(*program.log, sep="\n")
        raise
    finally:
        await program.close()

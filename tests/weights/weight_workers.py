"""Workers that send and receive weights."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rlinf_async import TransferFailed, Work, Worker
from rlinf_async._messaging.state.chain import CHAIN_FROM_BYTES
from rlinf_async.weights import Publisher, Subscriber
from tests._support.weight_parts import Store, Update, WorkerLink

SHAPES = {"a": (1000,), "b.c": (300, 40), "b.d": (9_000_000,), "e": ()}
"""36 MB: several pieces, so that one can be in the middle."""


def model(value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full(shape, float(value)) for name, shape in SHAPES.items()}


def pattern(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {name: torch.rand(shape, generator=random) for name, shape in SHAPES.items()}


def checksum_of(weights: dict[str, torch.Tensor]) -> int:
    checksum = 0
    for tensor in weights.values():
        checksum = zlib.crc32(tensor.reshape(-1).numpy(), checksum)  # type: ignore[arg-type]
    return checksum


class Trainer(Worker):
    _chain_from = CHAIN_FROM_BYTES

    async def begin(self, receivers: list[tuple[str, int]], **options: Any) -> None:
        self._publisher = Publisher(model(0), chain_from=self._chain_from, **options)
        for number, (group, rank) in enumerate(receivers):
            self._publisher.add(number, WorkerLink(group, rank, "policy"))
        await self._publisher.connect()

    def make_chains(self) -> None:
        """Also of so little."""
        self._chain_from = 1 << 20

    async def publish_pattern(self, seed: int, timeout: float | None = None) -> tuple[int, list[int]]:
        """Publishes bytes that are different everywhere: their checksum, and how many have left for each receiver."""
        receivers = self._publisher._receivers._receivers.values()
        sent = [0] * len(receivers)
        for index, receiver in enumerate(receivers):
            send = receiver.link.send_tensor

            def count(tensor: Any, *facts: Any, send: Any = send, index: int = index) -> Any:
                sent[index] += tensor.nbytes
                return send(tensor, *facts)

            receiver.link.send_tensor = count  # type: ignore[method-assign]
        source = pattern(seed)
        handle = await self._publisher.publish(source, timeout=timeout)
        checksum = checksum_of(source)
        for tensor in source.values():
            tensor.fill_(-1)
        await handle
        for receiver in receivers:
            del receiver.link.send_tensor
        return checksum, sent

    def sent_by_network(self) -> int:
        """Bytes that this machine has sent to others."""
        lines = Path("/proc/self/net/dev").read_text().splitlines()
        return next(int(line.split()[9]) for line in lines if line.strip().startswith("eth0:"))

    async def add(self, number: int, group: str, rank: int) -> None:
        self._publisher.add(number, WorkerLink(group, rank, "policy"))
        await self._publisher.connect()

    async def publish(self, value: float, timeout: float | None = None) -> dict[int, str]:
        """What has become of it: each receiver's status, or the type of its error."""
        source = model(value)
        handle = await self._publisher.publish(source, timeout=timeout)
        for tensor in source.values():
            tensor.fill_(-1)
        try:
            await handle
        except Exception:
            pass
        assert handle.report is not None
        return {
            name: ack.status if ack.error is None else f"{type(ack.error).__name__}: {ack.error}"
            for name, ack in handle.report.per_worker.items()
        }

    async def cancel_when_packed(self, value: float) -> None:
        """All of it may have left for other machines."""
        packed, goes_on, pack = threading.Event(), threading.Event(), Store.pack

        def pack_and_wait(*args: Any, **options: Any) -> Any:
            writer = pack(*args, **options)
            packed.set()
            goes_on.wait(5)
            return writer

        Store.pack = pack_and_wait  # type: ignore[method-assign]
        publishing = asyncio.create_task(self._publisher.publish(model(value)))
        await asyncio.to_thread(packed.wait, 5)
        Store.pack = pack  # type: ignore[method-assign]
        publishing.cancel()
        await asyncio.sleep(0)
        goes_on.set()
        with contextlib.suppress(asyncio.CancelledError):
            await publishing

    async def publish_and_stop_waiting(self, value: float) -> None:
        self._handle = await self._publisher.publish(model(value))

    async def outcome(self) -> dict[int, str]:
        try:
            await self._handle
        except Exception:
            pass
        assert self._handle.report is not None
        return {
            name: ack.status if ack.error is None else type(ack.error).__name__
            for name, ack in self._handle.report.per_worker.items()
        }

    def talk(self, group: str, words: list[Any]) -> None:
        for word in words:
            self.send(word, group, 0)

    async def end(self) -> None:
        await self._publisher.close()


class Rollout(Worker):
    async def begin(self, trainer: str, **options: Any) -> None:
        self._weights = model(0)
        self._subscriber = Subscriber(WorkerLink(trainer, 0, "policy"), self._weights, **options)
        await self._subscriber.connect()
        self._subscriber.serve()

    async def values(self) -> tuple[int, list[float]]:
        async with self._subscriber.reading() as version:
            bounds = {float(bound) for tensor in self._weights.values() for bound in (tensor.min(), tensor.max())}
        return version, sorted(bounds)

    async def wait_version(self, version: int) -> tuple[int, list[float]]:
        await self._subscriber.wait_version(version, 30)
        return await self.values()

    def count_copies(self) -> None:
        """Of received tensors, from where they have arrived to where they belong."""
        from rlinf_async._transports import in_place

        self._copies, fill = 0, in_place.fill

        def count(*args: Any) -> None:
            self._copies += 1
            fill(*args)

        in_place.fill = count

    def copies(self) -> int:
        return self._copies

    async def spoil(self, name: str) -> None:
        """Somebody writes to that tensor when the next version has just been written."""
        write = Update.write

        def write_and_spoil(update: Update, *place: Any) -> None:
            Update.write = write  # type: ignore[method-assign]
            write(update, *place)
            tensor = self._weights[name]
            tensor.data = tensor.data + 1  # what is mapped cannot be written to

        Update.write = write_and_spoil  # type: ignore[assignment,method-assign]

    async def is_host(self) -> bool:
        return self._subscriber._host is not None

    async def checksum(self) -> int:
        async with self._subscriber.reading():
            return checksum_of(self._weights)

    async def die_when_something_comes(self) -> None:
        """Dies as soon as the first piece of a version is there."""
        self._at_the_first_piece(signal.SIGKILL)

    async def stop_when_something_comes(self) -> None:
        """Stops then, once."""
        self._at_the_first_piece(signal.SIGSTOP)

    def _at_the_first_piece(self, number: int) -> None:
        host = self._subscriber._host
        assert host is not None
        link = host.host.carrier
        receive = link.receive_tensor

        def receive_and_end(*facts: Any) -> Any:
            link.receive_tensor = receive  # type: ignore[method-assign]
            work = receive(*facts)
            work._follow(lambda: os.kill(os.getpid(), number))
            return work

        link.receive_tensor = receive_and_end  # type: ignore[method-assign]

    async def pass_nothing_on(self) -> None:
        """What it should send to other machines fails."""
        link = self._subscriber.link
        send = link.send_tensor

        def send_not(tensor: Any, line: int, receiver: Any = None) -> Any:
            if receiver is None:
                return send(tensor, line)
            work: Work[None] = Work()
            work._settle(error=TransferFailed("there is no way"))
            return work

        link.send_tensor = send_not  # type: ignore[method-assign]

    def pid(self) -> int:
        return os.getpid()

    async def on_message(self, trainer: str, count: int) -> list[Any]:
        return [await self.recv(trainer, 0) for _ in range(count)]

    async def end(self) -> None:
        await self._subscriber.close()


Launch = Callable[..., Any]
"""The fixture's."""


def begin(trainer: Any, rollout: Any, size: int, **options: Any) -> None:
    theirs = {name: options[name] for name in ("apply", "verify") if name in options}
    beginning = rollout.begin("trainer", **theirs)
    trainer.begin([("rollout", rank) for rank in range(size)], **options).wait(60)
    beginning.wait(60)

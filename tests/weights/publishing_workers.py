"""Workers that publish weights, and workers that follow them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from rlinf_async import Worker, follow, publish
from rlinf_async._worker.context import require_exchange
from rlinf_async.weights.scope import Scope
from tests.weights.ends import Tied


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class Ends(Worker):
    """Has a model, and an end of its synchronisation."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Tied(float(type(self) is not Follower))
        self.weights: Any = None

    def model_of(self, width: int) -> None:
        self.model = Tied(float(type(self) is not Follower), width)

    def forget_names_soon(self) -> None:
        """Names are waited for no longer than that."""
        require_exchange()._mailbox.names._patience = 0.3

    async def leave(self) -> None:
        await self.weights.__aexit__(None, None, None)

    async def leave_by_an_error(self) -> None:
        await self.weights.__aexit__(ValueError, ValueError(), None)

    async def close_all(self) -> None:
        for scope in set(Scope._open.values()):
            await scope.close()


class Trainer(Ends):
    async def train(self, to: Any, versions: int, **options: Any) -> list[int]:
        """The whole of a trainer, in a coroutine."""
        async with publish(self.model, to, **options) as weights:
            sent = [weights.version]
            for value in range(2, versions + 1):
                self.model.fill(float(value))
                sent.append(await weights.send())
                self.model.fill(-1.0)
        return sent

    def train_blocking(self, to: Any, versions: int) -> list[int]:
        """The same in a ``def`` method."""
        with publish(self.model, to) as weights:
            sent = [weights.version]
            for value in range(2, versions + 1):
                self.model.fill(float(value))
                sent.append(weights.send())
                self.model.fill(-1.0)
        return sent

    async def enter(self, to: Any, **options: Any) -> int:
        self.weights = publish(self.model, to, **options)
        await self.weights.__aenter__()
        return int(self.weights.version)

    async def send(self, value: float, **options: Any) -> int:
        self.model.fill(value)
        return int(await self.weights.send(**options))

    async def send_until_it_fails(self) -> None:
        while True:
            await self.weights.send()
            await asyncio.sleep(0.01)

    def send_blocking(self, value: float) -> int:
        self.model.fill(value)
        return int(self.weights.send())

    async def delivered(self, timeout: float | None = None) -> dict[Any, str]:
        report = await self.weights.delivered(timeout)
        assert report.version == self.weights.version
        return {name: ack.status for name, ack in sorted(report.per_worker.items())}

    async def try_to(self, what: str, *arguments: Any) -> str:
        """In words, the error that a method of the publication ends with."""
        try:
            await getattr(self.weights, what)(*arguments)
        except Exception as error:
            return said(error)
        return "none"

    async def publish_twice(self, first: Any, second: Any, name: str = "policy") -> str:
        publish(self.model, first)
        try:
            publish(self.model, second, name=name)
        except RuntimeError as error:
            return str(error)
        finally:
            await self.close_all()
        return "none"

    async def leave_while_a_send_waits(self) -> list[str]:
        """A second send waits for the first to be delivered, and another task leaves."""
        await self.weights.send()
        sending = asyncio.create_task(self.try_to("send"))
        delivering = asyncio.create_task(self.try_to("delivered"))
        await asyncio.sleep(0.05)
        await self.leave_by_an_error()
        return [await sending, await delivering]

    async def enter_cancelled(self, to: Any, turns: int) -> bool:
        """Cancelled after so many turns of the loop; whether it was by then."""
        entering = asyncio.create_task(self.enter(to))
        for _ in range(turns):
            await asyncio.sleep(0)
        entering.cancel()
        try:
            await entering
        except asyncio.CancelledError:
            return True
        await self.leave_by_an_error()
        return False

    async def send_cancelled(self, turns: int) -> bool:
        sending = asyncio.create_task(self.send(-5.0))
        for _ in range(turns):
            await asyncio.sleep(0)
        sending.cancel()
        return isinstance((await asyncio.gather(sending, return_exceptions=True))[0], asyncio.CancelledError)


class Sharded(Trainer):
    """Every rank has a part of each tensor."""

    async def enter(self, to: Any, **options: Any) -> int:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (self._world_size,))
        self.parts = {
            name: distribute_tensor(tensor.detach(), mesh, [Shard(0)])
            for name, tensor in self.model.state_dict(keep_vars=True).items()
        }
        self.weights = publish(self.parts, to, **options)
        await self.weights.__aenter__()
        return int(self.weights.version)

    async def send(self, value: float, **options: Any) -> int:
        for part in self.parts.values():
            part.to_local().fill_(value)
        return int(await self.weights.send(**options))


class Follower(Ends):
    async def collect(self, last: int, **options: Any) -> list[tuple[int, set[float]]]:
        """The whole of a rollout worker, in a coroutine: each version that it has seen."""
        seen: dict[int, set[float]] = {}
        async with follow(self.model, "trainer", **options) as weights:
            while max(seen, default=0) < last:
                async with weights.reading() as version:
                    seen[version] = self.model.values()
                await weights.wait_version(min(version + 1, last))
        return sorted(seen.items())

    def collect_blocking(self, last: int) -> list[tuple[int, set[float]]]:
        """The same in a ``def`` method, which keeps the worker's loop from turning."""
        seen: dict[int, set[float]] = {}
        with follow(self.model, "trainer") as weights:
            while max(seen, default=0) < last:
                with weights.reading() as version:
                    seen[version] = self.model.values()
                weights.wait_version(min(version + 1, last))
        return sorted(seen.items())

    async def enter(self, of: Any = "trainer", **options: Any) -> int:
        self.weights = follow(self.model, of, **options)
        await self.weights.__aenter__()
        return int(self.weights.version)

    def enter_blocking(self) -> int:
        self.weights = follow(self.model, "trainer")
        return int(self.weights.__enter__().version)

    def make(self) -> None:
        """Follows without entering."""
        self.weights = follow(self.model, "trainer")

    def look(self) -> tuple[int, set[float]]:
        with self.weights.reading(20.0) as version:
            return version, self.model.values()

    def look_until(self, last: int) -> list[int]:
        """In a ``def`` method, over and over: the worker's loop does not turn meanwhile."""
        seen = [0]
        while seen[-1] < last:
            version, values = self.look()
            assert values == {float(version)}, values
            if version != seen[-1]:
                seen.append(version)
        return seen[1:]

    async def wait_version(self, version: int, timeout: float | None = 20.0) -> tuple[int, set[float]]:
        await self.weights.wait_version(version, timeout)
        return self.look()

    async def read_until(self, release: float) -> int:
        async with self.weights.reading() as version:
            await asyncio.sleep(release)
        return int(version)

    async def try_to(self, what: str, *arguments: Any) -> str:
        try:
            await getattr(self, what)(*arguments)
        except Exception as error:
            return said(error)
        return "none"

    async def follow_two(self) -> list[Any]:
        """Two models of one trainer; and one of them twice."""
        other = Tied()
        async with follow(self.model, "trainer") as first, follow(other, "trainer", name="critic") as second:
            await first.wait_version(1)
            await second.wait_version(1)
            return [self.model.values(), other.values(), await self.try_to("enter")]

    def look_in_a_fork(self) -> str:
        """In words, the error of a forked child that reads."""
        ours, theirs = multiprocessing.Pipe()

        def child() -> None:
            try:
                self.look()
            except Exception as error:
                theirs.send(said(error))

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        answer = str(ours.recv()) if ours.poll(10) else "nothing"
        process.join(10)
        ours.close()
        theirs.close()
        return answer

    async def enter_cancelled(self, turns: int) -> bool:
        entering = asyncio.create_task(self.enter())
        for _ in range(turns):
            await asyncio.sleep(0)
        entering.cancel()
        try:
            await entering
        except asyncio.CancelledError:
            return True
        await self.leave()
        return False

    def held(self) -> tuple[int, list[str]]:
        """Open descriptors, and threads for weights."""
        threads = sorted(thread.name for thread in threading.enumerate() if "weights" in thread.name)
        return len(os.listdir("/proc/self/fd")), threads

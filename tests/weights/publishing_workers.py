"""Workers that publish weights, and workers that follow them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from rlinf_async import Cluster, NodePlacementStrategy, Worker, follow, publish
from rlinf_async._worker.context import require_exchange
from rlinf_async.weights import Subscriber
from rlinf_async.weights.scope import Scope
from tests.weights.ends import Tied, shown


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class Ends(Worker):
    """Has a model, and an end of its synchronisation."""

    def __init__(self) -> None:
        super().__init__()
        self.model_of(3)
        self.weights: Any = None
        self._patience: Any = None

    def model_of(self, width: int) -> None:
        self.model: Any = Tied(float(type(self) is not Follower), width)
        self.named = self.model

    def model_of_rows(self) -> None:
        self.model = self.named = {"a": torch.zeros(4, 3), "b": torch.zeros(4)}

    def wrap(self, name: str) -> None:
        """Have the model's tensors below a name."""
        self.named = torch.nn.ModuleDict({name: self.model})

    def forget_names_soon(self) -> None:
        """Names are waited for no longer than that."""
        names = require_exchange()._mailbox.names
        self._patience, names._patience = names._patience, 0.3

    async def leave(self) -> None:
        await self.weights.__aexit__(None, None, None)

    async def leave_by_an_error(self) -> None:
        await self.weights.__aexit__(ValueError, ValueError("loss is nan"), None)

    async def close_all(self) -> None:
        for scope in set(Scope._open.values()):
            await scope.close()

    async def begin_anew(self) -> None:
        """As if it had just been launched."""
        await self.close_all()
        self.model_of(3)
        self.weights = None
        if self._patience is not None:
            require_exchange()._mailbox.names._patience = self._patience


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
        self.weights = publish(self.named, to, **options)
        await self.weights.__aenter__()
        return int(self.weights.version)

    async def send_rows(self, value: float) -> int:
        """Sends tensors of which each row has a value of its own."""
        self.model["b"].copy_(value + torch.arange(4))
        self.model["a"].copy_(self.model["b"][:, None])
        return int(await self.weights.send())

    async def enter_streamed(self, to: Any, **options: Any) -> int:
        """Publishes the model as a function yields it, whose calls are counted."""
        self.times = 0

        def export() -> Iterator[tuple[str, torch.Tensor]]:
            self.times += 1
            return ((name, tensor.clone()) for name, tensor in self.model.state_dict().items())

        self.weights = publish(export, to, **options)
        await self.weights.__aenter__()
        return int(self.weights.version)

    def count(self) -> int:
        return self.times

    async def send(self, value: float, **options: Any) -> int:
        self.model.fill(value)
        return int(await self.weights.send(**options))

    async def send_until_it_fails(self) -> None:
        while True:
            await self.weights.send()
            await asyncio.sleep(0.01)

    async def time_sends(self, times: int) -> list[float]:
        """Seconds that each send takes."""
        took = []
        for value in range(times):
            begun = time.monotonic()
            await self.send(float(value))
            took.append(time.monotonic() - begun)
        return took

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

    def publish_without_memory(self) -> None:
        with mock.patch("rlinf_async.weights.publication.Followers", side_effect=MemoryError):
            publish(self.model, "rollout")

    async def publish_twice(self, first: Any, second: Any, name: str = "policy") -> str:
        publish(self.model, first)
        try:
            publish(self.model, second, name=name)
        except RuntimeError as error:
            return str(error)
        finally:
            await self.close_all()
        return "none"

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


class Sharded(Trainer):
    """Every rank has a part of each tensor."""

    async def enter(self, to: Any, **options: Any) -> int:
        # Half a second of processor time in each worker that imports it.
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

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


class Below(Worker):
    """A process that a worker has started, and that joins as a worker below it."""

    def __init__(self, parent_address: Any) -> None:
        Worker.__init__(self, parent_address=parent_address, world_size=1, rank=0)


def follow_below(parent_address: Any, last: int, apply: str, pipe: Any) -> None:
    worker, model = Below(parent_address), Tied()
    with follow(model, "trainer", apply=apply) as weights:
        pipe.send("follows")
        weights.wait_version(last, 20)
        with weights.reading() as version:
            pipe.send((worker.get_name(), version, model.values()))


class Follower(Ends):
    def breed(self, last: int, apply: str) -> None:
        """Starts one that follows until it has that version."""
        self.below, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        arguments = (self.worker_address, last, apply, theirs)
        self.child = context.Process(target=follow_below, args=arguments)
        self.child.start()
        theirs.close()

    def hear_below(self) -> Any:
        assert self.below.poll(20)
        return self.below.recv()

    def signal_below(self, number: int) -> None:
        assert self.child.pid is not None
        os.kill(self.child.pid, number)

    def end_below(self) -> int | None:
        self.child.join(20)
        self.below.close()
        return self.child.exitcode

    def halve(self) -> None:
        self.model.bfloat16()

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
        self.weights = follow(self.named, of, **options)
        await self.weights.__aenter__()
        return int(self.weights.version)

    async def enter_part(self, **options: Any) -> int:
        """Follows with plain tensors, each of which is this rank's part of the trainer's rows."""
        from torch.distributed.tensor import Shard

        mesh = SimpleNamespace(shape=(self._world_size,), get_coordinate=lambda: [self._rank])
        self.named = {name: tensor.chunk(self._world_size)[0].clone() for name, tensor in self.model.items()}
        return await self.enter(shard=(mesh, [Shard(0)]), **options)

    def rows(self) -> tuple[list[Any], list[float]]:
        with self.weights.reading():
            return self.named["a"].tolist(), self.named["b"].tolist()

    def enter_blocking(self) -> int:
        self.weights = follow(self.model, "trainer")
        return int(self.weights.__enter__().version)

    async def enter_without(self, lacking: str) -> str:
        patches: dict[str, Any] = {
            "threads": mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")),
            "memory": mock.patch("rlinf_async.weights.following.Subscriber", side_effect=MemoryError("none is left")),
        }
        with patches[lacking]:
            return await self.try_to("enter")

    def join(self) -> None:
        """Follows, and never answers."""
        has_joined = threading.Event()

        async def connect(*_: Any) -> None:
            has_joined.set()
            await asyncio.Event().wait()

        with mock.patch.object(Subscriber, "connect", connect):
            self.make()
            assert has_joined.wait(20)

    def make(self, **options: Any) -> None:
        """Follows without entering."""
        self.weights = follow(self.model, "trainer", **options)

    def look(self, timeout: float = 20.0) -> tuple[int, set[float]]:
        with self.weights.reading(timeout) as version:
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

    async def begin_reading(self) -> int:
        self._reading = self.weights.reading()
        return int(await self._reading.__aenter__())

    async def end_reading(self) -> tuple[int, set[float]]:
        """What the model had until then."""
        found = self.weights.version, self.model.values()
        await self._reading.__aexit__()
        return found

    async def backward(self) -> None:
        self.loss.backward()

    def forward(self) -> None:
        """Begins a training step, which saves parameters and views of them for its backward pass."""
        inputs = torch.ones(2, self.model.head.in_features, requires_grad=True)
        self.loss = self.model.head(self.model.layers(inputs)).sum() + (self.model.head.weight**2).sum()

    def keep_snapshot(self) -> None:
        self.kept = {name: tensor.detach() for name, tensor in self.model.state_dict().items()}

    def snapshot(self) -> set[float]:
        return shown(self.kept)

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


class Groups:
    """Groups of one cluster; the next test has the same ones where it asks for the same, and they still work."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._groups: dict[str, tuple[Any, Any]] = {}

    def __call__(self, kind: type[Worker], name: str, *nodes: int, is_new: bool = False) -> Any:
        shape, group = self._groups.get(name, (None, None))
        if group is None or is_new or shape != (kind, nodes):
            self._drop(name)
            group = kind.create_group().launch(self._cluster, name=name, placement=NodePlacementStrategy(list(nodes)))
            self._groups[name] = ((kind, nodes), group)
        return group.wait_ready()

    def begin_anew(self) -> None:
        """Those that are broken are closed."""
        for name, (_, group) in list(self._groups.items()):
            try:
                group.begin_anew().wait(20)
            except Exception:
                self._drop(name)

    def _drop(self, name: str) -> None:
        _, group = self._groups.pop(name, (None, None))
        if group is not None:
            group.close()

    def close(self) -> None:
        for name in list(self._groups):
            self._drop(name)

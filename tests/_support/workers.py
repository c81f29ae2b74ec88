"""Worker classes that the tests launch."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker, WorkerGroup

OVERWRITE_ENVIRONMENT = """
import ctypes, os
for name, value in os.environ.items():
    os.putenv(name, value)
start, end = map(int, open("/proc/self/stat").read().rpartition(")")[2].split()[47:49])
ctypes.memset(start, 0, end - start)
"""
"""Code that empties ``/proc/PID/environ``, as ``setproctitle`` does, and leaves ``os.environ``."""


class ExitsOnArrival:
    def __reduce__(self) -> Any:
        return sys.exit, (3,)


class OddError(Exception):
    """An exception whose constructor does not take its ``args``."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Plain(Worker):
    """A bit of everything."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        self.scale = scale
        self.log: list[Any] = []
        self.cancelled = False

    def hello(self) -> int:
        return self._rank

    def scaled(self, value: float) -> float:
        return value * self.scale

    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    async def acho(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    async def areturn(self, channel: str) -> Any:
        """A ``Work`` in place of an item."""
        return Channel.connect(channel).get(async_op=True)

    def pid(self) -> int:
        return os.getpid()

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    def run(self, expression: str) -> Any:
        """Evaluates Python in the worker."""
        return eval(expression, {"self": self, "os": os, "sys": sys, "asyncio": asyncio, "Path": Path})

    def note(self, what: Any) -> None:
        self.log.append(what)

    async def anote(self, what: Any) -> None:
        self.log.append(what)

    def noted(self) -> list[Any]:
        return self.log

    async def sleep(self, seconds: float) -> float:
        self.log.append("sleeping")
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled = True
            self.log.append(("cancelled", time.monotonic()))
            raise
        return seconds

    def block(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    async def fail_after(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise ValueError("as told")

    async def crowd(self) -> int:
        """The most calls of this method that were ever inside it at once."""
        self.inside = getattr(self, "inside", 0) + 1
        self.most = max(getattr(self, "most", 0), self.inside)
        await asyncio.sleep(0.01)
        self.inside -= 1
        return self.most

    def was_cancelled(self) -> bool:
        return self.cancelled

    def fail(self, ranks: list[int], text: str = "as told") -> int:
        if self._rank in ranks:
            raise ValueError(text)
        return self._rank

    def block_and_fail(self, seconds: float) -> None:
        time.sleep(seconds)
        raise ValueError("as told")

    async def stream_and_clean_up(self, seconds: float) -> Any:
        try:
            while True:
                yield 1
        finally:
            try:
                await asyncio.sleep(seconds)
                self.log.append("cleaned")
            except asyncio.CancelledError:
                self.log.append("interrupted")

    def generate(self) -> Any:
        yield 1

    @classmethod
    def name_of_class(cls) -> str:
        return cls.__name__

    def find_by_name(self, name: str) -> Any:
        return WorkerGroup.from_group_name(Plain, name).hello().wait()

    def fail_oddly(self) -> None:
        raise OddError("this", "that")

    def leave(self) -> None:
        sys.exit(3)

    def give_exit(self) -> Any:
        return ExitsOnArrival()

    def interrupt(self) -> None:
        raise KeyboardInterrupt

    def die(self, ranks: list[int], how: str) -> int:
        if self._rank in ranks:
            print(f"last words of rank {self._rank}", file=sys.stderr, flush=True)
            if how == "exit":
                os._exit(3)
            os.kill(os.getpid(), getattr(signal, how))
            time.sleep(60)
        return self._rank

    def run_loop(self) -> int:
        async def inner() -> int:
            await asyncio.sleep(0)
            return self._rank

        return asyncio.run(inner())

    async def count(self, n: int) -> Any:
        try:
            for i in range(n):
                self.log.append(i)
                yield i
        finally:
            self.log.append("closed")

    async def fail_when_closed(self) -> Any:
        self.log.append("begun")
        try:
            yield 0
            await asyncio.sleep(600)
        finally:
            raise ValueError("the file cannot be closed")

    async def count_slowly(self, seconds: float) -> Any:
        yield 0
        await asyncio.sleep(seconds)
        yield 1

    async def count_and_fail(self, n: int) -> Any:
        for i in range(n):
            yield i
        raise ValueError(f"after {n}")

    def unpicklable(self) -> Any:
        return {"fine": 1, "bad": (1, [sys._getframe()])}

    def leave_behind(self) -> list[int]:
        """A child, a grandchild in a session of its own, and a forked child that changes its session."""
        code = "import subprocess,sys,time; p=subprocess.Popen([sys.executable,'-c','import time; time.sleep(600)'],start_new_session=True); print(p.pid, flush=True); time.sleep(600)"  # noqa: E501
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        forked = os.fork()
        if forked == 0:
            os.setsid()
            time.sleep(600)
            os._exit(0)
        return [child.pid, grandchild, forked]


class SeedWorker(Worker):
    """The documentation's ``MyWorker``, on the CPU."""

    def __init__(self) -> None:
        super().__init__()

    def initialize(self) -> Any:
        import torch

        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group(backend="gloo")

        test_tensor = torch.ones(size=(1, 1), dtype=torch.float32)
        torch.distributed.all_reduce(test_tensor)
        return test_tensor

    def initialize_without_arguments(self) -> Any:
        import torch

        torch.distributed.init_process_group()
        return torch.distributed.get_rank(), torch.distributed.get_world_size()

    def hello(self) -> int:
        return self._rank

    def reduce_unless(self, failing: int) -> Any:
        import torch

        if self._rank == failing:
            raise ValueError("not this time")
        tensor = torch.ones(1)
        torch.distributed.all_reduce(tensor)
        return tensor

    def listeners(self) -> list[str]:
        import psutil

        return [
            entry.laddr.ip for entry in psutil.Process().net_connections("inet") if entry.status == psutil.CONN_LISTEN
        ]


class TimedWorker(Worker):
    """The documentation's timer examples."""

    def __init__(self) -> None:
        super().__init__()

    @Worker.timer("run_training")
    def run_training(self, batch: list[int]) -> int:
        return self.train_step(batch)

    @Worker.timer("train_step")
    def train_step(self, batch: list[int]) -> int:
        time.sleep(0.01 * (self._rank + 1))
        return sum(batch)

    def run_with_context(self, batch: list[int]) -> int:
        with self.worker_timer("run_training"):
            return self.train_step(batch)

    @Worker.timer()
    async def run_async(self) -> int:
        await asyncio.sleep(0.01)
        return self._rank


class Parent(Worker):
    """Launches a group of its own."""

    def __init__(self) -> None:
        super().__init__()

    def children(self) -> list[Any]:
        cluster = Cluster()
        group = Plain.create_group(10).launch(cluster, placement=NodePlacementStrategy([self._cluster_node_rank] * 2))
        self.group = group
        names = group.run("self.get_name()").wait()
        return [names, group.scaled(self._rank).wait()]

    async def children_async(self) -> list[Any]:
        cluster = await Cluster()
        async with Plain.create_group(10).launch(
            cluster, placement=NodePlacementStrategy([self._cluster_node_rank] * 2), name=f"of-{self._rank}"
        ) as group:
            return await group.scaled(self._rank)

    def child_pids(self) -> list[int]:
        return self.group.pid().wait()


class Stillborn(Worker):
    def __init__(self, ranks: list[int]) -> None:
        super().__init__()
        if self._rank in ranks:
            raise ValueError("not born today")

    def hello(self) -> int:
        return self._rank


class NamesTaken(Worker):
    def launch(self) -> None: ...

    def execute_on(self) -> None: ...


class Seeded(Worker):
    def __init__(self) -> None:
        super().__init__()

    def draw(self) -> tuple[float, float, float]:
        import random

        import numpy as np
        import torch

        return random.random(), float(np.random.rand()), float(torch.rand(1))

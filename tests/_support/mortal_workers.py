"""Workers that die as they are told, for the tests of restarts."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist

from rlinf_async import Restart, Worker, follow, idempotent, publish
from rlinf_async._worker.runtime import Runtime


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Mortal(Worker):
    """
    Args:
        token: what it was constructed with.
        deaths: a file; as long as it has words, a constructor takes one and dies, or fails where it says so.
        at_once: that of the first incarnation too.
    """

    def __init__(self, token: Any = None, deaths: str = "", at_once: bool = False) -> None:
        super().__init__()
        self.token = token
        self.seen: list[Any] = []
        if deaths and (self._restarts or at_once):
            with open(deaths, "r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # ranks are constructed at the same time
                word, *left = file.read().split() or [""]
                file.seek(0)
                file.truncate()
                file.write(" ".join(left))
            if word == "raise":
                raise ValueError("not yet")
            if word:
                die()

    def who(self) -> tuple[int, int, int]:
        return self._rank, self._restarts, os.getpid()

    def facts(self) -> dict[str, Any]:
        info = self.worker_info
        environment = {name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "MINE")}
        return {"address": str(info.address), "node": info.cluster_node_rank, "token": self.token, **environment}

    def die(self) -> None:
        die()

    def note(self, value: Any) -> list[Any]:
        self.seen.append(value)
        return self.seen

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def write(self, journal: Path, number: int, dies_with: Path | None = None) -> None:
        """Appends the number, and dies once there is such a file."""
        with journal.open("a") as file:
            file.write(f"{number} ")
        if dies_with is not None:
            while not dies_with.exists():
                time.sleep(0.01)
            die()

    def die_before_the_answer(self) -> int:
        """Has a result, and dies where its answer would be sent."""
        Runtime._send = lambda *args: die()  # type: ignore[method-assign]
        return 7

    @idempotent
    def once_more(self, value: Any, path: str) -> Any:
        """Dies at the first time, where there is no such file yet."""
        if not os.path.exists(path) and self._rank == 1:
            Path(path).touch()
            die()
        return self._rank, self._restarts, value

    @idempotent
    def echo(self, value: Any) -> Any:
        return value

    def devices(self) -> tuple[int, str]:
        return self.worker_info.cluster_node_rank, os.environ["VISIBLE_DEVICES"]

    @idempotent
    def census(self) -> tuple[int, int, int]:
        return self.who()

    @idempotent
    async def take_one(self, channel: Any) -> Any:
        return await channel.get(async_op=True)

    async def take(self, group: str, rank: int) -> Any:
        return await self.recv(group, rank, async_op=True)

    async def give(self, value: Any, group: str, rank: int) -> None:
        await self.send(value, group, rank, async_op=True)

    async def get(self, channel: Any) -> Any:
        return await channel.get(async_op=True)

    async def hold(self, channel: Any) -> None:
        """Dies of an item that it has got and not returned."""
        works = [channel.get(async_op=True)]
        time.sleep(0.2)
        del works
        die()


def _recipe() -> Callable[[Worker, Restart], None]:
    """Return the hook that the page about deaths shows."""
    page = (Path(__file__).parents[2] / "docs" / "supervision.md").read_text()
    (code,) = re.findall(r"^    def on_restart.*?\n(?=\n)", page, re.MULTILINE | re.DOTALL)
    scope: dict[str, Any] = {"os": os, "dist": dist}
    exec(textwrap.dedent(code), scope)
    recipe: Callable[[Worker, Restart], None] = scope["on_restart"]
    return recipe


class Together(Mortal):
    """Ranks with a process group of torch's, made anew when one has come back.

    Args:
        doomed: by attempt, the rank whose hook dies once the others wait for it.
    """

    def __init__(self, doomed: Mapping[int, int] = MappingProxyType({})) -> None:
        super().__init__()
        self._doomed = dict(doomed)
        self._told: list[Restart] = []
        if not self._restarts:
            dist.init_process_group("gloo")

    def on_restart(self, restart: Restart) -> None:
        self._told.append(restart)
        if self._doomed.get(restart.attempt) == self._rank:
            time.sleep(0.3)
            die()
        _recipe()(self, restart)

    def total(self) -> float:
        tensor = torch.tensor([float(self._rank + 1)])
        dist.all_reduce(tensor)
        return float(tensor)

    def told(self) -> list[Restart]:
        return self._told


class Teacher(Worker):
    """Publishes a model to a group that may lose ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(4, 4)

    def pid(self) -> int:
        return os.getpid()

    async def begin(self, to: str) -> None:
        self.scope = publish(self.model, to=to)
        self.weights = await self.scope.__aenter__()

    async def step(self, value: float) -> int:
        with torch.no_grad():
            self.model.weight.fill_(value)
        version: int = await self.weights.send()
        return version

    async def delivered(self) -> list[str]:
        return sorted(map(str, (await self.weights.delivered()).per_worker))

    async def end(self) -> None:
        await self.scope.__aexit__(None, None, None)


class Pupil(Mortal):
    async def join(self, group: str) -> int:
        self.model = torch.nn.Linear(4, 4)
        self.scope = follow(self.model, group)
        self.weights = await self.scope.__aenter__()
        return self.weights.version

    def shown(self) -> tuple[int, float]:
        return self.weights.version, float(self.model.weight[0, 0])

"""Cost of a version in Python: the files and the calls that trainer and follower enter for one of 17 KB."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from types import CodeType, FrameType
from typing import Any, Final

import pytest
import torch

import rlinf_async
from rlinf_async import Cluster, NodePlacementStrategy, Worker, follow, publish
from rlinf_async.testing import SimCluster

MOST_FILES: Final = 64
MOST_CALLS: Final = 600

_PACKAGE: Final = rlinf_async.__path__[0]
_SIMULATION: Final = f"{_PACKAGE}/_simulation/"


class Profile:
    """Code of the package that a trainer and a follower enter in a simulation, while ``is_on``."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self.is_on = False
        self.sim: SimCluster

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if self.is_on and event == "call" and name.startswith(_PACKAGE) and not name.startswith(_SIMULATION):
            process = self.sim.scheduler.current
            if process is not None and process.name.startswith(("trainer", "rollout")):
                self.calls[frame.f_code] += 1

    @property
    def files(self) -> Counter[str]:
        files: Counter[str] = Counter()
        for code, count in self.calls.items():
            files[code.co_filename.removeprefix(_PACKAGE)] += count
        return files

    def __str__(self) -> str:
        lines = (f"{count:5} {name}" for name, count in self.files.most_common())
        return f"{len(self.files)} files and {self.calls.total()} calls\n" + "\n".join(lines)


_profile = Profile()


class End(Worker):
    """A trainer or a follower, whose model is one ``Linear`` of 17 KB."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(64, 67)
        self.weights: Any = None

    async def train(self) -> None:
        self.weights = await publish(self.model, to="rollout").__aenter__()

    async def send_thrice(self) -> None:
        """Send three versions; what the third one costs is counted until nothing happens any more."""
        for is_on in (False, False, True):
            _profile.is_on = is_on
            await self.weights.send()
            await asyncio.sleep(1)
        _profile.is_on = False

    async def follow(self) -> None:
        self.weights = await follow(self.model, of="trainer").__aenter__()

    async def leave(self) -> int:
        version = int(self.weights.version)
        await self.weights.__aexit__(None, None, None)
        return version


async def measure() -> Any:
    async with Cluster(log_to_driver=False) as cluster:
        trainer, rollout = (
            End.create_group().launch(cluster, NodePlacementStrategy([0]), name=name) for name in ("trainer", "rollout")
        )
        await trainer.train()
        await rollout.follow()
        await trainer.send_thrice()
        return [*await trainer.leave(), *await rollout.leave()]


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger or a coverage tool takes part")
def test_a_version_of_17_kb_enters_few_files_and_calls() -> None:
    _profile.sim = SimCluster(nodes=1, seed=1)
    before = sys.getprofile()
    threading.setprofile(_profile)
    sys.setprofile(_profile)
    try:
        assert _profile.sim.run(measure) == [4, 4]
    finally:
        sys.setprofile(before)
        threading.setprofile(before)
    print(_profile)
    assert len(_profile.files) <= MOST_FILES, str(_profile)
    assert _profile.calls.total() <= MOST_CALLS, str(_profile)

"""A program that trains with the collectors of the TorchRL that is installed, and writes down what they have collected.

It is one of its own, because importing TorchRL changes TensorDict, warnings and multiprocessing for its whole process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import Composite, Unbounded
from torchrl.envs import EnvBase

from rlinf_async.torchrl import (
    DistributedWeightSyncScheme,
    MultiProcessWeightSyncScheme,
    RPCWeightSyncScheme,
    SharedMemWeightSyncScheme,
)
from rlinf_async.torchrl.collectors import CollectorScheme

KINDS: dict[str, Callable[[], Any]] = {
    "multiprocess": MultiProcessWeightSyncScheme,
    "shared memory": lambda: SharedMemWeightSyncScheme(apply="map"),
    "distributed": DistributedWeightSyncScheme,
}


class Still(EnvBase):
    """Shows ones, whatever is done."""

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Unbounded((width,))
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict: Any, **_: Any) -> Any:
        return TensorDict({"observation": torch.ones(1)})

    def _step(self, tensordict: Any) -> Any:
        done = torch.zeros(1, dtype=torch.bool)
        return TensorDict({"observation": torch.ones(1), "reward": tensordict["action"][:1], "done": done})

    def _set_seed(self, seed: int | None) -> None:
        pass


class Linear(nn.Module):
    """Has a buffer that is in no state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.register_buffer("offset", torch.full((1,), 0.5), persistent=False)

    def forward(self, observation: torch.Tensor) -> Any:
        return self.linear(observation) + self.offset


class Wide(nn.Module):
    """Acts by both ends of a tensor, which it takes its time to read."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(1 << 20))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        first = self.values[:1].clone()
        self.values.sum()
        return torch.cat([first, self.values[-1:]])


def policy_of(module: nn.Module) -> Any:
    return TensorDictModule(module, ["observation"], ["action"])


def act(policy: Any) -> float:
    with torch.no_grad():
        return float(policy(TensorDict({"observation": torch.ones(1)}))["action"])


def train(kind: str, dies: bool = True) -> dict[str, Any]:
    """Batches of two workers, each with what the policy would do; then one by weights that are given, and a death."""
    policy, other = policy_of(Linear()), policy_of(Linear())
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.2)
    scheme = CollectorScheme(KINDS[kind]())
    collector = MultiSyncCollector(
        [Still, Still],
        policy,
        frames_per_batch=8,
        total_frames=-1,
        weight_sync_schemes={"policy": scheme},
        track_policy_version=True,
    )
    batches, expected, versions = [], [], []

    def collect(policy: Any) -> Any:
        batch = next(data)
        batches.append(batch["action"].flatten().tolist())
        versions.append(batch["next", "policy_version"].flatten().tolist())
        expected.append(act(policy))
        return batch

    data = iter(collector)
    for _ in range(4):
        batch = collect(policy)
        optimizer.zero_grad()
        (policy(batch)["action"] - 3).square().mean().backward()
        optimizer.step()
        collector.update_policy_weights_()
    collector.update_policy_weights_(TensorDict.from_module(other))
    collect(other)
    story: dict[str, Any] = {"batches": batches, "expected": expected, "versions": versions}
    if dies:
        story |= die(collector, scheme)
    collector.shutdown()
    scheme.shutdown()
    return story


def begin_by_factory() -> dict[str, Any]:
    """Workers whose policies are made where they are, at random; then one by weights that are given."""
    policy, scheme = policy_of(Linear()), CollectorScheme(MultiProcessWeightSyncScheme())
    collector = MultiSyncCollector(
        [Still, Still],
        policy_factory=lambda: policy_of(Linear()),
        frames_per_batch=8,
        total_frames=-1,
        weight_sync_schemes={"policy": scheme},
    )
    data = iter(collector)
    first = next(data)["action"].flatten().tolist()
    collector.update_policy_weights_(policy)
    second = next(data)["action"].flatten().tolist()
    collector.shutdown()
    scheme.shutdown()
    return {"first": first, "second": second, "expected": act(policy)}


def die(collector: Any, scheme: Any) -> dict[str, Any]:
    os.kill(collector.procs[0].pid, signal.SIGKILL)
    begun = time.monotonic()
    error, took = refused(collector.update_policy_weights_), time.monotonic() - begun
    return {"error": error, "took": took, "survivor": scheme.send(worker_ids=[1]).version}


def collect_apart(scheme: Any, pipe: Any) -> None:
    """A process of one's own with a collector, which collects when it is told to."""
    collector = Collector(
        lambda: Still(2),
        policy_of(Wide()),
        frames_per_batch=200,
        total_frames=-1,
        weight_recv_schemes={"policy": scheme},
    )
    for batch in collector:
        pipe.send(batch["action"].tolist())
        if not pipe.recv():
            return


def apart() -> dict[str, Any]:
    module = Wide()
    scheme = CollectorScheme(MultiProcessWeightSyncScheme())
    scheme.init_on_sender(model_id="policy", model=policy_of(module), num_workers=1)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=collect_apart, args=(scheme, theirs))
    process.start()
    theirs.close()
    scheme.connect()

    def send(value: float) -> None:
        module.values.data.fill_(value)
        scheme.send()

    exact = [ours.recv()]
    for value in (1.0, 2.0):
        send(value)
        ours.send(True)
        exact.append(ours.recv())
    ours.send(True)
    value = 3.0
    while not ours.poll():
        send(value := value + 1)
    during = ours.recv()
    ours.send(False)
    process.join(20)
    scheme.shutdown()
    return {"exact": exact, "during": during, "sent": value, "code": process.exitcode}


def broken() -> Any:
    raise ValueError("this environment is broken")


def refused(use: Callable[[], Any]) -> str:
    try:
        use()
    except Exception as error:
        return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
    return ""


def interrupted(use: Callable[[], Any]) -> str:
    timer = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    try:
        use()
    except (KeyboardInterrupt, RuntimeError) as error:
        return repr(error)
    finally:
        timer.cancel()
    return ""


def begin_broken(kind: str) -> tuple[str, float]:
    scheme, begun = CollectorScheme(KINDS[kind]()), time.monotonic()
    said = refused(
        lambda: MultiSyncCollector(
            [Still, broken], policy_of(Linear()), frames_per_batch=8, weight_sync_schemes={"policy": scheme}
        )
    )
    scheme.shutdown()
    return said, time.monotonic() - begun


def refusals() -> dict[str, Any]:
    policy = policy_of(Linear())
    frames: dict[str, Any] = {"frames_per_batch": 4}

    async def send() -> None:
        sender.send()

    own, sender = (CollectorScheme(MultiProcessWeightSyncScheme()) for _ in range(2))
    found: dict[str, Any] = {
        "other schemes": refused(lambda: CollectorScheme(RPCWeightSyncScheme())),
        "without workers": refused(lambda: Collector(Still, policy, **frames, weight_sync_schemes={"policy": own})),
        "no module": refused(lambda: own.init_on_sender(model_id="policy", model=len, num_workers=1)),
    }
    for each in (own, sender):
        each.init_on_sender(model_id="policy", model=policy, num_workers=1)
    idle = multiprocessing.Process(target=signal.pause)  # keeps the worker's end of the pipe, and never reads
    idle.start()
    sender.connect()
    found["interrupted"] = [interrupted(sender.send) for _ in range(2)]
    found["too early"] = refused(own.send)
    found["no such worker"] = refused(
        lambda: Collector(Still, policy, **frames, worker_idx=1, weight_recv_schemes={"policy": copy(own)})
    )
    found["not a leaf"] = refused(
        lambda: MultiSyncCollector([Still], policy, **frames, weight_recv_schemes={"policy": copy(own)})
    )
    found["coroutine"] = refused(lambda: asyncio.run(send()))
    for each in (own, sender):
        each.shutdown()
    idle.kill()
    return found


def main() -> None:
    multiprocessing.set_start_method("fork", force=True)  # over what TorchRL has chosen
    story: dict[str, Any] = {"forked": each(train), "broken": each(begin_broken), "refusals": refusals()}
    story["factory"] = begin_by_factory()
    multiprocessing.set_start_method("forkserver", force=True)  # workers get all of it pickled, as spawned ones do
    story |= {"apart": apart(), "pickled": each(lambda kind: train(kind, dies=False))}
    print(json.dumps(story))


def each(case: Callable[[str], Any]) -> dict[str, Any]:
    told = {}
    for kind in KINDS:
        told[kind] = case(kind)
        gc.collect()  # in a forked process a TCPStore would wait for its thread, which is not there
    return told

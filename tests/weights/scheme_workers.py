"""Trainer and rollout workers that use schemes."""

from __future__ import annotations

import asyncio
from typing import Any

from rlinf_async import RPCWeightSyncScheme, Worker, WorkerModuleTransformScheme, WorkerWeightSyncScheme
from tests._support.dying_model import Fragile

CALLS = {
    "worker": (WorkerWeightSyncScheme, "remote_collectors"),
    "rpc": (RPCWeightSyncScheme, "remote_collectors"),
    "module transform": (WorkerModuleTransformScheme, "actors"),
}


class Trainer(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.model = Fragile(width=3)
        self.scheme: Any = None

    def fill(self, value: float) -> None:
        self.model.fill(value)

    async def begin(self, scheme: Any, receivers: Any, name: str = "policy", timeout: float = 60.0) -> None:
        self.scheme = scheme
        scheme.init_on_sender(name, receivers=receivers, source_model=self.model)
        await scheme.connect(timeout=timeout)

    async def send(self, value: float, order: Any = None, **options: Any) -> Any:
        self.model.fill(value)
        self.model.order = order
        report = await self.scheme.get_sender().send(**options)
        return report.version, sorted(report.per_worker)

    async def send_and_go_on(self, value: float) -> int:
        """The model is trained on while its weights are on the way."""
        sender = self.scheme.get_sender()
        self.model.fill(value)
        await sender.send_async()
        self.model.fill(-1.0)
        return (await sender.wait_async()).version

    def send_blocking(self, value: float) -> int:
        self.model.fill(value)
        version: int = self.scheme.get_sender().send().version
        return version

    async def finish(self) -> None:
        await self.scheme.close()


class Rollout(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.model = Fragile(width=3, me=self._rank)
        self.scheme: Any = None
        self.serving: Any = None

    async def begin(self, scheme: Any, sender: Any, name: str = "policy") -> None:
        self.scheme = scheme
        scheme.init_on_worker(name, sender=sender, model=self.model)
        await scheme.connect()
        self.serving = scheme.get_receiver().serve()

    def begin_called(self, scheme: Any) -> None:
        self.scheme = scheme
        scheme.init_on_worker("policy", model=self.model)

    async def update_policy_weights_(self, policy_or_weights: Any) -> None:
        await self.scheme.get_receiver().apply_weights(policy_or_weights)

    async def update_weights_tensordict(self, params: Any) -> None:
        await self.scheme.get_receiver().apply_weights(params)

    async def update_weights_state_dict(self, state_dict: Any) -> None:
        await self.scheme.get_receiver().apply_weights(state_dict)

    async def look(self) -> tuple[int, set[float]]:
        async with self.scheme.get_receiver().reading() as version:
            return version, self.model.values()

    def receive_blocking(self, sender: Any, scheme: Any, last: int) -> list[tuple[int, set[float]]]:
        """Each version that it had, until that one; a receive takes all that have come."""
        self.scheme = scheme
        scheme.init_on_worker("policy", sender=sender, model=self.model)
        receiver = scheme.get_receiver()
        found = []
        while receiver.version < last:
            assert receiver.receive(30.0) is True
            found.append((receiver.version, self.model.values()))
        return found

    async def finish(self) -> None:
        await self.scheme.close()
        await asyncio.sleep(0)

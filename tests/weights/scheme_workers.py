"""A trainer and rollout workers that use schemes."""

from __future__ import annotations

import asyncio
from typing import Any

from rlinf_async import RPCWeightSyncScheme, Worker, WorkerModuleTransformScheme, WorkerWeightSyncScheme
from tests.weights.ends import Tied

CALLS = {
    "worker": (WorkerWeightSyncScheme, "remote_collectors"),
    "rpc": (RPCWeightSyncScheme, "remote_collectors"),
    "module transform": (WorkerModuleTransformScheme, "actors"),
}


class Trainer(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.model = Tied()
        self.scheme: Any = None

    async def begin(self, scheme: Any, receivers: Any, name: str = "policy") -> None:
        self.scheme = scheme
        scheme.init_on_sender(name, receivers=receivers, source_model=self.model)
        await scheme.connect()

    async def send(self, value: float, **options: Any) -> Any:
        self.model.fill(value)
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
        self.model = Tied()
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

    def receive_blocking(self, sender: Any, scheme: Any) -> tuple[int, set[float]]:
        self.scheme = scheme
        scheme.init_on_worker("policy", sender=sender, model=self.model)
        receiver = scheme.get_receiver()
        assert receiver.receive(30.0) is True
        return receiver.version, self.model.values()

    async def finish(self) -> None:
        await self.scheme.close()
        await asyncio.sleep(0)

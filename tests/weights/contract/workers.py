"""Workers of the conformance suite: a trainer that runs the claims, and receivers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlinf_async import (
    DistributedWeightSyncScheme,
    NoWeightSyncScheme,
    RPCWeightSyncScheme,
    Worker,
    WorkerGroup,
    WorkerModuleTransformScheme,
    WorkerWeightSyncScheme,
)
from tests.weights.contract.claims import Ends, Receiving
from tests.weights.contract.suite import CLAIMS, Make, Way, claims_apart

HANDLES: Final = {
    "worker call": "remote_collectors",
    "rpc call": "remote_collectors",
    "module transform call": "actors",
}

KINDS: Final[dict[str, Any]] = {
    "linked": WorkerWeightSyncScheme,
    "distributed": DistributedWeightSyncScheme,
    "worker call": WorkerWeightSyncScheme,
    "rpc call": RPCWeightSyncScheme,
    "module transform call": WorkerModuleTransformScheme,
    "none": NoWeightSyncScheme,
}


class Rollout(Receiving, Worker):
    """One that weights come to."""

    async def begin(self, scheme: Any, make: Callable[[], Any], **facts: Any) -> None:
        """
        Args:
            make: gives the model.
            facts: how it is found: ``sender``, of a linked scheme; ``store``, address and port, of a torch job.
        """
        model = make()
        if "store" in facts:
            facts |= {"store": TCPStore(facts["store"][0], facts["store"][1], is_master=False), "rank": 1}
        scheme.init_on_worker("policy", model=model, **facts)
        self.put(scheme, model)

    async def update_policy_weights_(self, policy_or_weights: Any, version: int | None = None) -> None:
        await self.receiver.apply_weights(policy_or_weights, version)

    async def update_weights_tensordict(self, params: Any, version: int | None = None) -> None:
        await self.receiver.apply_weights(params, version)

    async def update_weights_state_dict(self, state_dict: Any, version: int | None = None) -> None:
        await self.receiver.apply_weights(state_dict, version)


class Trainer(Worker):
    """The one that sends.

    Args:
        address: under which the others reach its machine.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def meet(self, name: str) -> None:
        """From now on it sends to that group."""
        self._rollout: Any = WorkerGroup.from_group_name(Rollout, name)

    async def keep(self, way: Way) -> list[str]:
        """Tries everything that is claimed of it; what that is.

        Raises:
            Exception: what is not so; the note says which claim that was.
        """
        names = claims_apart(way)
        for name in names:
            try:
                await CLAIMS[name](Make(way, self._opened))
            except BaseException as error:
                error.add_note(f"claimed of {way}: {name}")
                raise
        return names

    @contextlib.asynccontextmanager
    async def _opened(self, way: Way, source: Any, model: Callable[[], Any], **options: Any) -> AsyncIterator[Ends]:
        scheme = KINDS[way.kind](strategy=way.strategy, **options)
        group, size = self._rollout, len(self._rollout)
        last = group.execute_on(size - 1)
        facts: dict[str, Any] = {}
        if way.kind == "linked":
            facts = {"receivers": [(group.worker_group_name, rank) for rank in range(size)]}
            where: dict[str, Any] = {"sender": (self._group_name, self._rank)}
        elif way.kind == "distributed":
            store = TCPStore(self._address, 0, is_master=True, wait_for_workers=False)
            group, size = last, 1
            facts = {"store": store, "num_workers": size}
            where = {"store": (self._address, store.port)}
        else:
            if way.kind == "module transform call":
                group, size = last, 1
            facts = {HANDLES[way.kind]: group} if way.is_called else {}
            where = {}
        scheme.init_on_sender("policy", source_model=source, **facts)
        try:
            await group.begin(scheme, model, **where)
            yield Ends(scheme, group, last, size)
        finally:
            await scheme.close()
            await group.close_ends()

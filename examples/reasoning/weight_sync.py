"""Weight synchronisation from actor rank 0 to all rollout ranks, in whole versions, without blocking the actor."""

from __future__ import annotations

from typing import Any, Final

from rlinf_async.weights import WorkerWeightSyncScheme

_MODEL: Final = "policy"
_PATIENCE: Final = 120.0
"""Seconds for a version that has been sent: twice those for which the sender waits."""


class WeightSource:
    """The end at rank 0 of the actor; ``receivers`` is the name of a group, all of whose ranks get the weights."""

    def __init__(self, model: Any, receivers: str) -> None:
        scheme = WorkerWeightSyncScheme()
        scheme.init_on_sender(_MODEL, receivers=receivers, source_model=model)
        self._sender = scheme.get_sender()

    async def send(self, version: int) -> None:
        """Returns when the model may change again; a version that was sent already is not sent again.

        Raises:
            DeadlineExceeded, WorkerDied: a receiver has not taken the version before, or has died.
        """
        before = self._sender.version
        if version == before:
            return
        if before:
            await self._sender.wait_async()
        await self._sender.send_async(version=version)


class WeightSink:
    """The end at a rank of the rollout group; ``sender`` is the group and rank of the other one."""

    def __init__(self, model: Any, sender: tuple[str, int]) -> None:
        scheme = WorkerWeightSyncScheme()
        scheme.init_on_receiver(_MODEL, sender=sender, model=model)
        self._receiver = scheme.get_receiver()

    def reading(self) -> Any:
        """``with`` it around a use of the model: its weights stay as they are, and their version is what it gives."""
        return self._receiver.reading()

    async def receive(self, version: int) -> None:
        """Waits until the model has these weights, which are on their way.

        Raises:
            DeadlineExceeded: they have not come in time.
            WorkerDied: the actor has died before.
        """
        await self._receiver.wait_version(version, _PATIENCE)

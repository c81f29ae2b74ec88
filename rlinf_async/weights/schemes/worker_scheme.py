"""The scheme and the transport that send weights from one worker group to another."""

from __future__ import annotations

from typing import Any

from rlinf_async._worker.context import require_exchange
from rlinf_async.weights.links.weight_link import WeightLink
from rlinf_async.weights.links.worker_link import WorkerLink
from rlinf_async.weights.schemes.called import CallingScheme
from rlinf_async.weights.schemes.scheme import WeightSyncScheme, register_weight_sync_backend
from rlinf_async.weights.schemes.sender import WeightSender
from rlinf_async.weights.transports.call_transports import WorkerTransport
from rlinf_async.weights.transports.transport import LinkTransport, TransportBackend
from rlinf_async.weights.waiting.execution import at_once


class WorkerLinkTransport(LinkTransport):
    """A transport from one worker to another, on the same node or another, over a private stream.

    Receivers on the sender's node read the weights in its memory; each other node receives them once.

    Args:
        group, rank: group and rank of the other worker.
    """

    def __init__(self, group: str, rank: int) -> None:
        self._member = (group, rank)

    def __repr__(self) -> str:
        return f"<WorkerLinkTransport to {self._member[0]}:{self._member[1]}>"

    def _make_link(self, name: str) -> WeightLink:
        return WorkerLink(*self._member, name)

    def check_connection(self) -> bool:
        """True unless the link is known to have ended."""
        return self._link is None or self._link.error is None

    def send_weights(self, model_id: str, weights: Any) -> Any:
        """Refuse to send to a single worker.

        Raises:
            NotImplementedError: always, because a sender publishes to all its workers at once.
        """
        raise NotImplementedError(f"{self!r} is a worker's part of a sender: use that one")

    def receive_weights(self, timeout: float = 1.0) -> Any:
        """Return None, because weights arrive only over the link."""
        return at_once()

    def __getstate__(self) -> dict[str, Any]:
        return {"_member": self._member}


class _GroupSender(WeightSender):
    """A sender to a group, whose size it looks up at the first send."""

    def __init__(self, scheme: WeightSyncScheme) -> None:
        super().__init__(scheme)
        self._group: str | None = None

    async def _find_workers(self, timeout: float | None) -> None:
        if self._group is not None:
            size = await require_exchange().find_group(self._group).async_wait(timeout)
            for rank in range(size):
                self._register_worker(rank, (self._group, rank))
            self._group = None

    @property
    def _publishes(self) -> bool:
        return True

    @property
    def _is_complete(self) -> bool:
        return self._group is None


@register_weight_sync_backend("ray")
@register_weight_sync_backend("worker")
class WorkerWeightSyncScheme(CallingScheme):
    """A scheme for workers of this framework, one of which is the trainer (TorchRL's RayWeightSyncScheme).

    Example:
        class Trainer(Worker):
            async def train(self, scheme):
                scheme.init_on_sender("policy", receivers="rollout", source_model=self.model)
                async with scheme:                                 # every rank of "rollout" has connected
                    for batch in self.batches:
                        self.step(batch)
                        await scheme.get_sender().send_async()     # packed: the next step may begin
                        ...
                        await scheme.get_sender().wait_async()     # every worker has applied it

        class Rollout(Worker):
            async def rollout(self, scheme):
                scheme.init_on_worker("policy", sender=("trainer", 0), model=self.policy)
                async with scheme:
                    scheme.get_receiver().serve()
                    async with scheme.get_receiver().reading() as version:
                        samples = self.collect(), version

    ``init_on_worker`` takes ``model`` and ``sender``, the trainer's group and rank; without ``sender``, weights arrive
    only by calls.

    A process that holds handles, such as the driver, can send, too: with ``remote_collectors=group``, it calls every
    rank's ``update_policy_weights_(policy_or_weights)``; the weights are sent once to each node. In that case, options
    for shared memory, such as ``apply="map"``, are refused.
    """

    instead = "leave it out, or have a worker send: init_on_sender(receivers=), init_on_worker(sender=)"

    def init_on_sender(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        """Make this the trainer's end.

        Args:
            kwargs: in a worker, ``receivers``: the name of a group, meaning all its current ranks, or a list of
                ``(group, rank)``, in the order of the workers' ids. Elsewhere ``remote_collectors``: a worker group, or
                a list of groups of one rank. In both cases ``source_model``.

        Raises:
            ValueError: neither was given.
        """
        receivers = kwargs.get("receivers")
        if receivers is None:
            super().init_on_sender(model_id, context, **kwargs)
            return
        sender = _GroupSender(self)
        self._become_sender(sender, model_id, context, kwargs.get("source_model", kwargs.get("model")))
        if isinstance(receivers, str):
            sender._group = receivers
            return
        for worker_id, member in enumerate(receivers):
            sender._register_worker(worker_id, tuple(member))

    def _way_to_sender(self, context: Any, kwargs: dict[str, Any]) -> TransportBackend | None:
        source = kwargs.get("sender")
        return super()._way_to_sender(context, kwargs) if source is None else self.create_transport(source)

    def _model_of(self, model_id: str, context: Any, kwargs: dict[str, Any]) -> Any:
        owner = CallingScheme if kwargs.get("sender") is None else WeightSyncScheme
        return owner._model_of(self, model_id, context, kwargs)

    def create_transport(self, pipe_or_context: Any) -> WorkerTransport | WorkerLinkTransport:
        """Return the transport to one worker.

        Args:
            pipe_or_context: ``(group, rank)`` of the other worker; or a handle with which to call it.
        """
        if isinstance(pipe_or_context, tuple):
            return WorkerLinkTransport(*pipe_or_context)
        return WorkerTransport(pipe_or_context, timeout=self.options.ack_timeout)


RayWeightSyncScheme = WorkerWeightSyncScheme
"""TorchRL's name for the scheme."""

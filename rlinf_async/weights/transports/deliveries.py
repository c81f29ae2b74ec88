"""Deliveries through transports, each to one receiver, or to several ranks of a group in one call."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from rlinf_async._core import clock
from rlinf_async.errors import DeadlineExceeded, WrongAcknowledgement
from rlinf_async.group import WorkerGroup
from rlinf_async.weights.plane.sync_handle import Delivery, WeightsMessage
from rlinf_async.weights.transports.calls import CallTransport, cancel, finish, size_of
from rlinf_async.weights.waiting.execution import SyncAdapter


class SingleDelivery:
    """A delivery to one receiver, through any kind of transport."""

    def __init__(self, name: Hashable, transport: Any) -> None:
        self.names = (name,)
        self.has_begun = False
        self._transport = transport
        self._adapter = SyncAdapter()
        self._parcel = WeightsMessage("", 0, None, None)
        self._error: Exception | None = None
        self._waiting: Any = None
        self._size = 0

    @property
    def nbytes(self) -> int:
        found: int = getattr(self._transport, "nbytes", self._size)
        return found

    async def stage(self, parcel: WeightsMessage) -> None:
        transport, self._parcel = self._transport, parcel._replace(weights=None)
        send = getattr(transport, "send_weights_async", None) or transport.send_weights
        facts = (parcel.version, parcel.timeout) if getattr(transport, "carries_version", False) else ()
        self._size = 0 if hasattr(transport, "nbytes") else size_of(parcel.weights)
        self.has_begun = True
        try:
            await self._within(send, parcel.model_id, parcel.weights, *facts)
        except Exception as error:  # the error concerns only this receiver
            self._error = error

    async def end(self) -> dict[Hashable, Exception | None]:
        error = self._error
        if error is None and hasattr(self._transport, "wait_ack"):
            if self._waiting is None:
                self._waiting = self._adapter.run(self._within(self._transport.wait_ack), "an acknowledgement")
            try:
                await self._waiting.async_wait()
            except WrongAcknowledgement:
                self._waiting = None
                raise
            except Exception as failure:
                error = failure
        return {self.names[0]: error}

    def abandon(self) -> None:
        if self._waiting is not None:
            cancel(self._waiting)
        give_up = getattr(self._transport, "give_up", None)
        if self.has_begun and give_up is not None:
            give_up()

    async def _within(self, function: Any, *args: Any) -> None:
        what = f"version {self._parcel.version} at worker {self.names[0]} ({self._transport!r})"
        try:
            await finish(function(*args), self._parcel.timeout, what)
        except DeadlineExceeded as late:
            if what in str(late):
                raise
            raise DeadlineExceeded(f"{what}: {late}") from late


class GroupDelivery:
    """A delivery to several ranks of one group in one call, which sends the weights once to each node."""

    def __init__(self, transports: Mapping[Hashable, CallTransport]) -> None:
        self.names = tuple(transports)
        self.nbytes = 0
        groups = [transport.callee for transport in transports.values()]
        self._call = next(iter(transports.values()))
        self._group: WorkerGroup = groups[0].execute_on(*(group._ranks[0] for group in groups))
        self._parcel = WeightsMessage("", 0, None, None)
        self._handle: Any = None

    @property
    def has_begun(self) -> bool:
        return self._handle is not None

    async def stage(self, parcel: WeightsMessage) -> None:
        self.nbytes, self._parcel = size_of(parcel.weights), parcel._replace(weights=None)
        self._handle = self._call.call(self._group, parcel.weights, parcel.version)
        self._handle.outcomes()  # one rank's failure must not cancel the other ranks

    async def end(self) -> dict[Hashable, Exception | None]:
        found: dict[Hashable, Exception | None] = {}
        _, version, _, timeout = self._parcel
        begun = clock.monotonic()
        for slot, name in enumerate(self.names):
            found[name] = None
            try:
                await self._handle[slot].async_wait(clock.rest(timeout, begun))
            except DeadlineExceeded as late:
                found[name] = DeadlineExceeded(
                    f"worker {name} has not taken version {version} within {timeout:g} s: {late}"
                )
            except Exception as error:
                found[name] = error
        self.abandon()  # cancels the call on late ranks
        return found

    def abandon(self) -> None:
        if self._handle is not None:
            cancel(self._handle)


def deliveries_to(transports: Mapping[Hashable, Any]) -> list[Delivery]:
    """Return as few deliveries to these receivers as possible."""
    alone: list[Delivery] = []
    together: dict[Any, dict[Hashable, CallTransport]] = {}
    for name, transport in transports.items():
        group = transport.callee if isinstance(transport, CallTransport) else None
        if isinstance(group, WorkerGroup) and len(group) == 1:
            ranks = together.setdefault((type(transport), transport.how, id(group._members)), {})
            if all(other.callee._ranks != group._ranks for other in ranks.values()):
                ranks[name] = transport
                continue
        alone.append(SingleDelivery(name, transport))
    return [*alone, *map(GroupDelivery, together.values())]

"""Where one set of weights goes, and by what: a transport by itself, one call for many ranks, a publisher."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from rlinf_async.errors import DeadlineExceeded, WeightMismatch, WrongAcknowledgement
from rlinf_async.group import WorkerGroup
from rlinf_async.weights.model.param_tree import ParamTree
from rlinf_async.weights.plane.publisher import Publisher
from rlinf_async.weights.plane.sync_handle import SyncHandle
from rlinf_async.weights.schemes.updates import Update, chosen, fitted, whole
from rlinf_async.weights.state.report import Ack
from rlinf_async.weights.transports.calls import CallTransport, cancel, finish, size_of
from rlinf_async.weights.transports.link_transport import LinkTransport
from rlinf_async.weights.waiting.bridge import Bridge


class Way(Protocol):
    """To one worker, or to several at once."""

    @property
    def worker_ids(self) -> Sequence[int]: ...

    @property
    def can_stage(self) -> bool:
        """Whether ``stage`` ends before the workers have the weights."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights as they travelled; 0: not known."""

    @property
    def has_begun(self) -> bool:
        """Whether a worker may have heard of the version, or may hear of it yet, so that its number is given away."""

    async def stage(self, update: Update) -> None:
        """Finished when the weights may change.

        Raises:
            Exception: they cannot be sent at all; nobody has got anything.
        """

    async def acks(self, update: Update) -> dict[int, Ack]:
        """What has become of it at each worker.

        Raises:
            WrongAcknowledgement: a worker has said something else than what was expected; it may be waited for again.
        """

    def give_up(self) -> None:
        """Nobody waits for it any more."""


class OneWay:
    """To one worker, through its transport, whatever that is."""

    def __init__(self, worker_id: int, transport: Any) -> None:
        self.worker_ids = (worker_id,)
        self._transport = transport
        self._bridge = Bridge()
        self._error: Exception | None = None
        self._waiting: Any = None
        self._size = 0
        self.has_begun = False

    @property
    def nbytes(self) -> int:
        found: int = getattr(self._transport, "nbytes", self._size)
        return found

    @property
    def can_stage(self) -> bool:
        return hasattr(self._transport, "send_weights_async")

    @property
    def transport(self) -> Any:
        return self._transport

    async def stage(self, update: Update) -> None:
        transport = self._transport
        send = transport.send_weights_async if self.can_stage else transport.send_weights
        facts = (update.version, update.timeout) if getattr(transport, "carries_version", False) else ()
        try:
            weights = chosen(update)
            self._size = 0 if hasattr(transport, "nbytes") else size_of(weights)
            self.has_begun = True
            await self._within(update, send, update.model_id, weights, *facts)
        except Exception as error:
            self._error = error

    async def acks(self, update: Update) -> dict[int, Ack]:
        error = self._error
        if error is None and hasattr(self._transport, "wait_ack"):
            if self._waiting is None:
                self._waiting = self._bridge.run(self._within(update, self._transport.wait_ack), "an acknowledgement")
            try:
                await self._waiting.async_wait()
            except WrongAcknowledgement:
                self._waiting = None
                raise
            except Exception as failure:
                error = failure
        return {self.worker_ids[0]: _ack(update, error)}

    def give_up(self) -> None:
        if self._waiting is not None:
            cancel(self._waiting)
        give_up = getattr(self._transport, "give_up", None)
        if self.has_begun and give_up is not None:
            give_up()

    async def _within(self, update: Update, function: Any, *args: Any) -> None:
        what = f"version {update.version} at worker {self.worker_ids[0]} ({self._transport!r})"
        try:
            await finish(function(*args), update.timeout, what)
        except DeadlineExceeded as late:
            if what in str(late):
                raise
            raise DeadlineExceeded(f"{what}: {late}") from late


class GroupWay:
    """To several ranks of one group by one call: the weights travel once to each node."""

    can_stage = True

    def __init__(self, transports: Mapping[int, CallTransport]) -> None:
        self.worker_ids = tuple(transports)
        self.nbytes = 0
        groups = [transport.callee for transport in transports.values()]
        self._call = next(iter(transports.values()))
        self._group: WorkerGroup = groups[0].execute_on(*(group._ranks[0] for group in groups))
        self._handle: Any = None
        self._parts: list[Any] = []

    @property
    def has_begun(self) -> bool:
        return self._handle is not None

    async def stage(self, update: Update) -> None:
        weights = chosen(update)
        self.nbytes = size_of(weights)
        self._handle = self._call.call(self._group, weights, update.version)
        self._handle.outcomes()  # one rank's failure does not cancel the others
        self._parts = [self._handle[slot] for slot in range(len(self.worker_ids))]

    async def acks(self, update: Update) -> dict[int, Ack]:
        found: dict[int, Ack] = {}
        loop = asyncio.get_running_loop()
        end = None if update.timeout is None else loop.time() + update.timeout
        for worker_id, part in zip(self.worker_ids, self._parts, strict=True):
            failure: Exception | None = None
            try:
                await part.async_wait(None if end is None else max(0.0, end - loop.time()))
            except DeadlineExceeded as late:
                text = f"worker {worker_id} has not taken version {update.version} within {update.timeout:g} s"
                failure = DeadlineExceeded(f"{text}: {late}")
            except Exception as error:
                failure = error
            found[worker_id] = _ack(update, failure)
        self.give_up()  # what is late now
        return found

    def give_up(self) -> None:
        if self._handle is not None:
            cancel(self._handle)


class PublisherWay:
    """To those at the other ends of a publisher's links: the weights are packed once, and read by all.

    Args:
        model: gives the weights of the sender's model, or None; what comes first is all of it.
    """

    can_stage = True

    def __init__(self, publisher: Publisher, transports: Mapping[int, LinkTransport], model: Callable[[], Any]) -> None:
        self.worker_ids = tuple(transports)
        self._publisher = publisher
        self._model = model
        self._transports = tuple(transports.values())
        self._handle: SyncHandle | None = None

    @property
    def has_begun(self) -> bool:
        return self._handle is not None

    async def stage(self, update: Update) -> None:
        if not self._publisher.version:
            update = whole(update, self._model(), self._publisher._select)
        try:
            self._handle = await self._publish(update, update.weights, update.keys)
        except WeightMismatch:
            store = self._publisher._store
            manifest = None if store is None else store.manifest
            if manifest is None or update.keys is not None or isinstance(update.weights, nn.Module):
                raise
            tree, keys = fitted(ParamTree.of(update.weights, self._publisher._select), manifest)
            self._handle = await self._publish(update, tree, keys)
        for transport in self._transports:
            transport.announce(update.version)

    async def _publish(self, update: Update, weights: Any, keys: Any) -> SyncHandle:
        return await self._publisher.publish(
            weights, self.worker_ids, version=update.version, keys=keys, timeout=update.timeout, call=update.call
        )

    @property
    def nbytes(self) -> int:
        return 0 if self._handle is None or self._handle.report is None else self._handle.report.bytes

    async def acks(self, update: Update) -> dict[int, Ack]:
        handle = self._handle
        assert handle is not None
        with contextlib.ExitStack() as stack:
            for transport in self._transports:
                stack.enter_context(transport.watching())
            try:
                await handle.async_wait()
            except Exception:
                if handle.report is None:
                    raise
        assert handle.report is not None
        return dict(handle.report.per_worker)

    def give_up(self) -> None:
        if self._handle is not None and not self._handle.done():
            self._handle.cancel()


def _ack(update: Update, error: BaseException | None) -> Ack:
    return Ack("applied" if error is None else "failed", update.version, error)


def ways_to(transports: Mapping[int, Any]) -> list[Way]:
    """The ways to these workers, as few as will do."""
    alone: list[Way] = []
    together: dict[Any, dict[int, CallTransport]] = {}
    for worker_id, transport in transports.items():
        group = transport.callee if isinstance(transport, CallTransport) else None
        if isinstance(group, WorkerGroup) and len(group) == 1:
            ranks = together.setdefault((type(transport), transport.how, id(group._members)), {})
            if all(other.callee._ranks != group._ranks for other in ranks.values()):
                ranks[worker_id] = transport
                continue
        alone.append(OneWay(worker_id, transport))
    return [*alone, *(GroupWay(ranks) for ranks in together.values())]

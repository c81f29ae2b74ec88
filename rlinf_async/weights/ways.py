"""Where one set of weights goes, and by what: a transport by itself, one call for many ranks, a publisher."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from rlinf_async.errors import DeadlineExceeded, WeightMismatch, WrongAcknowledgement
from rlinf_async.group import WorkerGroup
from rlinf_async.weights.bridge import Bridge
from rlinf_async.weights.calls import CallTransport, cancel, finish
from rlinf_async.weights.link_transport import LinkTransport
from rlinf_async.weights.manifest import Manifest
from rlinf_async.weights.param_tree import ParamTree, Path, is_tensordict, name_of, path_of
from rlinf_async.weights.publisher import Publisher
from rlinf_async.weights.report import Ack
from rlinf_async.weights.sync_handle import SyncHandle


@dataclass(frozen=True)
class Update:
    """What is sent.

    Attributes:
        version: of the weights; 0 until it is known which comes next.
        keys: which of the weights; None: all.
        timeout: seconds that the receivers have; None: as long as it takes.
    """

    model_id: str
    weights: Any
    version: int
    keys: Any = None
    timeout: float | None = None


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
        self.has_begun = False

    nbytes = 0

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
    nbytes = 0

    def __init__(self, transports: Mapping[int, CallTransport]) -> None:
        self.worker_ids = tuple(transports)
        groups = [transport.callee for transport in transports.values()]
        self._call = next(iter(transports.values()))
        self._group: WorkerGroup = groups[0].execute_on(*(group._ranks[0] for group in groups))
        self._handle: Any = None
        self._parts: list[Any] = []

    @property
    def has_begun(self) -> bool:
        return self._handle is not None

    async def stage(self, update: Update) -> None:
        self._handle = self._call.call(self._group, chosen(update), update.version)
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
    """To those at the other ends of a publisher's links: the weights are packed once, and read by all."""

    can_stage = True

    def __init__(self, publisher: Publisher, transports: Mapping[int, LinkTransport]) -> None:
        self.worker_ids = tuple(transports)
        self._publisher = publisher
        self._transports = tuple(transports.values())
        self._handle: SyncHandle | None = None

    @property
    def has_begun(self) -> bool:
        return self._handle is not None

    async def stage(self, update: Update) -> None:
        try:
            self._handle = await self._publish(update, update.weights, update.keys)
        except WeightMismatch:
            store = self._publisher._store
            manifest = None if store is None else store.manifest
            if manifest is None or update.keys is not None or isinstance(update.weights, nn.Module):
                raise
            tree, keys = fitted(ParamTree.of(update.weights, self._publisher._select), manifest)
            self._handle = await self._publish(update, tree, keys)

    async def _publish(self, update: Update, weights: Any, keys: Any) -> SyncHandle:
        return await self._publisher.publish(
            weights, self.worker_ids, version=update.version, keys=keys, timeout=update.timeout
        )

    @property
    def nbytes(self) -> int:
        return 0 if self._handle is None or self._handle.report is None else self._handle.report.bytes

    async def acks(self, update: Update) -> dict[int, Ack]:
        handle = self._handle
        assert handle is not None
        for transport in self._transports:
            transport.look()
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


def fitted(tree: ParamTree, manifest: Manifest) -> tuple[ParamTree, list[Path] | None]:
    """Weights in the form that the receivers know, where they have only some of the keys, or tied tensors twice.

    Returns:
        The weights, and the keys that they have; None for all.

    Raises:
        WeightMismatch: a key is not known; or tied tensors were given different values.
    """
    tensors: dict[Path, torch.Tensor] = {}
    for path, tensor in tree.items():
        leaf = manifest.by_path.get(path)
        if leaf is None:
            raise WeightMismatch(f"the receivers were not told of {name_of(path)!r}, which is among the weights")
        known = tensors.setdefault(leaf.path, tensor)
        if known is not tensor and not torch.equal(known, tensor):
            raise WeightMismatch(f"{name_of(path)!r} is tied to {name_of(leaf.path)!r}, and their values differ")
    is_whole = len(tensors) == len(manifest.leaves)
    aliases = {path: owner for path, owner in manifest.aliases.items() if owner in tensors}
    return ParamTree(tensors, aliases, tree.extra), None if is_whole else list(tensors)


def chosen(update: Update) -> Any:
    """The weights of an update, in the form that they have; of them, what ``keys`` names.

    Raises:
        KeyError: a key names nothing.
    """
    if update.keys is None:
        return update.weights
    tree = ParamTree.of(update.weights)
    everything = dict(tree.items()) | tree.extra
    found: set[Path] = set()
    for key in update.keys:
        wanted = path_of(key) if isinstance(key, str) else tuple(key)
        below = {path for path in everything if path[: len(wanted)] == wanted}
        if not below:
            raise KeyError(f"keys= names {name_of(wanted)!r}, which the weights do not have")
        found |= below
    part = ParamTree({path: tree[path] for path in found if path in tree}, None, {})
    part.extra.update({path: value for path, value in tree.extra.items() if path in found})
    return part.to_tensordict() if is_tensordict(update.weights) else part.to_state_dict()


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

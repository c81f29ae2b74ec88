"""Versions in transit between machines: ``Outgoing`` at the sender, and ``HostMemory`` at the receiver that receives
on behalf of its whole machine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rlinf_async._core.own_logger import own_logger
from rlinf_async._messaging.landing import RelayHost
from rlinf_async._messaging.state.relay_plan import RelayJob
from rlinf_async._transports.lazy_thread import LazyThread
from rlinf_async.errors import ClosedError
from rlinf_async.weights.links.weight_link import WeightLink
from rlinf_async.weights.memory.slot import SlotWriter
from rlinf_async.weights.memory.store import Store
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.waiting.ownership import on_drop
from rlinf_async.work import Work

logger = own_logger(__name__)


class HostMemory:
    """Slots for versions that one receiver receives on behalf of all receivers on its machine.

    It works in its own thread and in the thread that reads the link, because its owner may be busy.

    Args:
        link: the link to the sender.
        manifest: packed manifest.
        extra, slots: as for ``Store``.
        line: stream that carries the tensors.

    Attributes:
        host: handler of the sender's messages.
    """

    def __init__(self, link: WeightLink, manifest: bytes, extra: int, slots: int, line: int, label: str) -> None:
        self._store: Store | None = None
        self._keep: Callable[[], object] = lambda: None
        """Function that cancels the release of the store when this object is dropped."""
        self._thread = LazyThread(f"weights for this machine, {label}")
        # The function is None once this memory is closed.
        self._make: Callable[[], Store] | None = lambda: Store(Manifest.from_bytes(manifest), slots, extra, label)
        self._thread.submit(self._prepare)
        self.host = RelayHost(link, line, self._make_room, self._thread.submit)

    def _prepare(self) -> None:
        try:
            self._made()
        except Exception as error:
            logger.warning("no memory yet for the weights of this machine: %s", error)

    def _made(self) -> Store:
        if self._store is None:
            if self._make is None:
                raise ClosedError("the memory for the weights of this machine is closed")
            self._store = self._make()
            self._keep = on_drop(self, "", self._store.close)
        return self._store

    def _make_room(self, version: int, nbytes: int) -> _SlotRoom:
        return _SlotRoom(self._made())  # there may be memory now, even if there was none for an earlier version

    def close(self) -> Work[None]:
        """Abandon incoming versions and free the memory; this machine's receivers can still read it."""
        closed: Work[None] = Work()
        self.host.close(ClosedError("the weights of this machine are not wanted here any more"))
        self._thread.submit(functools.partial(self._forget, closed))
        return closed

    def _forget(self, closed: Work[None]) -> None:
        store, self._store, self._make = self._store, None, None
        if store is not None:
            store.close()
        self._keep()
        closed._settle()


class _SlotRoom:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._slot = store.take()
        self.memory: Any = None
        try:
            self.memory = store.receive(self._slot)
        except BaseException:
            self.abandon()
            raise

    def pin(self) -> Callable[[], None]:
        self._slot.pin()
        return self._slot.unpin

    def finish(self, version: int, extra: bytes) -> list[Any]:
        return list(self._store.received(self._slot, version, extra).name)

    def abandon(self) -> None:
        # Transfers may still write to this slot, so pin it permanently; the store replaces it when its turn comes.
        self._slot.pin()
        self.memory = None  # an abandoned transfer may still hold a reference to this object


class Outgoing(RelayJob):
    """A version in this machine's memory that is sent to other machines.

    Its slot is not reused during the transfer; if the slot is replaced, its memory stays.

    Args:
        seconds: time limit for its receivers.
        may_wait: True to send it to a machine only once the machine has received the previous version.
    """

    def __init__(
        self, version: int, store: Store, writer: SlotWriter, seconds: float, *, may_wait: bool = False
    ) -> None:
        super().__init__(version, writer.nbytes, seconds)
        self.may_wait = may_wait
        self.writer = writer
        self.body = None
        self._store = store

    @property
    def is_current(self) -> bool:  # type: ignore[override]
        # True only if the slot does not hold a later version.
        return self._store.latest is self.writer and self.writer.version == self.number

    def publish(self) -> Outgoing:
        self.packed = self.nbytes
        self.facts = (self.writer.extra,)
        return self

    def pin(self) -> None:
        # Access the leaves now: the slot may be closed later, and allocating memory for its leaves may fail.
        if self.body is None:
            self.body = self.writer.leaves
        self.writer.pin()

    def unpin(self) -> None:
        self.writer.unpin()

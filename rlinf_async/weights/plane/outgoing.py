"""``Outgoing``: a version in this machine's memory that is sent to other machines."""

from __future__ import annotations

from typing import Any

from rlinf_async._messaging.state.relay_plan import Job
from rlinf_async.weights.memory.slot import SlotWriter
from rlinf_async.weights.memory.store import Store


class Outgoing(Job):
    """No slot is used again while it is sent from.

    Args:
        seconds: that its receivers have for it.
    """

    def __init__(self, version: int, store: Store, writer: SlotWriter, seconds: float = 0.0) -> None:
        super().__init__(version, writer.nbytes, seconds)
        self.writer = writer
        self._store = store

    @property
    def body(self) -> Any:
        return self.writer.leaves

    @property
    def is_current(self) -> bool:  # type: ignore[override]
        return self._store.latest is self.writer

    def publish(self) -> Outgoing:
        self.packed = self.nbytes
        self.facts = self.writer.extra, self.writer.checksum
        return self

    def hold(self) -> None:
        self._store.hold(self.writer)

    def release(self) -> None:
        self._store.let_go(self.writer)

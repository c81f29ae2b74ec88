"""``Outgoing``: a version in this machine's memory that is sent to other machines."""

from __future__ import annotations

from rlinf_async._messaging.state.relay_plan import RelayJob
from rlinf_async.weights.memory.slot import SlotWriter
from rlinf_async.weights.memory.store import Store


class Outgoing(RelayJob):
    """No slot is used again while it is sent from; if it is replaced meanwhile, its memory stays.

    Args:
        seconds: that its receivers have for it.
        may_wait: it leaves for a machine once what is on its way there has landed.
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
        return self._store.latest is self.writer and self.writer.version == self.number  # and not a later one

    def publish(self) -> Outgoing:
        self.packed = self.nbytes
        self.facts = (self.writer.extra,)
        return self

    def pin(self) -> None:
        if self.body is None:  # the slot may be closed later; and there may be no memory for its leaves
            self.body = self.writer.leaves
        self.writer.hold()

    def unpin(self) -> None:
        self.writer.let_go()

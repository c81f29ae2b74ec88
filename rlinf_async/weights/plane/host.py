"""The receiver that gets the weights for all receivers of its machine: straight into a slot that they read.

What arrives may go on to other machines' hosts at the same time.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from rlinf_async.errors import ClosedError, PeerLost, TransferFailed
from rlinf_async.weights.links.link import Link
from rlinf_async.weights.memory.slot import SlotWriter
from rlinf_async.weights.memory.store import Store
from rlinf_async.weights.model.delta import Delta
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.plane.arrival import Arrival, closed
from rlinf_async.weights.state import words as say

logger = logging.getLogger(__name__)


class Host:
    """Works by itself, in a thread of its own and where the link is read: whoever owns it may be busy.

    Args:
        link: to the sender.
        manifest: packed.
        extra, slots: as of ``Store``.
        line: on which the tensors come.
    """

    def __init__(self, link: Link, manifest: bytes, extra: int, slots: int, line: int, label: str) -> None:
        self._link = link
        self._line = line
        self._facts = (slots, extra, label)
        self._store: Store | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"weights for this machine, {label}")
        self._arrival: Arrival | None = None
        """What comes, or came last."""
        self._is_closed = False
        self._thread.submit(self._make, manifest)

    def _make(self, manifest: bytes) -> None:
        try:
            self._store = Store(Manifest.from_bytes(manifest), *self._facts)
        except Exception as error:
            logger.warning("no memory for the weights of this machine: %s", error)

    # -- what the sender says, where the link is read -----------------------------------------------------------

    def hear(self, what: str, *facts: Any) -> None:
        """A word of ``words.TO_HOSTS``."""
        arrival = self._arrival
        if what == say.BRING:
            self._bring(*facts)
        elif arrival is None:
            logger.warning("%r is said of a version, and none comes", what)
        elif what == say.WHOLE:
            _, extra, checksum = facts
            arrival.whole._settle((extra, checksum))
        elif what == say.PASS:
            version, receiver, line = facts
            if version == arrival.version:
                arrival.pass_on(receiver, line)
            else:
                self._stuck(line, TransferFailed(f"version {version} is followed by {arrival.version} already"))
        else:
            arrival.keep(*facts)

    def _bring(
        self, version: int, sizes: list[int], base: int, head: bytes, source: Any = None, patience: float | None = None
    ) -> None:
        if self._arrival is not None:
            self._arrival.keep_all()
        arrival = self._arrival = Arrival(self._link, self._line, version, sizes, source, patience, self._stuck)
        self._thread.submit(self._receive, arrival, sum(sizes), base, head)

    def hear_end(self, error: Exception) -> None:
        """Nothing more will come."""
        if self._arrival is not None:
            self._arrival.give_up(error)

    # -- in the thread ------------------------------------------------------------------------------------------

    def _receive(self, arrival: Arrival, nbytes: int, base: int, head: bytes) -> None:
        version, store = arrival.version, self._store
        if store is None or self._is_closed:
            self._landed(version, TransferFailed("the receiver has no memory for the weights of its machine"), None)
            return
        try:
            slot = store.take()
        except Exception as error:
            self._landed(version, error, None)
            return
        try:
            memory = torch.empty(nbytes, dtype=torch.uint8) if head else store.receive(slot)
            arrival.expect(memory, functools.partial(_hold, store, store.writer(slot)))
            if self._is_closed:
                arrival.give_up(closed())
            self._say(say.ROOM, version, self._line)
            extra, checksum = arrival.wait()
            if head:
                here = 0 if store.latest is None else store.latest.version
                if here != base:
                    raise TransferFailed(f"what has changed since version {base} has come, and version {here} is here")
                store.patch(slot, Delta(head, memory))
            writer = store.received(slot, version, extra, checksum)
        except Exception as error:
            store.abandon(slot)
            self._landed(version, error, None)
            return
        self._landed(version, None, list(writer.name))

    def _landed(self, version: int, error: Exception | None, memory: Any) -> None:
        self._say(say.LANDED, version, None if error is None else say.pack_error(error), memory, self._line)

    def _stuck(self, line: int, error: Exception) -> None:
        if not self._is_closed:
            self._say(say.STUCK, line, say.pack_error(error))

    def _say(self, *words: Any) -> None:
        try:
            self._link.send(list(words))
        except (PeerLost, ClosedError) as gone:
            logger.info("the sender does not hear %r: %s", words[0], gone)

    # -- the end ------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def retire(self) -> None:
        """Lets go of the memory, soon; the receivers of this machine go on reading it."""
        self._is_closed = True
        if self._arrival is not None:
            self._arrival.give_up(closed())
        with contextlib.suppress(RuntimeError):  # retired before
            self._thread.submit(self._forget)
        self._thread.shutdown(wait=False)

    def close(self) -> None:
        """Lets go of the memory.  Idempotent."""
        self.retire()
        self._thread.shutdown()


def _hold(store: Store, writer: SlotWriter) -> Callable[[], None]:
    store.hold(writer)
    return functools.partial(store.let_go, writer)

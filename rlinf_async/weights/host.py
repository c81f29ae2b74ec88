"""The receiver that gets the weights for all receivers of its machine: straight into a slot that they read."""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from rlinf_async.errors import ClosedError, PeerLost, TransferFailed
from rlinf_async.weights import words as say
from rlinf_async.weights.delta import Delta
from rlinf_async.weights.links import Link
from rlinf_async.weights.manifest import Manifest
from rlinf_async.weights.store import Store
from rlinf_async.work import Work

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
        self._arriving: list[Work[None]] = []
        self._whole: Work[tuple[bytes, int]] = Work()
        self._is_closed = False
        self._thread.submit(self._make, manifest)

    def _make(self, manifest: bytes) -> None:
        try:
            self._store = Store(Manifest.from_bytes(manifest), *self._facts)
        except Exception as error:
            logger.warning("no memory for the weights of this machine: %s", error)

    def bring(self, version: int, pieces: list[int], base: int, head: bytes) -> None:
        """A version comes, in tensors of so many bytes; called where the link is read.

        Args:
            base, head: of a delta, which these tensors are the body of; no head: they are everything.
        """
        whole: Work[tuple[bytes, int]] = Work()
        self._whole = whole
        self._thread.submit(self._bring, version, pieces, base, head, whole)

    def whole(self, version: int, extra: bytes, checksum: int) -> None:
        """The version that comes is published; called where the link is read."""
        self._whole._settle((extra, checksum))

    def hear_end(self, error: Exception) -> None:
        """Nothing more will come."""
        self._whole._settle(error=error)

    def _bring(self, version: int, pieces: list[int], base: int, head: bytes, whole: Work[tuple[bytes, int]]) -> None:
        store = self._store
        if store is None or self._is_closed:
            self._say(version, TransferFailed("the receiver has no memory for the weights of its machine"), None)
            return
        slot = store.take()
        memory = torch.empty(sum(pieces), dtype=torch.uint8) if head else store.receive(slot)
        try:
            self._receive(version, memory, pieces)
            extra, checksum = whole.wait()
            if head:
                here = 0 if store.latest is None else store.latest.version
                if here != base:
                    raise TransferFailed(f"what has changed since version {base} has come, and version {here} is here")
                store.patch(slot, Delta(head, memory))
            writer = store.received(slot, version, extra, checksum)
        except Exception as error:
            store.abandon(slot)
            self._say(version, error, None)
            return
        self._say(version, None, list(writer.name))

    def _receive(self, version: int, memory: torch.Tensor, pieces: list[int]) -> None:
        arriving, start = [], 0
        for nbytes in pieces:
            arriving.append(self._link.receive_tensor(memory[start : start + nbytes], self._line))
            start += nbytes
        self._arriving = arriving
        if self._is_closed:
            self._stop()
        self._link.send([say.ROOM, version])
        for work in arriving:
            work.wait()

    def _say(self, version: int, error: Exception | None, memory: Any) -> None:
        try:
            self._link.send([say.LANDED, version, None if error is None else say.pack_error(error), memory])
        except (PeerLost, ClosedError) as gone:
            logger.info("the sender does not hear of version %d: %s", version, gone)

    def _stop(self) -> None:
        self._whole._settle(error=ClosedError("the weights of this machine are not wanted here any more"))
        for work in self._arriving:
            if not work.done():
                work._lose_interest()

    def _forget(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def retire(self) -> None:
        """Lets go of the memory, soon; the receivers of this machine go on reading it."""
        self._is_closed = True
        self._stop()
        with contextlib.suppress(RuntimeError):  # retired before
            self._thread.submit(self._forget)
        self._thread.shutdown(wait=False)

    def close(self) -> None:
        """Lets go of the memory.  Idempotent."""
        self.retire()
        self._thread.shutdown()

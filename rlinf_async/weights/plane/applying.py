"""Application of a leased version to its destination: judged, checked, and written while nobody reads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rlinf_async.errors import ClosedError
from rlinf_async.weights.memory.gpus import Gpus, Registrar
from rlinf_async.weights.memory.leases import Leased, Leases
from rlinf_async.weights.memory.slot import MemoryName
from rlinf_async.weights.model.param_tree import Path
from rlinf_async.weights.model.source import unpack_extra
from rlinf_async.weights.plane.destination import Destination
from rlinf_async.weights.state.versions import Reception, Verdict
from rlinf_async.weights.waiting.aside import Aside
from rlinf_async.weights.waiting.gate import ReadingGate

logger = logging.getLogger(__name__)


class Applying:
    """
    Args:
        maps: the destination comes to stand in what is leased.
        verifies: checksums are checked.
        patience: seconds that readers have to leave.

    Attributes:
        extra: what the sender's model has beside its tensors, as of the version that was applied last.
    """

    def __init__(
        self,
        destination: Destination,
        reception: Reception,
        gate: ReadingGate,
        leases: Leases,
        aside: Aside,
        gpus: Gpus,
        *,
        maps: bool,
        verifies: bool,
        patience: float,
    ) -> None:
        self._destination = destination
        self._reception = reception
        self._gate = gate
        self._leases = leases
        self._aside = aside
        self._registrar = Registrar(gpus, read_only=True)
        self._maps = maps
        self._verifies = verifies
        self._patience = patience
        self._writing = threading.Lock()
        """Held by who writes what is leased: the leases are given back before that or after it."""
        self._is_closed = False
        self.extra: Mapping[Path, Any] = {}

    async def lease(self, name: MemoryName) -> Leased | None:
        """What is in a slot, which is mapped first if it was not; see ``Leases.take``."""
        if self._leases.may_map(name):
            await self._aside.do(self._leases.map, name, nbytes=name.size)
        if self._leases.may_open(name):
            await self._aside.do(self._leases.open, name, nbytes=None)
        return self._leases.take(name)

    async def apply(self, leased: Leased) -> float:
        """Applies what is leased, unless it was applied before.

        Returns:
            The seconds for which nobody could read.

        Raises:
            ClosedError: it was closed meanwhile.
            Exception: it could not be applied.
        """
        nbytes = leased.reader.nbytes
        version = leased.header.version
        if self._is_here(version):
            return 0.0
        if self._verifies:
            await self._aside.do(leased.reader.check, leased.header, nbytes=nbytes)
        extra = unpack_extra(leased.reader.extra(leased.header))
        assert leased.views is not None
        await self._aside.do(self._destination.compare, leased.views, extra, nbytes=nbytes)
        if self._destination.places and not leased.is_on_gpu and not leased.reader.is_registered:
            await self._aside.do(self._register, leased, nbytes=None)  # which takes a while: readers go on meanwhile
        cost = 0 if self._maps and not self._destination.is_copied else nbytes  # memory of its own is freed
        on_gpu = leased.is_on_gpu or bool(self._destination.places)
        async with self._gate.writing(self._patience):
            if self._is_here(version):  # by another way, meanwhile
                return 0.0
            begun = time.monotonic()
            await self._aside.do(self._write, leased, extra, nbytes=None if on_gpu else cost)
            return time.monotonic() - begun

    async def overwrite(self, write: Callable[[], Any], version: int | None) -> bool:
        """Has weights written that have come another way, while nobody reads.

        Args:
            version: that they are; None: that they have none.  It stays then, for the sender counts; before there is a
                sender, it is the next one.

        Returns:
            False if that version, or a later one, was applied before: nothing is written.

        Raises:
            DeadlineExceeded: readers have not left in time.
            Exception: what ``write`` raises.
        """
        reception = self._reception
        async with self._gate.writing(self._patience):
            if version is None:
                version = reception.version + (self._leases.manifest is None)
            elif self._is_here(version):
                return False
            if self._leases.keeps_one:  # what is mapped cannot be written to
                await self._aside.do(self._destination.detach, nbytes=None)
                self._leases.keep(None)
            write()
            reception.overwritten(version)
        return True

    def _is_here(self, version: int) -> bool:
        """It, or a later one: to be asked in the gate, by whoever writes then."""
        return version < self._reception.version or self._reception.judge(version) is Verdict.DUPLICATE

    async def move_out(self) -> None:
        """The sender is gone, and its memory is let go of, but for what tensors stand in.

        Sooner or later its GPU's memory is gone: tensors that stand there get some of their own.  Readers who stay too
        long keep them from it, and so does that memory, if it is gone already.
        """
        destination = self._destination
        if destination.device is None or destination.is_copied:
            if self._leases.has_unkept:
                await self._aside.do(self._leases.shed, nbytes=None)
            return
        try:
            async with self._gate.writing(self._patience):
                await self._aside.do(self._detach, nbytes=None)
        except Exception as error:
            logger.warning("weights stay in the memory of a sender that is gone: %s", error)

    def _detach(self) -> None:
        self._leases.shed()
        self._destination.detach()
        self._leases.keep(None)
        self._leases.shed()

    def close(self) -> None:
        """Tensors that are mapped get memory of their own, and the slots are given back; in a thread.

        What is being written is written to the end, and what waits for its turn is not written.  Idempotent.
        """
        with self._writing:
            self._is_closed = True
        if self._leases.keeps_one:
            self._destination.detach()
        self._leases.close()

    def _register(self, leased: Leased) -> None:
        leased.reader.register(self._registrar, min(self._destination.places, key=str))

    def _write(self, leased: Leased, extra: Mapping[Path, Any]) -> None:
        with self._writing:
            if self._is_closed:  # and what was leased may be written by its sender
                raise ClosedError("the receiver of the weights is closed")
            assert leased.views is not None
            try:
                self._destination.write(leased.views, extra)
            except BaseException:
                if not self._destination.is_whole:
                    self._reception.torn()
                raise
            self._reception.applied(leased.header.version)
            self.extra = extra
            if self._maps:
                self._leases.keep(None if self._destination.is_copied else leased.reader)

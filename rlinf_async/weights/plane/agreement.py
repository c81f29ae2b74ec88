"""Agreement of a sender's manifest with a receiver's destination: READY, or REFUSE with the misfits."""

from __future__ import annotations

from rlinf_async.weights.memory.leases import Leases
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.plane.answers import Answers
from rlinf_async.weights.plane.destination import Destination
from rlinf_async.weights.state.versions import Reception
from rlinf_async.weights.waiting.aside import Aside


class Agreement:
    """Made when the sender says what comes, and once more whenever that is to go somewhere else.

    What was refused is looked at again with each version that the sender speaks of: the model may have been mended.

    Attributes:
        is_refused: what the sender has said last does not fit, and it knows.
    """

    def __init__(
        self,
        destination: Destination,
        leases: Leases,
        reception: Reception,
        aside: Aside,
        answers: Answers,
        *,
        verifies: bool,
    ) -> None:
        self._destination = destination
        self._leases = leases
        self._reception = reception
        self._aside = aside
        self._answers = answers
        self._verifies = verifies
        self._offer: tuple[bytes, int, int] | None = None
        self.is_refused = False

    async def meet(self, manifest: bytes, extra: int, slots: int) -> None:
        """The sender says what comes.

        Raises:
            WeightMismatch, Exception: it does not fit, or there is nothing that it could go to; the sender hears it.
        """
        self._offer = manifest, extra, slots
        await self._make()

    async def renew(self) -> None:
        """Before a version is applied.

        Raises:
            WeightMismatch, Exception: what it is to go to by now does not take it.
        """
        was_refused, gpu = self.is_refused, self._leases.gpu
        if was_refused:
            await self._make()
        elif self._destination.has_moved():
            await self._agree()
        if was_refused or self._leases.gpu != gpu:
            self._answers.ready(self._reception.version, self._leases.gpu)

    async def _make(self) -> None:
        try:
            await self._agree()
        except Exception as error:
            self.is_refused = True
            self._answers.refuse(error)
            raise
        self.is_refused = False

    async def _agree(self) -> None:
        if self._offer is None:
            return
        packed, extra, slots = self._offer
        has_moved = self._destination.has_moved()
        manifest = Manifest.from_bytes(packed)
        mapped = self._leases.keeps_one  # which is copied, if it is left
        await self._aside.do(self._destination.check, manifest, nbytes=None if mapped else 0)
        device = None if self._verifies else self._destination.device
        if has_moved:
            self._reception.moved()
            if device != self._leases.device:
                await self._aside.do(self._leases.forget, nbytes=None)
        self._leases.expect(manifest, extra, slots, device)

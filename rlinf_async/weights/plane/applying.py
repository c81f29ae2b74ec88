"""``Applying``: checks and leases each version, and writes it to a receiver's destination while nobody reads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from rlinf_async._core import clock
from rlinf_async._core.own_logger import own_logger
from rlinf_async._recorder import recording
from rlinf_async.errors import ClosedError, DeadlineExceeded, TransferFailed
from rlinf_async.weights.memory.gpus import Gpus, Registrar
from rlinf_async.weights.memory.leases import Leased, Leases
from rlinf_async.weights.memory.slot import MemoryName
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.model.param_tree import Path
from rlinf_async.weights.model.source import unpack_extra
from rlinf_async.weights.plane.destination import Destination
from rlinf_async.weights.state.versions import Judgement, Reception
from rlinf_async.weights.waiting.conditions import ReadingGate
from rlinf_async.weights.waiting.execution import WorkerThread, call_safely

logger = own_logger(__name__)

MAX_PINNED: Final = 2
"""Number of versions whose memory other tensors may pin before this receiver copies instead of mapping."""


class Applying:
    """A writer for one model's destination, which holds the sender's slots and tracks the version in the model.

    Args:
        maps: remap the destination's tensors to leased slots.
        verify: ``"sha256"`` hashes the destination after each version.
        patience: seconds to wait for readers.

    Attributes:
        extra: values other than tensors, from the last applied version.
        digests: version, packed forms and digests of the destination's tensors; None if they were not hashed.
    """

    def __init__(
        self, destination: Destination, model_id: str, gpus: Gpus, *, maps: bool, verify: str, patience: float
    ) -> None:
        self.destination = destination
        self.reception = Reception()
        self.gate = ReadingGate(self._look)
        self.leases = Leases(gpus)
        self.extra: Mapping[Path, Any] = {}
        self.digests: tuple[int, bytes, bytes] | None = None
        self._model_id = model_id
        self._worker_thread = WorkerThread(f"weights of {model_id}")
        self._registrar = Registrar(gpus, read_only=True)
        self._maps = maps
        self._verify = verify
        self._patience = patience
        self._offer: tuple[bytes, int, int] | None = None
        self._writing = threading.Lock()
        """Lock held while leased memory is read, so that no lease is released during the read."""
        self._is_closed = False
        self._is_told = False

    def _look(self) -> int:
        if not self.reception.is_whole:
            raise TransferFailed(f"the weights of '{self._model_id}' are torn: the last update broke off half way")
        return self.reception.version

    async def agree(self, offer: tuple[bytes, int, int] | None = None) -> None:
        """Check whether the weights fit the destination as it is now.

        Args:
            offer: announced manifest, extra bytes and slots; by default the last announced ones.

        Raises:
            WeightMismatch, Exception: the weights do not fit, or there is no destination.
        """
        self._offer = self._offer if offer is None else offer
        if self._offer is None:
            return
        packed, extra, slots = self._offer
        has_moved = self.destination.has_moved()
        manifest = Manifest.from_bytes(packed)
        mapped = self.leases.keeps_one  # detaching copies mapped memory
        await self._worker_thread.do(self.destination.check, manifest, nbytes=None if mapped else 0)
        device = None if self._verify != "off" else self.destination.device
        if has_moved:
            self.reception.moved()
            if device != self.leases.device:
                await self._worker_thread.do(self.leases.forget, nbytes=None)
        self.leases.expect(manifest, extra, slots, device)

    async def lease(self, name: MemoryName) -> Leased | None:
        """Lease a slot, and map it if it is new; see ``Leases.take``."""
        if self.leases.is_new(name):
            await self._worker_thread.do(self.leases.prepare, name, nbytes=name.size if name.on_gpu is None else None)
        return self.leases.take(name)

    async def apply(self, leased: Leased) -> float:
        """Apply a leased version unless it has already been applied.

        Returns:
            Seconds during which readers were kept out.

        Raises:
            ClosedError: this object was closed in the meantime.
            Exception: the version could not be applied.
        """
        destination = self.destination
        nbytes = leased.reader.nbytes
        version = leased.header.version
        if self.reception.judge(version) is not Judgement.APPLY:
            return 0.0
        extra = call_safely(unpack_extra, leased.reader.extra(leased.header))
        assert leased.views is not None
        await self._worker_thread.do(destination.compare, leased.views, extra, nbytes=nbytes)
        if destination.places and not leased.is_on_gpu and not leased.reader.is_registered:
            # Register before taking the gate, because registration is slow, and readers need not wait for it.
            await self._worker_thread.do(self._register, leased, nbytes=None)
        is_mapped = self._maps and not destination.is_copied and self._verify != "sha256"
        cost = 0 if is_mapped else nbytes  # mapping frees the tensors' own memory
        on_gpu = leased.is_on_gpu or bool(destination.places)
        async with self.gate.writing(self._patience):
            # Another path may have applied the version while this task waited.
            if self.reception.judge(version) is not Judgement.APPLY:
                return 0.0
            begun = clock.monotonic()
            await self._worker_thread.do(self._write, leased, extra, nbytes=None if on_gpu else cost)
            return clock.monotonic() - begun

    async def overwrite(self, write: Callable[[], Any], version: int | None, sender: Any) -> bool:
        """Write weights that did not arrive in a slot, once readers have left; see ``Subscriber.accept``."""
        if not self._is_new(version, sender):
            return False
        async with self.gate.writing(self._patience):
            if not self._is_new(version, sender):
                return False
            if self.leases.keeps_one:  # mapped memory is read-only
                await self._worker_thread.do(self.destination.detach, nbytes=None)
                self.leases.keep(None)
            self.digests = None  # no sender knows the expected digests
            write()
            if version is None:
                version = self.reception.version + (self.leases.manifest is None)
            self.reception.overwritten(version, sender)
            recording.version(self._model_id, "applied", version)
        return True

    def _is_new(self, version: int | None, sender: Any) -> bool:
        if self._is_closed:
            raise ClosedError(f"the receiver of '{self._model_id}' is closed")
        verdict = Judgement.APPLY if version is None else self.reception.judge(version, sender)
        if verdict is Judgement.STALE:
            here = self.reception.version
            raise ValueError(
                f"version {version} of '{self._model_id}' is not after version {here}, which the model has: a sender "
                f"that begins anew goes on from there with send(version={here + 1})"
            )
        return verdict is Judgement.APPLY

    async def move_out(self) -> None:
        """Release an ended sender's memory, except memory to which tensors are mapped.

        A GPU's memory vanishes with its sender, so tensors mapped to it are moved, unless readers stay too long or the
        memory was already released.
        """
        if self.destination.device is None or self.destination.is_copied:
            if self.leases.has_unkept:
                await self._worker_thread.do(self.leases.shed, nbytes=None)
            return
        try:
            async with self.gate.writing(self._patience):
                await self._worker_thread.do(self._detach, nbytes=None)
        except Exception as error:
            logger.warning("weights stay in the memory of a sender that is gone: %s", error)

    def _detach(self) -> None:
        self.destination.detach()
        self.leases.forget()

    async def close(self, *, is_copy: bool = False) -> None:
        """Give mapped tensors their own memory once readers have left, and release the slots. Idempotent.

        A version being written is completed; a version waiting for readers is not written. If readers stay too long, or
        the caller is cancelled, mapped tensors and their memory stay.

        Args:
            is_copy: True in a forked child, where the parent's readers and lock holders do not run. Mapped tensors
                stay, because torch's threads that would copy them exist only in the parent.
        """
        self._is_closed = True
        if is_copy:
            self.leases.close()
            return
        # If another thread's kernel read the memory after it was unmapped, SIGSEGV would kill the process.
        waits = self.leases.keeps_one and not self.gate.is_read_here()
        try:
            async with self.gate.writing(self._patience) if waits else contextlib.nullcontext():
                await self._worker_thread.do(self._release_slots, nbytes=0 if self.leases.manifest is None else None)
        except BaseException as error:  # readers have not left
            try:
                await self._worker_thread.do(self.leases.close, nbytes=None)
            finally:
                self.leases.close()  # they are open where no thread could start
            if not isinstance(error, DeadlineExceeded):
                raise
            logger.warning("tensors of '%s' stay in the memory of their sender: %s", self._model_id, error)
        finally:
            self._worker_thread.close()

    def _release_slots(self) -> None:
        # Let a write that began before the close complete first.
        with self._writing:
            pass
        release_slots(self.destination, self.leases)

    def _is_pinned(self) -> bool:
        """True if too many versions are pinned, so that the next one must be copied. Logged once."""
        is_pinned = self.leases.pinned(self.destination.standing) >= MAX_PINNED
        if is_pinned and not self._is_told:
            self._is_told = True
            logger.warning(
                "weights of '%s' are copied here and not mapped, from version %d on and as long as something keeps "
                "tensors of %d earlier versions, whose memory no other version can use: clone what is kept, as in "
                "{name: tensor.detach().clone() for name, tensor in model.state_dict().items()}, and run or drop "
                "backward passes before the next version",
                self._model_id,
                self.reception.version + 1,
                MAX_PINNED,
            )
        return is_pinned

    def _register(self, leased: Leased) -> None:
        leased.reader.register(self._registrar, min(self.destination.places, key=str))

    def _write(self, leased: Leased, extra: Mapping[Path, Any]) -> None:
        with self._writing:
            if self._is_closed:  # the sender may now overwrite the leased memory
                raise ClosedError(f"the receiver of '{self._model_id}' is closed")
            assert leased.views is not None
            self.digests = None
            try:
                self.destination.write(leased.views, extra, copies=self._maps and self._is_pinned())
            except BaseException:
                if not self.destination.is_whole:
                    self.reception.torn()
                raise
            self.reception.applied(leased.header.version)
            recording.version(self._model_id, "applied", leased.header.version)
            self.extra = extra
            if self._maps:
                self.leases.keep(None if self.destination.is_copied else leased.reader)
            # Hash before readers return, because forward passes may write to buffers.
            if self._verify == "sha256":
                self.digests = (leased.header.version, *self.destination.digests(leased.views))


def release_slots(destination: Destination | None, leases: Leases) -> None:
    """Release all slots permanently; mapped tensors get their own memory."""
    if destination is not None and leases.keeps_one:
        destination.detach()
    leases.close()

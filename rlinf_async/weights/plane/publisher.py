"""``Publisher``: the sending side of the shared-memory plane."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from rlinf_async._core import clock
from rlinf_async._core.own_logger import own_logger
from rlinf_async._messaging.state.chain import CHAIN_FROM_BYTES
from rlinf_async._recorder import recording
from rlinf_async._recorder.state.event_ring import EventKind
from rlinf_async.errors import ClosedError, ConfigError, DeadlineExceeded
from rlinf_async.weights.links.weight_link import WeightLink
from rlinf_async.weights.memory.cuda import CUDA
from rlinf_async.weights.memory.gpus import Gpus
from rlinf_async.weights.memory.slot import SlotWriter
from rlinf_async.weights.memory.store import Store
from rlinf_async.weights.model.gather import gathers_here
from rlinf_async.weights.model.gather_calls import GatherCall, GatherCalls
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.model.naming import UNCHANGED, Naming
from rlinf_async.weights.model.param_tree import ParamTree
from rlinf_async.weights.model.source import WeightSource, is_streamed, layout_of, pack_extra
from rlinf_async.weights.plane.packing import Packing
from rlinf_async.weights.plane.receiver_state import ReceiverState
from rlinf_async.weights.plane.receiver_table import ReceiverTable
from rlinf_async.weights.plane.sync_handle import Delivery, SyncHandle, WeightsMessage
from rlinf_async.weights.state.sync_report import Ack, SyncReport
from rlinf_async.weights.waiting.conditions import ConditionVar
from rlinf_async.weights.waiting.execution import WorkerThread
from rlinf_async.weights.waiting.ownership import OwnerProcess, on_drop

logger = own_logger(__name__)


class Publisher:
    """A publisher of one model's weights, with one link to each receiver.

    Each version is packed into shared memory and then published. Receivers on the same machine read it there; on every
    other machine, one receiver receives it on behalf of all. So every receiver sees complete versions only, and the
    source may change as soon as ``publish`` returns::

        async with Publisher(model) as publisher:
            publisher.add(0, link)
            await publisher.connect()
            handle = await publisher.publish(model)      # packed: training may continue
            optimizer.step()
            report = await handle                        # every receiver has applied it

    Methods may be called from any loop, one at a time.

    Weights on a GPU are packed once the work that was queued in the caller's current streams when ``publish`` was
    called has finished. Receivers on this machine that use the same GPU read them there; all others get them through
    shared memory. If CUDA refuses, the publisher logs this once and packs all weights in CPU memory.

    With sharded weights (FSDP, DTensor), every rank has a publisher, and only rank 0's publisher is linked to
    receivers. The ranks publish together: shards go straight to their places in rank 0's shared memory, and no other
    rank ever holds whole tensors. A rank that does not take part keeps the others waiting until torch's process group
    times out.

    Args:
        source: module, TensorDict or dict whose names, shapes and dtypes are announced; by default the first source
            passed to ``publish``.
        model_id: name of the weights in error messages.
        apply: ``"copy"`` or ``"map"``; must match the receivers' setting, and determines the number of slots.
        slots: number of versions kept in memory; by default 2 for ``"copy"`` and 3 for ``"map"``.
        transport_dtype: dtype in which floating-point tensors are sent, or a function of (name, dtype).
        ack_timeout: seconds within which receivers must answer.
        verify: ``"sha256"`` compares the receivers' tensors with the packed ones after each version.
        select: ``"all"``, ``"trainable"``, or a function of (name, tensor).
        naming: maps the source's names to transport names.
        chain_from: size in bytes above which receivers' machines forward a version to each other; by default 64 MiB.
        behind: number of earlier versions that may be pending when a version is published. If a receiver falls
            further behind, its oldest pending versions count as failed, and the log names the receiver. With 0, only
            one version is pending at a time.
        gpus: interface to the GPUs.
    """

    def __init__(
        self,
        source: Any = None,
        *,
        model_id: str = "policy",
        apply: str = "copy",
        slots: int | None = None,
        transport_dtype: Any = None,
        ack_timeout: float = 60.0,
        verify: str = "off",
        select: Any = "all",
        naming: Naming = UNCHANGED,
        chain_from: int | None = None,
        behind: int = 0,
        gpus: Gpus = CUDA,
    ) -> None:
        self._process = OwnerProcess()
        self._source = source
        self.model_id = model_id
        self._slots = slots if slots is not None else (3 if apply == "map" else 2)
        self._transport_dtype = transport_dtype
        self._ack_timeout = ack_timeout
        self._gpus = gpus
        self._verify = verify
        self._select = select
        self.naming = naming
        self._changes = ConditionVar(model_id)
        verifies = self._verify_in_thread if verify == "sha256" else None
        told = self._complete, self._changes.notify, self._fill
        chain_from = CHAIN_FROM_BYTES if chain_from is None else chain_from
        self._receivers = ReceiverTable(model_id, *told, chain_from=chain_from, verify=verifies, ahead=behind > 0)
        self._behind = behind
        self._named: dict[Hashable, float] = {}
        """Maps each receiver that was too far behind to the time at which the log last named it."""
        self._packing: Packing | None = None
        self.worker_thread = WorkerThread(f"weights of {model_id}")
        self._handles: dict[int, SyncHandle] = {}
        """Maps each pending version to its handle, oldest first."""
        self._keep: Callable[[], object] = lambda: None
        """Function that cancels the release of the store when this object is dropped."""
        self._is_packing = False
        self._is_closed = False
        self._calls = GatherCalls()

    def __repr__(self) -> str:
        return f"<Publisher of '{self.model_id}' version {self.version} to {self.worker_ids}>"

    @property
    def version(self) -> int:
        """The last published version; 0 before the first."""
        return self._receivers.ledger.version

    @property
    def manifest(self) -> Manifest | None:
        """The manifest announced to the receivers; None until it is known."""
        return None if self._packing is None else self._packing.taker.manifest

    @property
    def shown(self) -> ParamTree | None:
        """Views of the latest version, in a slot that later versions will reuse."""
        latest = None if self._store is None else self._store.latest
        if latest is None or self.manifest is None or not latest.is_in_slot:
            return None
        return ParamTree(latest.views, self.manifest.aliases, {})

    @property
    def _store(self) -> Store | None:
        return None if self._packing is None else self._packing.store

    @property
    def worker_ids(self) -> list[Hashable]:
        return self._receivers.names

    @property
    def quarantined(self) -> dict[Hashable, str]:
        """Receivers that may lack a published version, with the reason; they still get the next version."""
        return self._receivers.quarantined

    # -- receivers ----------------------------------------------------------------------------------------------

    def add(self, worker_id: Hashable, link: WeightLink) -> None:
        """Add a receiver, which gets the latest version immediately. It replaces a receiver with the same id."""
        self._check_open()
        self._receivers.add(worker_id, link)

    def remove(self, worker_id: Hashable) -> None:
        """Remove a receiver and close its link.

        Raises:
            ValueError: there is no receiver with that id.
        """
        self._receivers.remove(worker_id)

    async def connect(self, timeout: float | None = 60.0, weights: Any = None, *, source: Any = None) -> None:
        """Wait until every receiver has connected and accepted the weights; ask those that refused to check again.

        Args:
            weights: first version; by default receivers keep their own weights.
            source: replaces the constructor's source.

        Raises:
            DeadlineExceeded: a receiver has not connected within ``timeout`` seconds; the error names it.
            WeightMismatch: the weights do not fit a receiver, which the error's note names.
            ValueError: there is no source yet.
            ConfigError: the weights are sharded, and a rank that does not gather them has receivers.
        """
        call = self.next_call()
        self._check_open()
        if self._packing is None:
            source = next((each for each in (weights, source, self._source) if each is not None), None)
            if source is None:
                raise ValueError(f"connect() has to tell the receivers of '{self.model_id}' what comes: give a source")
            self._adopt(await self._lay_out(source))
        begun = clock.monotonic()
        if self._store is None:
            self._refuse_receivers()
        else:
            self._receivers.greet(self._store)
        self._receivers.ask_again()
        what = f"receivers of '{self.model_id}' to connect"
        await self._changes.wait_until(
            lambda: not self._receivers.unready or bool(self._receivers.refusals), timeout, what
        )
        self._check_open()  # the publisher may have been closed during the wait
        for worker_id, error in self._receivers.refusals.items():
            error.add_note(f"receiver {worker_id!r} of '{self.model_id}' does not take the weights")
            raise error
        if missing := self._receivers.unready:
            who = ", ".join(f"{name!r} ({self._receivers.label(name)})" for name in missing)
            raise DeadlineExceeded(f"receivers {who} of '{self.model_id}' did not connect within {timeout:g} s")
        if weights is not None:
            await (await self.publish(weights, timeout=clock.rest(timeout, begun), call=call))

    # -- publishing ---------------------------------------------------------------------------------------------

    def next_call(self, *, sharded: bool = False) -> GatherCall:
        """Count a call, before any check that may fail on this rank only: all ranks must count the same calls."""
        call = self._calls.next()
        if sharded:
            call.found_sharded()
        return call

    async def publish(
        self,
        source: Any = None,
        worker_ids: Sequence[Hashable] | None = None,
        *,
        version: int | None = None,
        timeout: float | None = None,
        call: GatherCall | None = None,
        deliveries: Sequence[Delivery] | None = None,
    ) -> SyncHandle:
        """Pack a version and publish it; return once the source may change.

        Args:
            source: as in the constructor, whose source is the default.
            worker_ids: ids of the recipients; by default all receivers.
            version: must be higher than the last version; by default the next number.
            timeout: seconds within which receivers must answer; by default ``ack_timeout``.
            call: result of ``next_call``, if the caller has already counted this call.
            deliveries: further receivers, which get the version as a message. If no other receiver gets the version, it
                is not packed.

        Returns:
            A handle that awaits all receivers; with deliveries, call ``collect`` first.

        Raises:
            RuntimeError: another version is pending or, with ``behind``, is being packed.
            ValueError: a receiver is unknown, or the version is not higher than the last.
            WeightMismatch: names, shapes or dtypes differ from those announced. Nothing was sent.
            ConfigError: as for ``connect``.
            TransferFailed: the weights are sharded, and another rank is not making this call. Nothing was sent.
        """
        call = self.next_call() if call is None else call
        packing = self._packing
        if packing is not None and packing.taker.is_sharded and not (packing.store is None and self.worker_ids):
            call.found_sharded()
        self._check_open()
        self._make_way()
        begun = clock.monotonic()
        names = self._receivers.meant(worker_ids)
        number = self._receivers.ledger.check(version)
        if source is None:
            source = self._source
        is_packed = bool(names) or deliveries is None
        if source is None and is_packed:
            raise ValueError(f"there is nothing to publish for '{self.model_id}': give a source")
        self._receivers.seconds = seconds = self._ack_timeout if timeout is None else timeout
        parcels = deliveries or ()
        writer, packed = None, 0
        self._is_packing = True
        try:
            if is_packed:
                writer, packed = await self._stage(source, number, names, call)
            if parcels:
                await self._deliver(parcels, WeightsMessage(self.model_id, number, source, seconds))
            self._check_open()  # the publisher may have been closed during the wait
            verifying = None if self._packing is None else self._packing.verifying
            # Pin first, because a receiver may answer as soon as it has been told about the version.
            if verifying is not None:
                self.worker_thread.start(verifying.pin, number, nbytes=None)
            handle = SyncHandle(number, seconds, self._expire, self._forget_version, parcels)
            handle.begun, handle.staged = begun, clock.monotonic() - begun
            self._handles[number] = handle
            handle.model, handle.nbytes = self.model_id, packed
            handle._event = recording.begin(EventKind.WEIGHTS, self.model_id, number)
            called = [name for delivery in parcels for name in delivery.names]
            far = self._receivers.publish(number, names, self._store, writer, called)
            recording.version(self.model_id, "published", number)
            if (far or self._receivers.has_begun(number)) and writer is not None and self._store is not None:
                bring = self._receivers.bring
                self.worker_thread.start(bring, number, far, self._store, writer, nbytes=writer.leaves.nbytes)
            self._leave_behind()
            if verifying is not None:
                self.worker_thread.start(verifying.hash, number, list(self._handles), nbytes=None)
            return handle
        # Roll back even after a cancellation, and even if everything is packed.
        except BaseException:
            self._rollback(number)
            if number > self.version and any(delivery.has_begun for delivery in parcels):
                # A receiver already knows the number, so use it up: no other version may have it.
                self._receivers.publish(number, ())
            for delivery in parcels:
                delivery.abandon()
            raise
        finally:
            self._is_packing = False

    async def _deliver(self, deliveries: Sequence[Delivery], parcel: WeightsMessage) -> None:
        for error in await asyncio.gather(*(each.stage(parcel) for each in deliveries), return_exceptions=True):
            if error is not None:
                raise error

    async def collect(self, handle: SyncHandle) -> None:
        """Wait for the answers to messages; errors as for ``SyncHandle.collect``."""
        await handle.collect(self._receivers.answered)

    def waiting_for(self, handle: SyncHandle) -> list[Hashable]:
        return self._receivers.waiting_for(handle.version)

    def next_version(self, version: int | None) -> int:
        """Return the next version's number; errors as for ``publish``."""
        return self._receivers.ledger.check(version)

    def _rollback(self, version: int) -> None:
        # Settling the handle also ends its recorded operation.
        if (handle := self._handles.pop(version, None)) is not None:
            handle._settle(error=ClosedError(f"{handle._describe()} was not published"))
        store = self._store
        if store is not None and version > self.version:
            store.withdraw(version)
        self._receivers.finish(version)
        self._receivers.abandon(version)

    async def catch_up(self, worker_ids: Sequence[Hashable], timeout: float | None) -> dict[Hashable, Ack]:
        """Return the outcome of the latest version at receivers added after it; wait at most ``timeout`` seconds.

        Raises:
            ClosedError: the publisher was closed during the wait.
        """
        version = self.version

        def find() -> dict[Hashable, Ack | None]:
            return {name: self._receivers.ack_of(name, version) for name in worker_ids}

        what = f"version {version} of '{self.model_id}' at receivers that have come since"
        await self._changes.wait_until(lambda: None not in find().values(), timeout, what)
        self._check_open()
        return {name: ack or Ack("failed", version, self._late(name, version)) for name, ack in find().items()}

    def _make_way(self) -> None:
        """Expire late versions.

        Raises:
            RuntimeError: another version is pending, and ``behind`` does not allow it.
        """
        for handle in list(self._handles.values()):
            if handle._remaining() == 0:
                handle._expire()  # no waiter has expired it
        if self._is_packing or (self._handles and not self._behind):
            version = next(iter(self._handles), self.version + 1)
            waiting = ", ".join(map(repr, self._receivers.waiting_for(version))) or "the packing"
            raise RuntimeError(
                f"version {version} of '{self.model_id}' is pending at {waiting}: await its handle, or cancel it"
            )

    def _leave_behind(self) -> None:
        """Fail the oldest pending versions, beyond ``behind``, for receivers that lack them."""
        for version in self._receivers.ledger.excess(self._behind):
            for name in self._receivers.waiting_for(version):
                who = f"receiver {name!r} ({self._receivers.label(name)})"
                lag = f"is more than {self._behind} versions of '{self.model_id}' behind"
                if (now := clock.monotonic()) >= self._named.get(name, -math.inf) + self._ack_timeout:
                    self._named[name] = now
                    logger.warning("%s %s; nobody waits for it, and once it goes on it gets the latest one", who, lag)
                error = DeadlineExceeded(f"{who} {lag}: version {self.version} is published, and it lacks {version}")
                self._receivers.fail(name, version, error)

    def _forget_version(self, version: int) -> None:
        self._handles.pop(version, None)
        self._receivers.finish(version)

    async def _stage(
        self,
        source: Any,
        version: int,
        names: Sequence[Hashable],
        call: GatherCall,
    ) -> tuple[SlotWriter | None, int]:
        """Pack a version; return its writer, which is None if another rank packs it, and its size in bytes."""
        if self._packing is None:
            self._adopt(await self._lay_out(source))
            self._check_open()
        packing = self._packing
        assert packing is not None
        if packing.store is None:
            self._refuse_receivers()
        wanted = (source, version, names, packing.marks(), call)
        writer = await self.worker_thread.do(
            packing.pack, *wanted, nbytes=None if is_streamed(source) else packing.nbytes
        )
        return writer, packing.taker.manifest.nbytes

    async def _lay_out(self, source: Any) -> Packing:
        if is_streamed(source):
            # A streamed source computes its tensors, and may wait for other ranks.
            tree = await self.worker_thread.do(layout_of, source, self._select, self.naming, nbytes=None)
        else:
            tree = self.naming.tree_of(source, self._select)
        taker = WeightSource(tree, self._select, self._transport_dtype, self.naming)
        made: list[Store] = []
        if gathers_here() or not taker.is_sharded:
            extra = len(pack_extra(tree))
            facts = (taker.manifest, self._slots, extra, self.model_id, self._gpus)
            most = self._behind + 2
            # Weights may stay on a GPU; in that case, slots are allocated at first use.
            on_gpu = bool(self._gpus.places(tree.tensors.values()))

            def make() -> None:
                made.append(Store(*facts, reserves=not on_gpu, most=most))

            try:
                await self.worker_thread.do(make, nbytes=taker.manifest.nbytes)
                self._check_open()  # the publisher may have been closed during the wait
            except BaseException:  # the caller may be cancelled after the store was created
                for each in made:
                    each.close()
                raise
        store = made[0] if made else None
        return Packing(taker, tree, store, self._receivers, self._gpus, verify=self._verify)

    def _adopt(self, packing: Packing) -> None:
        self._packing = packing
        if packing.store is not None:
            self._keep = on_drop(self, f"publisher of '{self.model_id}'", packing.store.close)

    def _refuse_receivers(self) -> None:
        if self.worker_ids:
            raise ConfigError(
                f"the weights of '{self.model_id}' are sharded and gathered on rank 0, and another rank's publisher "
                f"has receivers {', '.join(map(repr, self.worker_ids))}: add them on rank 0"
            )

    def _fill(self) -> None:
        """Copy the latest version from its GPU into its slot, for a receiver that needs it there."""
        self.worker_thread.start(self._fill_now, nbytes=None)

    def _fill_now(self) -> None:
        store, failure = self._store, None
        latest = None if store is None else store.latest
        if store is None or self._is_closed or (latest is not None and not self._receivers.is_published(latest)):
            return
        try:
            store.fill()
        except Exception as error:
            logger.exception("version %d of '%s' could not be got from its GPU", self.version, self.model_id)
            failure = error
        self._receivers.filled(store, failure)

    def _verify_in_thread(self, receiver: ReceiverState, ack: Ack, digests: Any) -> None:
        self.worker_thread.start(self._verify_now, receiver, ack, digests, nbytes=None)

    def _verify_now(self, receiver: ReceiverState, ack: Ack, digests: Any) -> None:
        packing = self._packing
        if packing is not None and packing.verifying is not None and not self._is_closed:
            self._receivers.verified(receiver, packing.verifying.judge(receiver.name, ack, digests))

    # -- outcomes --------------------------------------------------------------------------------------------------

    def _expire(self, version: int) -> None:
        for name in self._receivers.waiting_for(version):
            self._receivers.fail(name, version, self._receivers.refusals.get(name) or self._late(name, version))
        if (handle := self._handles.get(version)) is not None:
            for delivery in handle.deliveries:
                delivery.abandon()

    def _late(self, name: Hashable, version: int) -> DeadlineExceeded:
        label = self._receivers.label(name)
        return DeadlineExceeded(
            f"receiver {name!r} ({label}) has not applied version {version} of '{self.model_id}' in time"
        )

    def _complete(self, version: int) -> None:
        answers = self._receivers.finish(version)
        handle = self._handles.pop(version, None)
        if answers is not None and handle is not None:
            handle.finish(self._report(handle, answers))

    def _report(self, handle: SyncHandle, answers: Any) -> SyncReport:
        nbytes = max((handle.nbytes, *(delivery.nbytes for delivery in handle.deliveries)))
        return SyncReport(handle.version, dict(answers), nbytes, handle.staged, clock.monotonic() - handle.begun)

    # -- life ---------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._process.is_here:
            raise self._process.forked(f"the sender of '{self.model_id}'")
        if self._is_closed:
            raise ClosedError(f"the publisher of '{self.model_id}' is closed")

    async def close(self, reason: str = "") -> None:
        """Close the links and free the memory; receivers keep their last version. Idempotent.

        A cancellation is raised once everything has been closed.

        Args:
            reason: text to send to the receivers if the sender has failed.
        """
        self._is_closed = True
        for handle in list(self._handles.values()) if self._process.is_here else ():
            handle.abandon(ClosedError(f"the publisher of '{self.model_id}' is closed"))
        try:
            await self.worker_thread.wait()
        finally:
            await self._release(reason)

    async def _release(self, reason: str) -> None:
        # Drop the packing explicitly, because its gigabytes would otherwise stay allocated until the garbage collector
        # finds the cycle.
        store, packing, self._packing, self._source = self._store, self._packing, None, None
        if packing is not None and packing.verifying is not None:
            packing.verifying.end()
        try:
            if self._process.is_here:  # in a forked child, a thread of the parent may have held the lock
                self._receivers.close(reason)
                self._changes.notify()  # wake tasks that wait for receivers
            if store is not None:  # no packing or transfer uses the store any more
                await self.worker_thread.do(store.close, nbytes=store.layout.size)
        finally:
            self.worker_thread.close()
            if store is not None:  # it is open after an error, or where no thread could start
                store.close()
            self._keep()

    async def __aenter__(self) -> Publisher:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

"""``Subscriber`` receives one model's versions from a link, a call, a store or a user's transport."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from rlinf_async._core import clock
from rlinf_async._core.failures import pack_error
from rlinf_async._core.own_logger import own_logger
from rlinf_async._messaging.state.relay_plan import TO_HOSTS
from rlinf_async.errors import ClosedError, DeadlineExceeded, PeerLost, TransferFailed
from rlinf_async.weights.links.weight_link import LinkMessage, WeightLink
from rlinf_async.weights.memory.cuda import CUDA
from rlinf_async.weights.memory.gpus import Gpus
from rlinf_async.weights.memory.slot import PUBLISHED, MemoryName
from rlinf_async.weights.memory.slot_reader import MemoryGone
from rlinf_async.weights.model.naming import UNCHANGED, Naming
from rlinf_async.weights.model.param_tree import Path
from rlinf_async.weights.model.shards import ShardOption
from rlinf_async.weights.plane.applying import Applying, release_slots
from rlinf_async.weights.plane.destination import Destination
from rlinf_async.weights.plane.host_memory import HostMemory
from rlinf_async.weights.state import messages
from rlinf_async.weights.state.versions import Versioned
from rlinf_async.weights.waiting.conditions import ConditionVar, Reading
from rlinf_async.weights.waiting.execution import ProcessEnds
from rlinf_async.weights.waiting.ownership import OwnerProcess, on_drop

logger = own_logger(__name__)

_TRIES: Final = 3
"""Limit on requests for one version. A request is repeated if the host that was asked ends before it answers."""

_LOOK_AGAIN_S: Final = 0.5
"""Interval at which ``close`` checks another thread's loop, which does not report when it stops."""


class Subscriber(Versioned):
    """A receiver of one model's weights, over a link or through ``accept``. It applies complete versions only.

    With a link, call ``receive`` repeatedly, or ``serve`` once::

        async with Subscriber(link, model) as subscriber:
            await subscriber.connect()
            subscriber.serve()
            async with subscriber.reading() as version:      # no update is applied in this block
                samples = rollout(model), version

    After the sender has ended, the last complete version stays in place. Methods may be called from any loop,
    ``reading()`` also from any thread.

    Args:
        link: link to the sender; None if weights arrive only through ``accept``.
        destination: a module, nested dicts of tensors, or a TensorDict, whose tensors receive the weights; or a
            function that is called with ``{path: tensor}`` and must not keep the tensors; None discards the weights.
        apply: ``"copy"`` overwrites the tensors. ``"map"`` remaps them to the sender's memory; writing to them
            afterwards crashes the process or, on a GPU, changes what other receivers see.
        verify: ``"sha256"`` sends digests of the destination to the sender.
        ack_timeout: seconds to wait for readers to leave before a version is applied.
        find: function that returns the destination, which may change between versions, or raises an error that says why
            there is none.
        strict_dtype: refuse weights whose dtype differs from the destination's instead of casting them.
        naming: mapping from the destination's names to the sender's.
        shard: mesh and placements of plain tensors that are shards; see ``Fit``.
        gpus: interface to the GPUs.

    Attributes:
        gate: gate between readers and the writer.
        pause_s: seconds during which readers were kept out while the last version was applied.
    """

    def __init__(
        self,
        link: WeightLink | None,
        destination: Any = None,
        *,
        model_id: str = "policy",
        apply: str = "copy",
        verify: str = "off",
        ack_timeout: float = 60.0,
        find: Callable[[], Any] | None = None,
        strict_dtype: bool = False,
        naming: Naming = UNCHANGED,
        shard: ShardOption = None,
        gpus: Gpus = CUDA,
    ) -> None:
        self.link = link
        self._listens = False
        self._process: OwnerProcess | None = None
        self._model_id = model_id
        self._maps = apply == "map"
        self._applying = Applying(
            Destination(
                find or (lambda: destination),
                maps=apply == "map",
                strict_dtype=strict_dtype,
                naming=naming,
                shard=shard,
                gpus=gpus,
            ),
            model_id,
            gpus,
            maps=apply == "map",
            verify=verify,
            patience=ack_timeout,
        )
        self._reception = self._applying.reception
        self.gate = self._applying.gate
        self.pause_s = 0.0
        self._changes = ConditionVar(model_id)
        self._inbox: deque[LinkMessage] = deque()
        """Received messages not yet processed."""
        self._owed: list[int] = []
        """Versions not yet acknowledged."""
        self._end: Exception | None = None
        self._why = ""
        """Text of the error that made the sender close; empty if the sender has not failed."""
        self._host: HostMemory | None = None
        self._keep: Callable[[], object] | None = None
        """Function that cancels the release of the leases when this object is dropped."""
        self._serving: asyncio.Task[None] | None = None
        self._is_refused = False
        """True if the announced weights do not fit, or are still being checked."""
        self._lacked: list[int] = []
        """The last requested version, repeated once per request."""
        self._is_taking = False
        self._is_closed = False
        self._has_ended = False

    def __repr__(self) -> str:
        return f"<Subscriber of '{self._model_id}' version {self.version}, {self.staleness} behind>"

    # -- versions -----------------------------------------------------------------------------------------------

    @property
    def extra(self) -> Mapping[Path, Any]:
        """Values other than tensors in the sender's model, from the applied version."""
        return self._applying.extra

    def reading(self, timeout: float | None = None) -> Reading:
        """Return a ``with`` or ``async with`` block in which no update is applied.

        The block's value is the version, to be stored with results computed from the weights.

        Raises:
            DeadlineExceeded: on entering: an update was still being applied after ``timeout`` seconds.
            TransferFailed: on entering: the last update failed midway, and no complete version has followed yet.
        """
        self._check_process()
        return Reading(self.gate, timeout, owner=self)

    async def wait_version(self, version: int, timeout: float | None = None) -> None:
        """Wait until this version or a later one has been applied; receive in the meantime, unless ``serve`` does.

        Raises:
            DeadlineExceeded: no such version has arrived within ``timeout`` seconds.
            PeerLost: the sender has ended.
        """
        await self._wait(lambda: self.version >= version, timeout, f"version {version}")

    async def wait_fresh(self, max_lag: int, timeout: float | None = None) -> None:
        """Wait, as ``wait_version`` does, until at most ``max_lag`` published versions are missing."""
        await self._wait(lambda: self.staleness <= max_lag, timeout, f"a version at most {max_lag} behind")

    async def _wait(self, condition: Callable[[], bool], timeout: float | None, what: str) -> None:
        what = f"{what} of '{self._model_id}'"
        if not await self._until(condition, timeout, what):
            raise DeadlineExceeded(
                f"{what} has not come within {timeout:g} s: it is at version {self.version}, and "
                f"{self.published} is published"
            )

    async def _until(self, condition: Callable[[], bool], timeout: float | None, what: str) -> bool:
        """Receive (unless ``serve`` does) until the condition holds; return False on timeout."""
        self._check_process()
        begun = clock.monotonic()
        while not condition():
            remaining = clock.rest(timeout, begun)
            if self._serving is not None:
                await self._changes.wait_until(lambda: condition() or self._serving is None, remaining, what)
            else:
                self._check_open()
                self._listen()
                await self._receive(remaining, condition, what)
            if remaining == 0:
                return condition()
        return True

    @property
    def has_met(self) -> bool:
        """True if the sender has announced weights that fit."""
        return self._applying.leases.manifest is not None

    # -- receiving ----------------------------------------------------------------------------------------------

    def on_message(self, message: LinkMessage) -> None:
        """Queue a message for the receiving task. May be called from any thread."""
        what, *facts = message
        if what == messages.PUBLISH:
            self._reception.heard(facts[0])
        elif what == messages.LEAVE:
            self._why = facts[0]
            return
        elif what in TO_HOSTS:
            # If ``_host`` is None, this process is no longer its machine's host, and the sender did not know that yet.
            if self._host is not None:
                self._host.host.on_message(what, *facts)
            return
        if what in (messages.HELLO, messages.HOST):
            self._host_begins(facts)
        self._inbox.append(message)
        self._changes.notify()

    def on_end(self, error: Exception) -> None:
        """Record the error that ended the link, and wake all waits."""
        if self._why:
            error = ClosedError(f"the sender of '{self._model_id}' has left by an error: {self._why}")
        self._end = error
        if self._host is not None:
            self._host.host.close(error)
        self._changes.notify()

    def _host_begins(self, facts: list[Any]) -> None:
        """Become this machine's host if the message names a stream. Called on arrival, ahead of queued messages."""
        if self._host is not None:
            self._host.close()
            self._host = None
        manifest, extra, slots, _, _, *lines = facts
        if lines and self.link is not None:
            self._host = HostMemory(self.link, manifest, extra, slots, lines[0], self._model_id)

    async def connect(self, timeout: float | None = 60.0) -> None:
        """Wait for the sender, agree with it on the weights, and apply the published version, if there is one.

        Raises:
            DeadlineExceeded: the sender has not connected within ``timeout`` seconds.
            WeightMismatch: the weights do not fit; the sender gets the same error.
            PeerLost: the sender has ended.
        """
        self._check_open()
        what = f"the sender of '{self._model_id}'"
        if not await self._until(lambda: self.has_met and not self._is_refused, timeout, what):
            assert self.link is not None
            sender = f"the sender of '{self._model_id}' ({self.link.label})"
            raise DeadlineExceeded(f"{sender} did not connect within {timeout:g} s")

    async def begin(self, timeout: float | None) -> None:
        """Connect, and wait for the first version; errors as for ``connect`` and ``wait_version``."""
        begun = clock.monotonic()
        await self.connect(timeout)
        await self.wait_version(1, clock.rest(timeout, begun))

    async def receive(self, timeout: float | None = 0.001) -> bool:
        """Apply the latest published version, if it is new.

        Args:
            timeout: seconds to wait for a version; None waits forever.

        Returns:
            True if a new version was applied.

        Raises:
            WeightMismatch, Exception: the version could not be applied; the sender gets the same error, and the last
                version stays.
            PeerLost: the sender has ended, and no version is left to apply.
            ForkedProcessError: this process is a forked child of the owner.
        """
        before = self.version
        return await self._until(
            lambda: self.version > before, timeout, f"a version of '{self._model_id}' after {before}"
        )

    def belongs_here(self) -> None:
        """Make this process the owner; copies in its forked children cannot be used."""
        self._process = self._process or OwnerProcess()

    def _listen(self) -> None:
        if self.link is not None and not self._listens:
            self._listens = True
            self.belongs_here()
            self.link.listen(self)

    async def _receive(self, timeout: float | None, enough: Callable[[], bool] = lambda: False, what: str = "") -> None:
        """Process received messages; also return once ``enough`` is true, because another task may receive them."""

        def is_there() -> bool:
            return enough() or (not self._is_taking and bool(self._inbox or self._end or self._is_closed))

        if not await self._changes.wait_until(is_there, timeout, what) or enough():
            return
        if not self._inbox:
            self._check_open()
            assert self._end is not None
            await self._applying.move_out()
            raise self._end.with_traceback(None)
        self._is_taking = True
        try:
            while self._inbox:
                batch = self._next()
                try:
                    await self._act(batch)
                except asyncio.CancelledError:
                    self._inbox.extendleft(reversed(batch))  # leave the messages to the next caller
                    raise
        finally:
            self._is_taking = False
            self._changes.notify()

    def _next(self) -> list[LinkMessage]:
        """Take one message, or several announced versions, of which only the last counts.

        An announcement without memory is taken alone: on another machine, an earlier version may arrive after it.
        """
        inbox = self._inbox
        batch = [inbox.popleft()]
        while _is_there(batch[-1]) and inbox and _is_there(inbox[0]):
            batch.append(inbox.popleft())
        return batch

    async def _act(self, batch: list[LinkMessage]) -> None:
        what, *facts = batch[-1]
        if what == messages.PUBLISH:
            _, memory, sent = facts
            if memory is not None:
                await self._apply([each[1] for each in batch], memory, sent)
            else:
                await self._agree()
                self._send_ack(0, None)
        elif what in (messages.HELLO, messages.HOST):
            await self._meet(*facts[:5])
        else:
            logger.warning("%r has heard %r, which means nothing to it", self, what)

    async def _meet(self, manifest: bytes, extra: int, slots: int, memory: Any, version: int) -> None:
        applying = self._applying
        # If both ends are in one process, only the sender's end warns.
        if self._keep is None:
            what = "" if self.link is None or self.link.is_here else f"subscriber of '{self._model_id}'"
            destination = applying.destination if self._maps else None
            self._keep = on_drop(self, what, functools.partial(release_slots, destination, applying.leases))
        self._reception.heard(version)
        try:
            await self._agree((manifest, extra, slots))
        except Exception as error:
            if version:
                self._send_ack(version, pack_error(error))
            raise
        self._send_ack(0, None)
        if version:
            await self._apply([version], memory, None)

    async def _agree(self, offer: tuple[bytes, int, int] | None = None) -> None:
        """Check whether the announced weights fit: on announcement, after a change of the model, and after a refusal.

        Raises:
            WeightMismatch, Exception: the weights do not fit, or there is no destination.
        """
        applying = self._applying
        if offer is None and not self._is_refused and not applying.destination.has_moved():
            return
        self._is_refused = True
        try:
            await applying.agree(offer)
        except Exception as error:
            self._send_ack(0, pack_error(error))
            raise
        self._is_refused = False

    async def _apply(self, versions: list[int], memory: Any, sent: float | None) -> None:
        """Apply the version in that memory and acknowledge these versions, or leave both to the next message."""
        received = clock.monotonic()
        applying = self._applying
        self._owed += versions
        try:
            await self._agree()
            try:
                leased = await applying.lease(MemoryName(*memory))
            except MemoryGone:
                # The memory vanishes when its sender ends; the next wait raises the error that reports the end.
                # tests/weights/test_hosts_that_leave.py::test_memory_that_went_with_its_sender_is_told_as_its_end
                if self._end is None and not self._lacks(versions[-1], memory):
                    raise
                return
            if leased is None:  # the slot is being rewritten, and its new version will be announced next
                return
            is_published = leased.header.places & PUBLISHED
            if leased.views is None:
                if is_published:
                    self._send(messages.NEED, leased.header.version, None)
                return
            try:
                # The slot holds a newer version, which may still be withdrawn before its publication.
                # tests/weights/plane/test_behind.py::test_what_is_packed_and_not_published_is_not_applied
                if not is_published:
                    return
                pause = self.pause_s = await applying.apply(leased)
            finally:
                applying.leases.release(leased.reader)
            self._changes.notify()  # wake the waiters now: readers may hold up the next version
        except Exception as error:
            self._acknowledge(pack_error(error))
            self._check_open()  # a closed subscriber has no memory, so any error is possible
            raise
        late = 0.0 if sent is None else received - sent
        self._acknowledge(None, late, clock.monotonic() - received, pause, applying.digests)

    def _lacks(self, version: int, memory: Any) -> bool:
        """Request a version whose memory has vanished, perhaps with its owner; return False after too many requests."""
        self._lacked = [*(each for each in self._lacked if each == version), version]
        if len(self._lacked) > _TRIES:
            return False
        self._send(messages.NEED, version, memory)
        return True

    def _acknowledge(self, failure: Any, *facts: Any) -> None:
        owed, self._owed = dict.fromkeys(self._owed), []
        for version in owed:
            self._send_ack(version, failure, *facts)

    def _send_ack(self, version: int, failure: Any, *facts: Any) -> None:
        self._send(messages.ACK, version, failure, self._applying.leases.gpu, *(facts or (0.0, 0.0, 0.0, None)))

    def _send(self, *message: Any) -> None:
        assert self.link is not None
        try:
            self.link.send(list(message))
        except (PeerLost, ClosedError, TransferFailed) as error:
            logger.info("%r could not answer: %s", self, error)

    async def accept(self, write: Callable[[], Any], version: int | None = None, sender: Any = None) -> bool:
        """Write weights from a call, a store or a user's transport once readers have left.

        Args:
            version: number of the weights; None keeps the number if a sender on the link counts versions, otherwise
                uses the next number.
            sender: identity of the sender, if known.

        Returns:
            False if the model already has this version.

        Raises:
            ValueError: the model has a later version, or another sender's version with that number; nothing was
                written.
            DeadlineExceeded: readers did not leave in time; nothing was written.
            Exception: raised by ``write``.
        """
        self._check_process()
        is_new = await self._applying.overwrite(write, version, sender)
        self._changes.notify()
        return is_new

    # -- life ---------------------------------------------------------------------------------------------------

    def serve(self, within: contextlib.AbstractContextManager[object] | None = None) -> asyncio.Task[None]:
        """Receive in a background task on the running loop until ``close`` is called.

        Updates that cannot be applied are reported to the sender and logged here. The task ends when the sender has
        ended.

        Args:
            within: context manager entered while the task runs.

        Raises:
            RuntimeError: it is already serving, or this thread runs no loop.
        """
        self._check_open()
        if self._serving is not None:
            raise RuntimeError(f"{self!r} serves already")
        serving = asyncio.get_running_loop().create_task(self._serve(within), name=f"weights of {self._model_id}")
        self._listen()
        self._serving = serving
        serving.add_done_callback(self._has_served)
        return serving

    def _has_served(self, _: asyncio.Task[None]) -> None:
        self._serving = None
        self._changes.notify()

    async def _serve(self, within: contextlib.AbstractContextManager[object] | None) -> None:
        with within or contextlib.nullcontext():
            while True:
                try:
                    await self._receive(None)
                except Exception as error:
                    # Compare the error object itself, because the model may raise the same types of errors as a link.
                    if self._is_closed or error is self._end or isinstance(error, ProcessEnds):
                        logger.info("%r: nothing more will come: %s", self, error)
                        return
                    logger.exception("an update of '%s' could not be applied", self._model_id)

    def _check_open(self) -> None:
        self._check_process()
        if self._is_closed:
            raise ClosedError(f"the subscriber of '{self._model_id}' is closed")

    def _check_process(self) -> None:
        if self._process is not None and not self._process.is_here:
            raise self._process.forked(f"the receiver of '{self._model_id}'")

    async def close(self) -> None:
        """Close the link and release the memory; once readers have left, mapped tensors get their own memory.

        A close that has begun completes, and a cancellation is raised afterwards. Idempotent.
        """
        if self._has_ended:
            return
        self._is_closed = True
        async with contextlib.AsyncExitStack() as then:  # callbacks run in reverse order
            then.callback(self._ended)
            is_copy = self._process is not None and not self._process.is_here
            # This callback runs after the host's close, because callbacks run in reverse order.
            then.push_async_callback(self._applying.close, is_copy=is_copy)
            then.push_async_callback(self._end_host)
            if self.link is not None:
                then.callback(self.link.close)
            await self._end_serving()

    async def _end_serving(self) -> None:
        """Cancel the task and wait for its end, unless its loop has stopped and the wait would never end."""
        serving = self._serving
        if serving is None or self._process is None or not self._process.is_here:
            return
        loop = serving.get_loop()
        if loop is asyncio.get_running_loop():
            serving.cancel()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(serving.cancel)
        while loop.is_running() and not await self._changes.wait_until(serving.done, _LOOK_AGAIN_S):
            pass

    async def _end_host(self) -> None:
        if self._host is not None:
            await self._host.close()

    def _ended(self) -> None:
        if self._keep is not None:
            self._keep()
        self._applying.destination.forget()
        self._has_ended = True
        self._changes.notify()

    async def __aenter__(self) -> Subscriber:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


def _is_there(message: LinkMessage) -> bool:
    """True if the message names the memory of a version."""
    return bool(message[0] == messages.PUBLISH and message[2] is not None)

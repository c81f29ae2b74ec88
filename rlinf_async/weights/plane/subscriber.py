"""``Subscriber``: a receiver's versions, which a link, a call, a store or a user's transport brings."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from rlinf_async._core import clock, process
from rlinf_async._core.failures import pack_error
from rlinf_async._core.own_logger import own_logger
from rlinf_async._messaging.state.relay_plan import TO_HOSTS
from rlinf_async.errors import ClosedError, DeadlineExceeded, PeerLost, TransferFailed
from rlinf_async.weights.links.weight_link import Link, Words
from rlinf_async.weights.memory.cuda import CUDA
from rlinf_async.weights.memory.gpus import Gpus
from rlinf_async.weights.memory.slot import PUBLISHED, MemoryName
from rlinf_async.weights.memory.slot_reader import MemoryGone
from rlinf_async.weights.model.naming import UNCHANGED, Naming
from rlinf_async.weights.model.param_tree import Path
from rlinf_async.weights.model.shards import ShardOption
from rlinf_async.weights.plane.applying import Applying, give_back
from rlinf_async.weights.plane.destination import Destination
from rlinf_async.weights.plane.host_memory import HostMemory
from rlinf_async.weights.state import words as say
from rlinf_async.weights.waiting.aside import ProcessEnds
from rlinf_async.weights.waiting.changes import Changes
from rlinf_async.weights.waiting.dropped import on_drop
from rlinf_async.weights.waiting.gate import Reading

logger = own_logger(__name__)

_TRIES: Final = 3
"""Times that one version is asked for: each time another host may have ended."""

_LOOK_AGAIN_S: Final = 0.5
"""Seconds after which ``close`` looks whether another thread's loop has stopped, of which nobody hears."""


class Subscriber:
    """Receives one model's weights, in whole versions only: at its end of a link, or as they are handed to it.

    At a link, somebody has to ``receive``, again and again, or to ``serve`` once::

        async with Subscriber(link, model) as subscriber:
            await subscriber.connect()
            subscriber.serve()
            async with subscriber.reading() as version:      # no update is applied meanwhile
                samples = rollout(model), version

    When the sender is gone, the last whole version stays.  Methods may be called from any loop, ``reading()`` also from
    any thread.

    Args:
        link: to the sender; None where ``accept`` alone brings weights.
        destination: a module, nested dicts of tensors, or a TensorDict, whose tensors get the weights; or a function
            that is called with ``{path: tensor}`` and must not keep them; None: the weights are only looked at.
        apply: ``"copy"``: the tensors are overwritten.  ``"map"``: they come to stand in the sender's memory, and to
            write to them then is a fault that ends the process; on a GPU it is none, and other receivers see it.
        verify: ``"sha256"``: the sender hears digests of what the destination holds.
        ack_timeout: seconds that readers have to leave when a version is to be applied.
        find: gives the destination, which may be another one from version to version, or raises why there is none.
        strict_dtype: weights in another dtype than the destination's are refused, and not cast.
        naming: gives the names under which the sender knows the destination's tensors.
        shard: mesh and placements of plain tensors that are shards; see ``Fit``.
        gpus: in the place of CUDA's.

    Attributes:
        gate: between readers and what applies a version.
        pause_s: seconds for which nobody could read while the last version was applied.
    """

    def __init__(
        self,
        link: Link | None,
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
        self._pid: int | None = None
        """The process that listens to the link, or to which weights have come as a message."""
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
        self._reception, self.gate = self._applying.reception, self._applying.gate
        self.pause_s = 0.0
        self._changes = Changes(model_id)
        self._news: deque[Words] = deque()
        """What is heard and not acted on yet."""
        self._owed: list[int] = []
        """Versions that were heard of and not acknowledged."""
        self._end: Exception | None = None
        self._why = ""
        """The sender's last word, where it has failed."""
        self._host: HostMemory | None = None
        self._keep: Callable[[], object] | None = None
        """Prevents that what is leased is given back a second time, when this is dropped."""
        self._serving: asyncio.Task[None] | None = None
        self._is_refused = False
        """Whether the offer of the sender does not fit, or has not been judged to the end."""
        self._lacked: list[int] = []
        """The version that was asked for last, as often as it was."""
        self._is_taking = False
        self._is_closed = False
        self._has_ended = False

    def __repr__(self) -> str:
        return f"<Subscriber of '{self._model_id}' version {self.version}, {self.staleness} behind>"

    # -- versions -----------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """That is applied; 0 before the first.  It never goes back."""
        return self._reception.version

    @property
    def published(self) -> int:
        """The latest that was heard of."""
        return self._reception.published

    @property
    def staleness(self) -> int:
        """Versions that the weights are behind."""
        return self._reception.staleness

    @property
    def extra(self) -> Mapping[Path, Any]:
        """What the sender's model has beside its tensors, as of this version."""
        return self._applying.extra

    def reading(self, timeout: float | None = None) -> Reading:
        """``with`` or ``async with`` it around a use of the weights: none are applied meanwhile.

        It gives the version, to be kept with what is made of the weights.

        Raises:
            DeadlineExceeded: on entering: an update was being applied for ``timeout`` seconds.
            TransferFailed: on entering: the last update broke off half way, and no whole version has come since.
        """
        self._check_process()
        return Reading(self.gate, timeout, owner=self)

    async def wait_version(self, version: int, timeout: float | None = None) -> None:
        """Waits until this version, or a later one, is applied; receives meanwhile, unless it serves.

        Raises:
            DeadlineExceeded: it has not come within ``timeout`` seconds.
            PeerLost: the sender is gone.
        """
        await self._wait(lambda: self.version >= version, timeout, f"version {version}")

    async def wait_fresh(self, max_lag: int, timeout: float | None = None) -> None:
        """Waits until at most ``max_lag`` published versions are missing, as ``wait_version``."""
        await self._wait(lambda: self.staleness <= max_lag, timeout, f"a version at most {max_lag} behind")

    async def _wait(self, condition: Callable[[], bool], timeout: float | None, what: str) -> None:
        what = f"{what} of '{self._model_id}'"
        if not await self._until(condition, timeout, what):
            raise DeadlineExceeded(
                f"{what} has not come within {timeout:g} s: it is at version {self.version}, and "
                f"{self.published} is published"
            )

    async def _until(self, condition: Callable[[], bool], timeout: float | None, what: str) -> bool:
        """Receives, unless it serves, until the condition has come true; whether it has, within ``timeout`` seconds.

        Args:
            what: is waited for, in words.
        """
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
        """Whether the sender has said what comes, and it fits."""
        return self._applying.leases.manifest is not None

    # -- receiving ----------------------------------------------------------------------------------------------

    def hear(self, words: Words) -> None:
        """A word of the sender; from any thread.  It is acted on by whoever receives."""
        what, *facts = words
        if what == say.PUBLISH:
            self._reception.heard(facts[0])
        elif what == say.LEAVE:
            self._why = facts[0]
            return
        elif what in TO_HOSTS:
            if self._host is not None:  # or it is the host no more, which the sender may not have known
                self._host.host.hear(what, *facts)
            return
        if what in (say.HELLO, say.HOST):
            self._host_begins(facts)
        self._news.append(words)
        self._changes.notify()

    def hear_end(self, error: Exception) -> None:
        """Notes that the link has ended, and why, and wakes all waiters."""
        if self._why:
            error = ClosedError(f"the sender of '{self._model_id}' has left by an error: {self._why}")
        self._end = error
        if self._host is not None:
            self._host.host.close(error)
        self._changes.notify()

    def _host_begins(self, facts: list[Any]) -> None:
        """With a line, this is the receiver that gets the weights for all of its machine, whatever it is busy with."""
        if self._host is not None:
            self._host.close()
            self._host = None
        manifest, extra, slots, _, _, *lines = facts
        if lines and self.link is not None:
            self._host = HostMemory(self.link, manifest, extra, slots, lines[0], self._model_id)

    async def connect(self, timeout: float | None = 60.0) -> None:
        """Waits for the sender and agrees with it on the weights; what is published already is applied.

        Raises:
            DeadlineExceeded: the sender has not come within ``timeout`` seconds.
            WeightMismatch: its weights do not fit; it hears the same.
            PeerLost: it is gone.
        """
        self._check_open()
        what = f"the sender of '{self._model_id}'"
        if not await self._until(lambda: self.has_met and not self._is_refused, timeout, what):
            assert self.link is not None
            sender = f"the sender of '{self._model_id}' ({self.link.label})"
            raise DeadlineExceeded(f"{sender} did not connect within {timeout:g} s")

    async def receive(self, timeout: float | None = 0.001) -> bool:
        """Applies what has been published, if there is something.

        Args:
            timeout: seconds to wait for it; None: until it comes.

        Returns:
            Whether there is a new version.

        Raises:
            WeightMismatch, Exception: it could not be applied; the sender hears the same, and the last version stays.
            PeerLost: the sender is gone, and there is nothing left to apply.
            ForkedProcessError: the process that it belongs to has forked this one.
        """
        before = self.version
        return await self._until(
            lambda: self.version > before, timeout, f"a version of '{self._model_id}' after {before}"
        )

    def belongs_here(self) -> None:
        """Keep forked processes from using their copies."""
        self._pid = self._pid or process.pid

    def _listen(self) -> None:
        if self.link is not None and not self._listens:
            self._listens = True
            self.belongs_here()
            self.link.listen(self)

    async def _receive(self, timeout: float | None, enough: Callable[[], bool] = lambda: False, what: str = "") -> None:
        """Acts on what is heard; ``enough`` ends the wait too: somebody else may receive what is waited for."""

        def is_there() -> bool:
            return enough() or (not self._is_taking and bool(self._news or self._end or self._is_closed))

        if not await self._changes.wait_until(is_there, timeout, what) or enough():
            return
        if not self._news:
            self._check_open()
            assert self._end is not None
            await self._applying.move_out()
            raise self._end.with_traceback(None)
        self._is_taking = True
        try:
            while self._news:
                words = self._next()
                try:
                    await self._act(words)
                except asyncio.CancelledError:
                    self._news.extendleft(reversed(words))  # for who receives next
                    raise
        finally:
            self._is_taking = False
            self._changes.notify()

    def _next(self) -> list[Words]:
        """One word; or several published versions that are there to be read, of which only the last counts.

        One that is only asked about is no such: on another machine the one before may land after the question.
        """
        news = self._news
        words = [news.popleft()]
        while _is_there(words[-1]) and news and _is_there(news[0]):
            words.append(news.popleft())
        return words

    async def _act(self, words: list[Words]) -> None:
        what, *facts = words[-1]
        if what == say.PUBLISH:
            _, memory, sent = facts
            if memory is not None:
                await self._apply([each[1] for each in words], memory, sent)
            else:
                await self._agree()
                self._say_ack(0, None)
        elif what in (say.HELLO, say.HOST):
            await self._meet(*facts[:5])
        else:
            logger.warning("%r has heard %r, which means nothing to it", self, what)

    async def _meet(self, manifest: bytes, extra: int, slots: int, memory: Any, version: int) -> None:
        """The sender says what comes."""
        applying = self._applying
        if self._keep is None:  # of two ends in one process, the sender's warns
            what = "" if self.link is None or self.link.is_here else f"subscriber of '{self._model_id}'"
            destination = applying.destination if self._maps else None
            self._keep = on_drop(self, what, functools.partial(give_back, destination, applying.leases))
        self._reception.heard(version)
        try:
            await self._agree((manifest, extra, slots))
        except Exception as error:
            if version:
                self._say_ack(version, pack_error(error))
            raise
        self._say_ack(0, None)
        if version:
            await self._apply([version], memory, None)

    async def _agree(self, offer: tuple[bytes, int, int] | None = None) -> None:
        """Judges what comes: when the sender says it, when the model has changed since, and after it did not fit.

        Raises:
            WeightMismatch, Exception: it does not fit, or there is nothing that it could go to.
        """
        applying = self._applying
        if offer is None and not self._is_refused and not applying.destination.has_moved():
            return
        self._is_refused = True
        try:
            await applying.agree(offer)
        except Exception as error:
            self._say_ack(0, pack_error(error))
            raise
        self._is_refused = False

    async def _apply(self, versions: list[int], memory: Any, sent: float | None) -> None:
        """Applies what is in that memory, and acknowledges these versions, or leaves that to the next one."""
        received = clock.monotonic()
        applying = self._applying
        self._owed += versions
        try:
            await self._agree()
            try:
                leased = await applying.lease(MemoryName(*memory))
            except MemoryGone:
                # A sender that has ended takes its memory along, and the next wait raises its end.
                # tests/weights/test_hosts_that_leave.py::test_memory_that_went_with_its_sender_is_told_as_its_end
                if self._end is None and not self._lacks(versions[-1], memory):
                    raise
                return
            if leased is None:  # it is being written again: that version comes next
                return
            is_published = leased.header.places & PUBLISHED
            if leased.views is None:
                if is_published:
                    self._say(say.NEED, leased.header.version, None)
                return
            try:
                # It has been written again and may be withdrawn before it is published; another version is on its way.
                # tests/weights/plane/test_behind.py::test_what_is_packed_and_not_published_is_not_applied
                if not is_published:
                    return
                pause = self.pause_s = await applying.apply(leased)
            finally:
                applying.leases.release(leased.reader)
            self._changes.notify()  # the next one may have to wait for readers
        except Exception as error:
            self._acknowledge(pack_error(error))
            self._check_open()  # its memory is gone then, and all sorts of things go wrong
            raise
        late = 0.0 if sent is None else received - sent
        self._acknowledge(None, late, clock.monotonic() - received, pause, applying.digests)

    def _lacks(self, version: int, memory: Any) -> bool:
        """Asks for a version whose memory is gone, with its owner perhaps; False if that was in vain already."""
        self._lacked = [*(each for each in self._lacked if each == version), version]
        if len(self._lacked) > _TRIES:
            return False
        self._say(say.NEED, version, memory)
        return True

    def _acknowledge(self, failure: Any, *facts: Any) -> None:
        owed, self._owed = dict.fromkeys(self._owed), []
        for version in owed:
            self._say_ack(version, failure, *facts)

    def _say_ack(self, version: int, failure: Any, *facts: Any) -> None:
        self._say(say.ACK, version, failure, self._applying.leases.gpu, *(facts or (0.0, 0.0, 0.0, None)))

    def _say(self, *words: Any) -> None:
        assert self.link is not None
        try:
            self.link.send(list(words))
        except (PeerLost, ClosedError, TransferFailed) as error:
            logger.info("%r could not answer: %s", self, error)

    async def accept(self, write: Callable[[], Any], version: int | None = None, sender: Any = None) -> bool:
        """Has weights written that a call, a store or a user's transport has brought, while nobody reads.

        Args:
            version: that they are; None: that they have none.  It stays then, if a sender at the link counts; else it
                is the next one.
            sender: whose version it is, where that is told.

        Returns:
            Whether they were new: the version that is here already is not written again.

        Raises:
            ValueError: a later version is here, or one of another sender with that number; nothing was written.
            DeadlineExceeded: readers have not left in time; likewise.
            Exception: what ``write`` raises.
        """
        self._check_process()
        is_new = await self._applying.overwrite(write, version, sender)
        self._changes.notify()
        return is_new

    # -- life ---------------------------------------------------------------------------------------------------

    def serve(self, within: contextlib.AbstractContextManager[object] | None = None) -> asyncio.Task[None]:
        """Receives in the background of the loop that runs here, until ``close``.

        Args:
            within: is entered meanwhile.

        What cannot be applied is told to the sender and logged here; when the sender is gone, the task ends with that.

        Raises:
            RuntimeError: it serves already, or no loop runs here.
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
                    # The model may raise what a link ends with, and a link may end with any error.
                    if self._is_closed or error is self._end or isinstance(error, ProcessEnds):
                        logger.info("%r: nothing more will come: %s", self, error)
                        return
                    logger.exception("an update of '%s' could not be applied", self._model_id)

    def _check_open(self) -> None:
        self._check_process()
        if self._is_closed:
            raise ClosedError(f"the subscriber of '{self._model_id}' is closed")

    def _check_process(self) -> None:
        """A forked one has no thread that reads the link, and another one may have been in the gate."""
        if self._pid not in (None, process.pid):
            raise process.forked(f"the receiver of '{self._model_id}'", self._pid)

    async def close(self) -> None:
        """Gives back the link and the memory; once readers have left, mapped tensors get memory of their own.

        It does all of that once it has begun; a cancellation is passed on afterwards.  Idempotent.
        """
        if self._has_ended:
            return
        self._is_closed = True
        async with contextlib.AsyncExitStack() as then:  # what is named last comes first
            then.callback(self._ended)
            is_copy = self._pid not in (None, process.pid)
            then.push_async_callback(self._applying.close, is_copy=is_copy)  # behind what is copied
            then.push_async_callback(self._end_host)
            if self.link is not None:
                then.callback(self.link.close)
            await self._end_serving()

    async def _end_serving(self) -> None:
        """Cancels the task, and waits for its end, unless its loop does not run: that would be for ever."""
        serving = self._serving
        if serving is None or self._pid != process.pid:
            return
        loop = serving.get_loop()
        if loop is asyncio.get_running_loop():
            serving.cancel()
        else:
            with contextlib.suppress(RuntimeError):  # it is closed
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


def _is_there(words: Words) -> bool:
    """Whether they say in which memory a version is."""
    return bool(words[0] == say.PUBLISH and words[2] is not None)

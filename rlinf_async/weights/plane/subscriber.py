"""``Subscriber``: the receiver's side of the shared-memory plane."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from rlinf_async._core import process
from rlinf_async._messaging.state.relay_plan import TO_HOSTS
from rlinf_async.errors import ClosedError, DeadlineExceeded, PeerLost, TransferFailed
from rlinf_async.weights.links.link import Link, Words
from rlinf_async.weights.memory.cuda import CUDA
from rlinf_async.weights.memory.gpus import Gpus
from rlinf_async.weights.memory.leases import Leases
from rlinf_async.weights.memory.slot import MemoryName
from rlinf_async.weights.model.param_tree import Path
from rlinf_async.weights.plane.agreement import Agreement
from rlinf_async.weights.plane.answers import Answers
from rlinf_async.weights.plane.applying import Applying
from rlinf_async.weights.plane.destination import Destination
from rlinf_async.weights.plane.host_memory import HostMemory
from rlinf_async.weights.state import words as say
from rlinf_async.weights.state.news import News
from rlinf_async.weights.state.versions import Reception
from rlinf_async.weights.waiting.aside import Aside
from rlinf_async.weights.waiting.background import Background
from rlinf_async.weights.waiting.changes import Changes
from rlinf_async.weights.waiting.dropped import on_drop
from rlinf_async.weights.waiting.gate import Reading, ReadingGate

logger = logging.getLogger(__name__)


class Subscriber:
    """Receives one model's weights at its end of a link, in whole versions only.

    Somebody has to ``receive``, again and again, or to ``serve`` once::

        async with Subscriber(link, model) as subscriber:
            await subscriber.connect()
            subscriber.serve()
            async with subscriber.reading() as version:      # no update is applied meanwhile
                samples = rollout(model), version

    When the sender is gone, the last whole version stays.  Methods may be called from any loop, ``reading()`` also from
    any thread.

    Args:
        destination: a module, nested dicts of tensors, or a TensorDict, whose tensors get the weights; or a function
            that is called with ``{path: tensor}`` and must not keep them; None: the weights are only looked at.
        apply: ``"copy"``: the tensors are overwritten.  ``"map"``: they come to stand in the sender's memory, and to
            write to them then is a fault that ends the process; on a GPU it is none, and other receivers see it.
        policy: ``"latest"``: versions that are late are skipped.  ``"all"``: those that the sender has given up, when
            their time was over or nobody waited, may be: it uses their memory again.
        verify: ``"crc"``: checksums are checked, where the sender makes them.
        ack_timeout: seconds that readers have to leave when a version is to be applied.
        find: gives the destination, which may be another one from version to version, or raises why there is none.
        strict_dtype: weights in another dtype than the destination's are refused, and not cast.
        gpus: in the place of CUDA's.
    """

    def __init__(
        self,
        link: Link,
        destination: Any = None,
        *,
        model_id: str = "policy",
        apply: str = "copy",
        policy: str = "latest",
        verify: str = "off",
        ack_timeout: float = 60.0,
        find: Callable[[], Any] | None = None,
        strict_dtype: bool = False,
        gpus: Gpus = CUDA,
    ) -> None:
        self.link = link
        self._pid = process.pid
        self._model_id = model_id
        self._skips = policy == "latest"
        self._maps = apply == "map"
        self._destination = Destination(
            find or (lambda: destination), maps=self._maps, strict_dtype=strict_dtype, gpus=gpus
        )
        self._reception = Reception()
        self._gate = ReadingGate(self._look)
        self._changes = Changes()
        self._news = News(skips=self._skips)
        self._end: Exception | None = None
        self._leases = Leases(gpus)
        self._host: HostMemory | None = None
        self._aside = Aside(f"weights of {model_id}")
        self._answers = Answers(link, f"the subscriber of '{model_id}'")
        self._agreement = Agreement(
            self._destination, self._leases, self._reception, self._aside, self._answers, verifies=verify == "crc"
        )
        self._applying = Applying(
            self._destination,
            self._reception,
            self._gate,
            self._leases,
            self._aside,
            gpus,
            maps=apply == "map",
            verifies=verify == "crc",
            patience=ack_timeout,
        )
        self._keep: Callable[[], object] | None = None
        """Prevents that what is leased is given back a second time, when this is dropped."""
        self._is_taking = False
        self._is_listening = False
        self._server = Background(self._changes)
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
        return self._gate.reading(timeout)

    def _look(self) -> int:
        if not self._reception.is_whole:
            raise TransferFailed(f"the weights of '{self._model_id}' are torn: the last update broke off half way")
        return self.version

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
        self._check_process()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not condition():
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise DeadlineExceeded(
                    f"{what} of '{self._model_id}' has not come within {timeout:g} s: it is at version {self.version}, "
                    f"and {self.published} is published"
                )
            if self._server.is_running:
                await self._changes.wait_until(lambda: condition() or not self._server.is_running, remaining)
            else:
                self._check_open()
                self._listen()
                await self._receive(remaining, condition)

    @property
    def has_met(self) -> bool:
        """Whether the sender has said what comes, and it fits."""
        return self._leases.manifest is not None

    # -- receiving ----------------------------------------------------------------------------------------------

    def hear(self, words: Words) -> None:
        """A word of the sender; from any thread.  It is acted on by whoever receives."""
        what, *facts = words
        if what == say.PUBLISH:
            self._reception.heard(facts[0])
        elif what in TO_HOSTS and self._host is not None:
            self._host.host.hear(what, *facts)
            return
        if what in (say.HELLO, say.HOST):
            self._host_begins(facts)
        self._news.add(words)
        self._changes.notify()

    def hear_end(self, error: Exception) -> None:
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
        if lines:
            self._host = HostMemory(self.link, manifest, extra, slots, lines[0], self._model_id)

    async def connect(self, timeout: float | None = 60.0) -> None:
        """Waits for the sender and agrees with it on the weights; what is published already is applied.

        Raises:
            DeadlineExceeded: the sender has not come within ``timeout`` seconds.
            WeightMismatch: its weights do not fit; it hears the same.
            PeerLost: it is gone.
        """
        self._check_open()
        self._listen()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.has_met or self._agreement.is_refused:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not await self._changes.wait_until(lambda: bool(self._news or self._end), remaining):
                sender = f"the sender of '{self._model_id}' ({self.link.label})"
                raise DeadlineExceeded(f"{sender} did not connect within {timeout:g} s")
            await self._receive(0.0)

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
        self._check_open()
        self._listen()
        return await self._receive(timeout)

    def _listen(self) -> None:
        if not self._is_listening:
            self._is_listening = True
            self.link.listen(self)

    async def _receive(self, timeout: float | None, enough: Callable[[], bool] = lambda: False) -> bool:
        """Once; ``enough`` ends the wait too: somebody else may receive what is waited for."""

        def is_there() -> bool:
            return enough() or (not self._is_taking and bool(self._news or self._end or self._is_closed))

        if not await self._changes.wait_until(is_there, timeout) or enough():
            return False
        if not self._news:
            self._check_open()
            assert self._end is not None
            await self._applying.move_out()
            raise self._end.with_traceback(None)
        before = self.version
        self._is_taking = True
        try:
            while self._news:
                words = self._news.next()
                try:
                    await self._act(words)
                except asyncio.CancelledError:
                    self._news.put_back(words)
                    raise
        finally:
            self._is_taking = False
            self._changes.notify()
        return self.version > before

    async def _act(self, words: list[Words]) -> None:
        what, *facts = words[-1]
        if what == say.PUBLISH:
            _, memory, sent = facts
            if memory is not None:
                await self._apply([each[1] for each in words], memory, sent)
            elif self._agreement.is_refused:
                await self._agreement.renew()
        elif what in (say.HELLO, say.HOST):
            await self._meet(*facts[:5])
        else:
            logger.warning("%r has heard %r, which means nothing to it", self, what)

    async def _meet(self, manifest: bytes, extra: int, slots: int, memory: Any, version: int) -> None:
        """The sender says what comes."""
        if self._keep is None:  # of two ends in one process, the sender's warns
            what = "" if self.link.is_here else f"subscriber of '{self._model_id}'"
            destination = self._destination if self._maps else None
            self._keep = on_drop(self, what, functools.partial(_give_back, destination, self._leases))
        await self._agreement.meet(manifest, extra, slots)
        try:
            if version:
                self._reception.heard(version)
                await self._apply([version], memory, None)
        finally:  # one version that cannot be applied is no reason to have none of the next
            self._answers.ready(self.version, self._leases.gpu)

    async def _apply(self, versions: list[int], memory: Any, sent: float | None) -> None:
        """Applies what is in that memory, and answers for all of these versions."""
        received = time.monotonic()
        try:
            await self._agreement.renew()
            leased = await self._applying.lease(MemoryName(*memory))
            if leased is not None and leased.views is None:
                self._answers.pass_over(versions)
                self._answers.lack(leased.header.version)
                return
            if leased is None:  # it is being written again: that version comes next
                self._answers.pass_over(versions)
                return
            try:
                if not self._skips and leased.header.version > versions[-1] and self._news:
                    self._answers.pass_over(versions)  # others come before that one
                    return
                pause = await self._applying.apply(leased)
                self._changes.notify()  # the next one may have to wait for readers
            finally:
                self._leases.release(leased.reader)
        except Exception as error:
            self._answers.acknowledge(versions, error)
            self._check_open()  # its memory is gone then, and all sorts of things go wrong
            raise
        late = 0.0 if sent is None else received - sent
        self._answers.acknowledge(versions, late=late, apply=time.monotonic() - received, pause=pause)

    async def overwrite(self, write: Callable[[], Any], version: int | None) -> bool:
        """Has weights written that have come another way; see ``Applying.overwrite``."""
        self._check_process()
        is_new = await self._applying.overwrite(write, version)
        self._changes.notify()
        return is_new

    # -- life ---------------------------------------------------------------------------------------------------

    def serve(self) -> asyncio.Task[None]:
        """Receives in the background of the loop that runs here, until ``close``.

        What cannot be applied is told to the sender and logged here; when the sender is gone, the task ends with that.

        Raises:
            RuntimeError: it serves already, or no loop runs here.
        """
        self._check_open()
        if self._server.is_running:
            raise RuntimeError(f"{self!r} serves already")
        return self._server.start(self._serve, f"weights of {self._model_id}")

    async def _serve(self) -> None:
        while True:
            try:
                await self.receive(None)
            except (PeerLost, ClosedError) as error:
                if self._end is None and not self._is_closed:
                    raise
                logger.info("%r: nothing more will come: %s", self, error)
                return
            except Exception:
                logger.exception("an update of '%s' could not be applied", self._model_id)

    def _check_open(self) -> None:
        self._check_process()
        if self._is_closed:
            raise ClosedError(f"the subscriber of '{self._model_id}' is closed")

    def _check_process(self) -> None:
        """A forked one has no thread that reads the link, and another one may have been in the gate."""
        if self._pid != process.pid:
            raise process.forked(f"the receiver of '{self._model_id}'", self._pid)

    async def close(self) -> None:
        """Gives back the link and the memory; mapped tensors get memory of their own.  Idempotent.

        It does all of that once it has begun; a cancellation is passed on afterwards.
        """
        if self._has_ended:
            return
        self._is_closed = True
        async with contextlib.AsyncExitStack() as then:  # what is named last comes first
            then.callback(self._ended)
            then.callback(self._aside.close)
            then.push_async_callback(self._aside.do, self._applying.close, nbytes=None)  # behind what is copied
            then.push_async_callback(self._end_host)
            then.callback(self.link.close)
            await self._server.end()

    async def _end_host(self) -> None:
        if self._host is not None:
            await self._host.close()

    def _ended(self) -> None:
        if self._keep is not None:
            self._keep()
        self._destination.forget()
        self._has_ended = True
        self._changes.notify()

    async def __aenter__(self) -> Subscriber:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


def _give_back(destination: Destination | None, leases: Leases) -> None:
    """What a subscriber has that is dropped: tensors that are mapped get memory of their own."""
    if destination is not None and leases.keeps_one:
        destination.detach()
    leases.close()

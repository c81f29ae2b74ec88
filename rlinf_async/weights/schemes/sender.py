"""``WeightSender``: the trainer's end."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from rlinf_async.errors import ClosedError
from rlinf_async.weights.model.gather import gathers_here
from rlinf_async.weights.model.gather_calls import Call, Calls
from rlinf_async.weights.schemes.held import held
from rlinf_async.weights.schemes.publishing import Publishing
from rlinf_async.weights.schemes.roster import Roster, close_all
from rlinf_async.weights.schemes.sharded import Gathering, are_sharded, only_helps
from rlinf_async.weights.schemes.staged import Staged, give_up
from rlinf_async.weights.schemes.strategy import _get_strategy
from rlinf_async.weights.schemes.updates import Update
from rlinf_async.weights.schemes.ways import OneWay, Way, ways_to
from rlinf_async.weights.state.arguments import check_seconds, keys_of, number_of
from rlinf_async.weights.state.report import SyncReport
from rlinf_async.weights.transports.calls import finish
from rlinf_async.weights.transports.link_transport import LinkTransport
from rlinf_async.weights.transports.transport import TransportBackend
from rlinf_async.weights.waiting.bridge import Bridge, begin_after
from rlinf_async.work import Work

if TYPE_CHECKING:
    from rlinf_async.weights.schemes.scheme import WeightSyncScheme

_PENDING = "while an async send is pending. Call wait_async() first."
_NOT_PENDING = "No async send is pending. Call send_async() first."


class WeightSender(Roster):
    """Sends one model's weights to workers; made by a scheme's ``init_on_sender``.

    ``send``, ``send_async``, ``wait_async`` and ``connect`` start at once and return a ``Work`` in a coroutine, and
    block elsewhere; wrong arguments are refused by the call itself.  A send that fails at some workers has reached the
    others.

    Of weights that are sharded (FSDP, DTensor) every rank of the trainer sends its own, and rank 0 whole ones to the
    workers; the others only take part, whichever workers they were told of.

    Example:
        report = await sender.send(model)          # every worker has applied it
        await sender.send_async(model)             # every worker will; the model may be trained on
        report = await sender.wait_async()
    """

    def __init__(self, scheme: WeightSyncScheme) -> None:
        super().__init__(scheme)
        self._strategy = _get_strategy(scheme.strategy)  # type: ignore[arg-type]  # it checks it
        self._context_ref: Callable[[], Any] | None = None
        self._source_model: Any = None
        self._version = 0
        self._gave_up = False
        """Whether the last send was, so that nobody knows who has it."""
        self._forget()

    def _forget(self) -> None:
        """What belongs to this process."""
        self._is_closed = False
        self._pending_async = False
        self._pending: Staged | None = None
        self._current: Any = None
        self._publishing = Publishing(self._scheme)
        self._bridge, self._gathering, self._calls = Bridge(), Gathering(self._model_id), Calls()

    def __repr__(self) -> str:
        state = "pending" if self._pending_async else "idle"
        return f"<{type(self).__name__} of '{self._model_id}' version {self._version} to {self.worker_ids} [{state}]>"

    @property
    def version(self) -> int:
        """Of the weights that were sent last; 0 before the first."""
        return self._version

    def _set_context(self, context: Any, model_id: str | None = None) -> None:
        self._context_ref = held(context)
        if model_id is not None:
            self._model_id = model_id

    # -- sending ------------------------------------------------------------------------------------------------

    def send(
        self,
        weights: Any = None,
        worker_ids: int | Sequence[int] | None = None,
        *,
        version: int | None = None,
        keys: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Sends, and waits until the workers have applied it.

        Args:
            weights: a module, a dict, a TensorDict, or the path of a module in the context; by default the scheme's
                model.
            worker_ids: which workers; by default all.
            version: higher than the last one; by default the next number.
            keys: of the weights, those to send; by default all.  Where weights are published, the first version is all
                of the scheme's model, whatever is given of it.
            timeout: seconds that the workers have; by default the scheme's ``ack_timeout``.

        Returns:
            A ``SyncReport``; in a coroutine a ``Work`` of it.

        Raises:
            RuntimeError: an earlier send is not over.
            ValueError: a worker is not registered, there is nothing to send, or a number is out of range.  Nothing was
                sent to anyone.
            TypeError: a version, or a timeout, that is no number.
            DeadlineExceeded, PeerLost, Exception: what went wrong at a worker; the notes name which.
        """
        return self._send_as(self._calls.next(), weights, worker_ids, version, keys, timeout)

    def _send_as(self, *wanted: Any) -> Any:
        if self._pending_async:
            raise RuntimeError(f"Cannot call send() {_PENDING}")
        self._refuse_second("send")
        if not self._is_complete:
            return self._start(lambda: self._once_complete(self._send, wanted), "a send")
        update, ways = self._prepare(*wanted)
        return self._start(lambda: self._send(update, ways), "a send")

    def send_async(
        self,
        weights: Any = None,
        worker_ids: int | Sequence[int] | None = None,
        *,
        version: int | None = None,
        keys: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Sends; finished when the weights may change.  ``wait_async`` must follow.

        The arguments and errors are those of ``send``; what goes wrong at a worker is told by ``wait_async``.

        Raises:
            RuntimeError: an earlier send is not over; a transport can only send and wait at once.

        Returns:
            The version; in a coroutine a ``Work`` of it.
        """
        wanted = (self._calls.next(), weights, worker_ids, version, keys, timeout)
        if self._pending_async:
            raise RuntimeError(
                "Cannot call send_async() again while a previous send is pending. Call wait_async() first."
            )
        self._refuse_second("send_async")
        if not self._is_complete:
            return self._start(lambda: self._once_complete(self._send_async, wanted), "an async send")
        update, ways = self._prepare(*wanted)
        for way in ways:
            if not way.can_stage:
                transport = way.transport if isinstance(way, OneWay) else way
                raise RuntimeError(f"transport of type {type(transport)} does not support async send.")
        return self._start(lambda: self._send_async(update, ways), "an async send")

    def wait_async(self, timeout: float | None = None) -> Any:
        """Waits until the workers have applied what ``send_async`` has sent.

        Args:
            timeout: seconds of this wait; when they are over, the send is still pending.

        Returns:
            A ``SyncReport``; in a coroutine a ``Work`` of it.

        Raises:
            RuntimeError: nothing is pending.
            DeadlineExceeded, PeerLost, Exception: as ``send``.  After a wrong acknowledgement the send is still
                pending, and may be waited for again.
        """
        self._check_open()
        if not self._pending_async:
            raise RuntimeError(_NOT_PENDING)
        check_seconds(timeout)
        return self._bridge.run(self._wait_async(self._pending, timeout), f"an async send of '{self._model_id}'")

    def update_weights(self, weights: Any) -> Any:
        """``send(weights)`` (TorchRL's older name)."""
        return self.send(weights=weights)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the sender of '{self._model_id}' is closed: init_on_sender() makes a new one")

    def _refuse_second(self, name: str) -> None:
        self._check_open()
        current = self._current
        if current is not None and not current.done() and not current._cancelled:
            raise RuntimeError(f"Cannot call {name}() while another one is under way: await that one first")

    def _prepare(
        self,
        call: Call,
        weights: Any,
        worker_ids: int | Sequence[int] | None,
        version: int | None,
        keys: Any,
        timeout: float | None,
    ) -> tuple[Update, list[Way]]:
        self._check_open()  # it may have been closed while its workers were looked for
        check_seconds(timeout)
        number = 0 if version is None else self._next(number_of(version))
        prepared = self._weights(weights)
        shares = self._scheme.needs_weights and are_sharded(prepared)
        if shares:
            call.found_sharded()
        helps = shares and not gathers_here()
        targets = {} if helps else self._targets(worker_ids)
        if prepared is None and self._scheme.needs_weights:
            raise ValueError(
                f"nothing to send for '{self._model_id}': no weights were given, and neither a context nor "
                "source_model= of init_on_sender() has them"
            )
        if timeout is None:
            timeout = self._scheme.options.ack_timeout
        update = Update(self._model_id, prepared, number, keys_of(keys), timeout, call)
        if helps and self._publishes:
            return update, [self._publishing.way(self._model_id, {}, self._model_weights)]
        return update, self._ways(targets)

    def _weights(self, weights: Any) -> Any:
        context = self._context_ref() if self._context_ref is not None else None
        prepared = self._scheme.prepare_weights(weights, self._model_id, self._strategy, context)
        if prepared is None and self._source_model is not None:
            return self._strategy.extract_weights(self._source_model)
        return prepared

    def _model_weights(self) -> Any:
        """Those of the scheme's model; None if it has none from which they can be taken."""
        try:
            return self._weights(None)
        except (IndexError, TypeError, ValueError):  # a context with something else there
            return None

    def _ways(self, targets: dict[int, TransportBackend]) -> list[Way]:
        linked = {each: transport for each, transport in targets.items() if isinstance(transport, LinkTransport)}
        others = {each: transport for each, transport in targets.items() if each not in linked}
        ways = ways_to(others)
        return [self._publishing.way(self._model_id, linked, self._model_weights), *ways] if linked else ways

    def _start(self, begin: Callable[[], Coroutine[Any, Any, Any]], what: str) -> Any:
        previous, self._current = self._current, None
        work = self._bridge.run(begin_after(previous, begin), f"{what} of '{self._model_id}'")
        self._current = work if isinstance(work, Work) else None
        return work

    @property
    def _publishes(self) -> bool:
        """Whether all workers have links to one publisher."""
        return self._scheme.publishes

    async def _once_complete(self, send: Callable[..., Coroutine[Any, Any, Any]], wanted: tuple[Any, ...]) -> Any:
        timeout = wanted[-1]
        await self._find_workers(self._scheme.options.ack_timeout if timeout is None else timeout)
        return await send(*self._prepare(*wanted))

    def _next(self, version: int | None) -> int:
        """The number of what is sent next."""
        if version is None:
            return number_of(self._version + 1)
        if version <= self._version:
            raise ValueError(f"version {version} is not after version {self._version}, which was sent last")
        return version

    async def _stage(self, update: Update, ways: list[Way]) -> Staged:
        # Only here is it known what became of the send before this one, if that was cancelled.
        update = dataclasses.replace(update, version=self._next(update.version or None))
        since = time.perf_counter()
        if not self._publishes and are_sharded(update.weights):
            update = await self._gathering.whole(update)
        staged = Staged(update, ways, since)
        try:
            found = await asyncio.gather(*(way.stage(update) for way in ways), return_exceptions=True)
        finally:  # also where whoever waits was cancelled: a number that a worker has heard is never another version's
            if not ways or any(way.has_begun for way in ways):
                self._version = update.version
        for error in found:
            if error is not None:
                raise error
        staged.t_stage = time.perf_counter() - staged.since
        self._gave_up = False
        return staged

    async def _send(self, update: Update, ways: list[Way]) -> SyncReport:
        try:
            staged = await self._stage(update, ways)
            report = await staged.report()
        except BaseException:
            self._give_up(ways)
            raise
        report.raise_failures()
        return report

    async def _send_async(self, update: Update, ways: list[Way]) -> int:
        try:
            self._pending = staged = await self._stage(update, ways)
        except BaseException:
            self._give_up(ways)
            raise
        self._pending_async = True
        return staged.update.version

    def _give_up(self, ways: list[Way]) -> None:
        self._gave_up = True
        give_up(ways)

    async def _wait_async(self, pending: Staged | None, timeout: float | None) -> SyncReport:
        if pending is None or pending is not self._pending:  # since it was called, something has happened
            if pending is not None and pending.missing:  # and nobody has waited for it to the end
                raise ClosedError(f"the sender of '{self._model_id}' is closed")
            raise RuntimeError(_NOT_PENDING)
        report = await pending.report_within(timeout)
        if self._pending is pending:
            self._pending, self._pending_async = None, False
        report.raise_failures()
        return report

    # -- life ---------------------------------------------------------------------------------------------------

    def connect(self, weights: Any = None, *, timeout: float | None = 60.0) -> Any:
        """Meets the workers, each of which must connect, receive or serve, and has them start with the model's weights.

        These are the first version.  If something was sent already, the workers are only met.

        Args:
            weights: to start with; by default the scheme's model.

        Raises:
            ValueError: there are neither, and the workers have to be told what comes.
            DeadlineExceeded: somebody did not come, or did not apply them; the notes name who.
        """
        return self._connect_as(self._calls.next(), weights, timeout)

    def _connect_as(self, call: Call, weights: Any, timeout: float | None) -> Any:
        self._check_open()
        check_seconds(timeout)
        current = self._current
        if current is not None and not current.done() and current._cancelled:
            return self._start(lambda: self._connect_after_all(call, weights, timeout), "a connection")
        is_first = not self._version or (self._gave_up and not self._publishes)
        if weights is not None or (is_first and self._weights(None) is not None):
            return self._send_as(call, weights, None, None, None, timeout)
        return self._bridge.run(self._connect(timeout), f"the workers of '{self._model_id}'")

    def replace(self, worker_id: int, pipe_or_worker: Any) -> Any:
        """A worker that has ended is there again, at the other end of this; in a coroutine a ``Work``.

        Where weights are published, it gets the latest version as soon as it connects, receives or serves.

        Args:
            pipe_or_worker: what ``init_on_sender`` was told of it: a new pipe, or its group and rank.

        Raises:
            ValueError: there is no worker of that id.
        """
        self._check_open()
        old = self._replaced(worker_id, pipe_or_worker)
        new = self._transports[worker_id]
        return self._bridge.run(self._replace(worker_id, old, new), f"worker {worker_id} of '{self._model_id}'")

    async def _replace(self, worker_id: int, old: TransportBackend, new: TransportBackend) -> None:
        self._publishing.leave(worker_id)
        await close_all([old])
        self._publishing.meet(self._model_id, worker_id, new)

    async def _connect_after_all(self, call: Call, weights: Any, timeout: float | None) -> None:
        """Once it is known what has become of a send that was cancelled."""
        self._current = None
        await self._connect_as(call, weights, timeout)

    async def _connect(self, timeout: float | None) -> None:
        if only_helps(self._weights(None)):
            return
        await self._find_workers(timeout)
        targets = self._targets(None)
        linked = {each: transport for each, transport in targets.items() if isinstance(transport, LinkTransport)}
        if linked:
            source = self._weights(None)
            if source is None:
                raise ValueError(f"connect() has to tell the workers what '{self._model_id}' is: give weights=")
            await self._publishing.connect(self._model_id, linked, source, timeout)
        for transport in self._transports.values():
            connect = getattr(transport, "connect", None)
            if connect is not None:
                await finish(connect(timeout=timeout), timeout, f"the connection to {transport!r}")

    def close(self) -> Any:
        """Gives up what is pending and closes all transports; in a coroutine a ``Work``.

        Later sends raise ``ClosedError``.
        """
        self._is_closed = True
        pending, self._pending, self._pending_async = self._pending, None, False
        if pending is not None:
            pending.give_up()
        work = self._bridge.run(self._close(), f"the closing of {self!r}")
        self._bridge.release()
        return work

    async def _close(self) -> None:
        await self._gathering.close()
        await self._publishing.close()
        await close_all([*self._transports.values(), *([self._transport] if self._transport else [])])

    # -- pickling -----------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Without the context, and without what is pending."""
        own = ("_bridge", "_gathering", "_calls", "_publishing", "_current", "_pending", "_pending_async", "_is_closed")
        state = {name: value for name, value in self.__dict__.items() if name not in own}
        return {**state, "_context_ref": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

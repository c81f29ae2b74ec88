"""``WeightSender``: the trainer's end of a scheme."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from rlinf_async._core import clock
from rlinf_async.errors import ClosedError
from rlinf_async.weights.model.gather import gathers_here
from rlinf_async.weights.model.gather_calls import GatherCall
from rlinf_async.weights.model.source import is_streamed
from rlinf_async.weights.plane.publisher import Publisher
from rlinf_async.weights.plane.sends import Sends
from rlinf_async.weights.plane.sync_handle import Delivery, SyncHandle
from rlinf_async.weights.schemes.configuration import Configuration, held
from rlinf_async.weights.schemes.roster import WorkerRoster, close_all
from rlinf_async.weights.schemes.sharded import are_sharded, gather_whole, only_helps
from rlinf_async.weights.schemes.weight_strategy import _get_strategy
from rlinf_async.weights.state.sync_report import SyncReport
from rlinf_async.weights.transports.calls import finish
from rlinf_async.weights.transports.deliveries import deliveries_to
from rlinf_async.weights.transports.transport import LinkTransport, TransportBackend
from rlinf_async.weights.waiting.execution import SyncAdapter, check_seconds

_NOT_PENDING = "No async send is pending. Call send_async() first."


class SendRequest(NamedTuple):
    """Arguments of one send.

    Attributes:
        links: maps the id of each worker that reads published weights to its transport.
        deliveries: deliveries to the other workers; None if none are possible.
        version: number of the version; None for the next.
        call: counted call, by which the ranks that share weights recognise that they are making the same call.
    """

    weights: Any
    links: Mapping[int, LinkTransport]
    deliveries: Sequence[Delivery] | None
    version: int | None
    timeout: float
    call: GatherCall


class WeightSender(WorkerRoster):
    """A sender of one model's weights to workers; created by a scheme's ``init_on_sender``.

    In a coroutine, ``send``, ``send_async``, ``wait_async`` and ``connect`` start immediately and return a ``Work``;
    elsewhere they block. Invalid arguments raise in the call itself. A send that fails at some workers has still
    reached the others.

    If the weights are sharded (FSDP, DTensor), every rank of the trainer sends its own shards, and rank 0 sends whole
    weights to the workers; the other ranks only take part, whichever workers they were given.

    Example:
        report = await sender.send(model)          # every worker has applied it
        await sender.send_async(model)             # every worker will apply it; training may continue
        report = await sender.wait_async()
    """

    def __init__(self, scheme: Configuration) -> None:
        super().__init__(scheme)
        self._strategy = _get_strategy(scheme.strategy)  # type: ignore[arg-type]  # the function checks its argument
        self._context_ref: Callable[[], Any] | None = None
        self._source_model: Any = None
        self._forget()

    def _forget(self) -> None:
        """Reset the state that belongs to one process."""
        self._is_closed = False
        self._failure = ""
        """Text of the error that closed the scheme; empty if there was none."""
        self._adapter = SyncAdapter()
        self._sending = Sends(self._adapter, self._make_publisher)

    def _make_publisher(self) -> Publisher:
        return Publisher(model_id=self._model_id, **self._scheme.options.for_publisher())

    @property
    def _pending(self) -> SyncHandle | None:
        """Handle of an async send whose outcome has not been reported."""
        return next(iter(self._sending.untold), None)

    def __repr__(self) -> str:
        state = "idle" if self._pending is None else "pending"
        return f"<{type(self).__name__} of '{self._model_id}' version {self.version} to {self.worker_ids} [{state}]>"

    @property
    def version(self) -> int:
        """The last version sent; 0 before the first."""
        return self._sending.version

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
        timeout: float | None = None,
    ) -> Any:
        """Send weights, and wait until the workers have applied them.

        Args:
            weights: a module, a dict, a TensorDict, or a module's path in the context; by default the scheme's model.
            worker_ids: ids of the workers; by default all.
            version: must be higher than the last version; by default the next number.
            timeout: seconds within which workers must answer; by default the scheme's ``ack_timeout``.

        Returns:
            A ``SyncReport``; in a coroutine, a ``Work`` that resolves to one.

        Raises:
            RuntimeError: an earlier send has not ended.
            ValueError: a worker is not registered, there is nothing to send, or a number is out of range. Nothing was
                sent to any worker.
            TypeError: a version or timeout is not a number.
            DeadlineExceeded, PeerLost, Exception: a worker's error, whose notes name all failed workers.
        """
        return self._send_as(self._sending.publisher.next_call(), weights, worker_ids, version, timeout)

    def _send_as(self, *wanted: Any) -> Any:
        return self._begin("send() while an async send", self._send, wanted)

    def _begin(
        self, what: str, send: Callable[[SendRequest], Coroutine[Any, Any, Any]], wanted: tuple[Any, ...]
    ) -> Any:
        if self._pending is not None:
            raise RuntimeError(f"Cannot call {what} is pending. Call wait_async() first.")
        self._check_open()
        if self._sending.turns.is_taken:
            raise RuntimeError(f"Cannot call {what.partition(' ')[0]} while another one is under way: await it first")
        if not self._is_complete:
            return self._sending.turns.run(lambda: self._once_complete(send, wanted), f"a send of '{self._model_id}'")
        prepared = self._prepare(*wanted)
        for transport in self._targets(wanted[2]).values() if prepared.deliveries and send == self._send_async else ():
            if not isinstance(transport, LinkTransport) and not hasattr(transport, "send_weights_async"):
                raise RuntimeError(f"transport of type {type(transport)} does not support async send.")
        return self._sending.turns.run(lambda: send(prepared), f"a send of '{self._model_id}'")

    def send_async(
        self,
        weights: Any = None,
        worker_ids: int | Sequence[int] | None = None,
        *,
        version: int | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Send weights; return once they may change. ``wait_async`` must follow.

        Arguments and errors are those of ``send``, but ``wait_async`` raises the workers' errors.

        Raises:
            RuntimeError: an earlier send has not ended; or a transport cannot send without waiting.

        Returns:
            The version; in a coroutine, a ``Work`` that resolves to it.
        """
        wanted = (self._sending.publisher.next_call(), weights, worker_ids, version, timeout)
        return self._begin("send_async() again while a previous send", self._send_async, wanted)

    def wait_async(self, timeout: float | None = None) -> Any:
        """Wait until the workers have applied the weights of ``send_async``.

        Args:
            timeout: seconds to wait, after which the send is still pending.

        Returns:
            A ``SyncReport``; in a coroutine, a ``Work`` that resolves to one.

        Raises:
            RuntimeError: nothing is pending.
            DeadlineExceeded, PeerLost, Exception: as for ``send``. After a wrong acknowledgement, the send is still
                pending and may be awaited again.
        """
        self._check_open()
        if self._pending is None:
            raise RuntimeError(_NOT_PENDING)
        check_seconds(timeout)
        return self._adapter.run(self._wait_async(self._pending, timeout), f"an async send of '{self._model_id}'")

    def update_weights(self, weights: Any) -> Any:
        """Send weights (TorchRL's older name for ``send``)."""
        return self.send(weights=weights)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the sender of '{self._model_id}' is closed: init_on_sender() makes a new one")

    def _prepare(
        self,
        call: GatherCall,
        weights: Any,
        worker_ids: int | Sequence[int] | None,
        version: int | None,
        timeout: float | None,
    ) -> SendRequest:
        self._check_open()  # the sender may have been closed during the search for workers
        check_seconds(timeout)
        if version is not None:
            version = self._sending.publisher.next_version(version)
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
        links = {each: transport for each, transport in targets.items() if isinstance(transport, LinkTransport)}
        others: dict[Hashable, Any] = {each: targets[each] for each in targets if each not in links}
        deliveries = None if self._publishes and not others else deliveries_to(others)
        return SendRequest(prepared, links, deliveries, version, timeout, call)

    def _weights(self, weights: Any) -> Any:
        context = self._context_ref() if self._context_ref is not None else None
        prepared = self._scheme.prepare_weights(weights, self._model_id, self._strategy, context)
        if prepared is None and is_streamed(self._source_model):
            return self._source_model
        if prepared is None and self._source_model is not None:
            return self._strategy.extract_weights(self._source_model)
        return prepared

    @property
    def _publishes(self) -> bool:
        """True if all workers have links to one publisher."""
        return self._scheme.publishes

    async def _once_complete(self, send: Callable[..., Coroutine[Any, Any, Any]], wanted: tuple[Any, ...]) -> Any:
        timeout = wanted[-1]
        begun = clock.monotonic()
        await self._find_workers(self._scheme.options.ack_timeout if timeout is None else timeout)
        wanted = *wanted[:-1], clock.rest(timeout, begun)
        return await send(self._prepare(*wanted))

    async def _publish(self, wanted: SendRequest) -> SyncHandle:
        self._check_open()  # another thread may have closed the sender during the wait
        weights, links, deliveries, version, timeout, call = wanted
        publisher = self._linked(links)
        facts: dict[str, Any] = {"version": version, "timeout": timeout, "call": call, "deliveries": deliveries}
        if not self._publishes and are_sharded(weights):
            weights = await publisher.worker_thread.do(gather_whole, weights, call, nbytes=None)
        handle = await self._sending.publish(weights, list(links), **facts)
        for transport in links.values():
            transport.announce(handle.version)
        return handle

    def _shown(self) -> Any:
        """Return views of the latest version, in the strategy's form; None if it is not in CPU memory."""
        tree = None if self._sending.made is None else self._sending.made.shown
        return None if tree is None else self._strategy.extract_weights(tree)

    def _linked(self, links: Mapping[int, LinkTransport]) -> Publisher:
        """Add these links to the publisher, and return it."""
        publisher = self._sending.publisher
        for worker_id, transport in links.items():
            if worker_id not in publisher.worker_ids:
                publisher.add(worker_id, transport.invite(self._model_id))
        return publisher

    async def _report(self, handle: SyncHandle, timeout: float | None = None) -> SyncReport:
        """Wait for the workers. May be called again after a cancellation."""
        with contextlib.ExitStack() as stack:
            for transport in self._transports.values():
                if isinstance(transport, LinkTransport):
                    stack.enter_context(transport.watching())
            report = await self._sending.outcome(handle, timeout)
        report.raise_failures()
        return report

    async def _send(self, wanted: SendRequest) -> SyncReport:
        handle = await self._publish(wanted)
        try:
            return await self._report(handle)
        except BaseException:
            handle.cancel()
            raise

    async def _send_async(self, wanted: SendRequest) -> int:
        handle = await self._publish(wanted)
        self._sending.untold[handle] = None
        return handle.version

    async def _wait_async(self, pending: SyncHandle, timeout: float | None) -> SyncReport:
        if pending is not self._pending:  # the send has ended since the call
            if pending.report is None:  # no wait for the send has completed
                raise ClosedError(f"the sender of '{self._model_id}' is closed")
            raise RuntimeError(_NOT_PENDING)
        return await self._report(pending, timeout)

    # -- life ---------------------------------------------------------------------------------------------------

    def connect(self, weights: Any = None, *, timeout: float | None = 60.0) -> Any:
        """Connect to the workers, each of which must connect, receive or serve; they start with the model's weights.

        These weights are version 1. If a version was already sent, this only connects to the workers.

        Args:
            weights: initial weights; by default the scheme's model.

        Raises:
            ValueError: there are neither weights nor a model, and the workers need an announcement.
            DeadlineExceeded: a worker did not connect, or did not apply the weights; the error's notes name it.
        """
        wanted = self._sending.publisher.next_call(), weights, None, None, timeout
        self._check_open()
        check_seconds(timeout)
        if self._sending.turns.is_ending:
            return self._sending.turns.run(lambda: self._connect_in_turn(*wanted), f"the workers of '{self._model_id}'")
        if self._lack(weights):
            return self._send_as(*wanted)
        return self._adapter.run(self._connect(timeout), f"the workers of '{self._model_id}'")

    def _lack(self, weights: Any) -> bool:
        """True if connecting must also send weights: the given weights, or else the model's."""
        is_first = not self.version or (self._sending.is_outcome_unknown and not self._publishes)
        return weights is not None or (is_first and self._weights(None) is not None)

    async def _connect_in_turn(self, *wanted: Any) -> None:
        """Connect once the outcome of a cancelled send is known."""
        if self._lack(wanted[1]):
            await self._once_complete(self._send, wanted)
        else:
            await self._connect(wanted[-1])

    def replace(self, worker_id: int, pipe_or_worker: Any) -> Any:
        """Replace a worker that has ended with its successor; in a coroutine, return a ``Work``.

        If weights are published, the successor gets the latest version as soon as it connects, receives or serves.

        Args:
            pipe_or_worker: the successor's pipe, or its group and rank, as for ``init_on_sender``.

        Raises:
            ValueError: no worker has that id.
        """
        self._check_open()
        old = self._replaced(worker_id, pipe_or_worker)
        new = self._transports[worker_id]
        return self._adapter.run(self._replace(worker_id, old, new), f"worker {worker_id} of '{self._model_id}'")

    async def _replace(self, worker_id: int, old: TransportBackend, new: TransportBackend) -> None:
        publisher = self._sending.publisher
        was_linked = worker_id in publisher.worker_ids
        if was_linked:
            publisher.remove(worker_id)
        await close_all([old])
        if was_linked and isinstance(new, LinkTransport):
            self._linked({worker_id: new})
            new.announce(self.version)

    async def _connect(self, timeout: float | None) -> None:
        if only_helps(self._weights(None)):
            return
        begun = clock.monotonic()
        await self._find_workers(timeout)
        targets = self._targets(None)
        links = {each: transport for each, transport in targets.items() if isinstance(transport, LinkTransport)}
        if links:
            source = self._weights(None)
            if source is None:
                raise ValueError(f"connect() has to tell the workers what '{self._model_id}' is: give weights=")
            publisher = self._linked(links)
            with contextlib.ExitStack() as stack:
                for transport in links.values():
                    transport.announce(publisher.version)
                    stack.enter_context(transport.watching())
                await publisher.connect(clock.rest(timeout, begun), source=source)
        for each in self._transports.values():
            connect = getattr(each, "connect", None)
            if connect is not None:
                left = clock.rest(timeout, begun)
                await finish(connect(timeout=left), left, f"the connection to {each!r}")

    def close(self) -> Any:
        """Abandon pending sends and close all transports; in a coroutine, return a ``Work``.

        Later sends raise ``ClosedError``.
        """
        self._is_closed = True
        while self._sending.untold:
            self._sending.untold.popitem()[0].cancel()
        work = self._adapter.run(self._close(), f"the closing of {self!r}", abandonable=False)
        self._adapter.release()
        return work

    async def _close(self) -> None:
        try:
            if self._sending.made is not None:
                await self._sending.made.close(self._failure)
        finally:
            await close_all([*self._transports.values(), *([self._transport] if self._transport else [])])

    # -- pickling -----------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the context and pending sends."""
        own = ("_adapter", "_sending", "_is_closed", "_failure")
        state = {name: value for name, value in self.__dict__.items() if name not in own}
        return {**state, "_context_ref": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

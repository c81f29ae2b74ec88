"""``WeightReceiver``: the worker's end of a scheme."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import weakref
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from rlinf_async._core import clock
from rlinf_async._core.own_logger import own_logger
from rlinf_async.errors import ClosedError, ConfigError, DeadlineExceeded, PeerLost
from rlinf_async.weights.links.socket_link import LOOP, Notice, SocketLink
from rlinf_async.weights.plane.subscriber import Subscriber
from rlinf_async.weights.schemes.configuration import Configuration, _resolve_model, held
from rlinf_async.weights.schemes.roster import close_one
from rlinf_async.weights.schemes.weight_strategy import _get_strategy
from rlinf_async.weights.state.versions import Reception, Versioned
from rlinf_async.weights.transports.calls import finish
from rlinf_async.weights.transports.transport import LinkTransport, TransportBackend
from rlinf_async.weights.waiting.conditions import Reading
from rlinf_async.weights.waiting.execution import SyncAdapter, at_once
from rlinf_async.work import Work

logger = own_logger(__name__)

_PATIENCE: Final = 3600.0
"""Limit in seconds on one wait by ``serve``."""

_AT_ONCE: Final = 0.001
"""Seconds below which a transport that returns nothing is assumed not to have waited."""

_TRIES: Final = 100
"""Number of consecutive immediate returns that ``serve`` tolerates, because messages for other users come in bursts."""

_ENDS: Final = (OSError, EOFError, ClosedError, PeerLost, ConfigError)
"""Errors after which no more weights can arrive."""


Write = Callable[[Any, Any], None]
"""Function that writes new weights to a model."""


class WeightReceiver(Versioned):
    """A receiver of one model's weights in one worker; created by a scheme's ``init_on_worker``.

    In a coroutine, ``receive``, ``apply_weights``, ``connect``, ``wait_version`` and ``wait_fresh`` start immediately
    and return a ``Work``; elsewhere they block. The model always has one complete version: weights that do not fit are
    refused before the first byte is written, and the sender learns why.

    Example:
        if await receiver.receive():                   # or once: task = receiver.serve()
            print("now at version", receiver.version)
        async with receiver.reading() as version:      # no update is applied in this block
            samples = rollout(model)
    """

    def __init__(self, scheme: Configuration) -> None:
        self._scheme = scheme
        self._context_ref: Callable[[], Any] | None = None
        self._transport: TransportBackend | None = None
        self._model_ref: Any = None
        self._model_id: str | None = None
        self._strategy = _get_strategy(
            scheme.strategy,  # type: ignore[arg-type]  # the function checks its argument
            strict_dtype=scheme.options.strict_dtype,
        )
        self._forget()

    def _forget(self) -> None:
        """Reset the state that belongs to one process."""
        self._is_closed = False
        self._heard = 0
        # Model, weights, version and sender of a message whose ``receive`` was cancelled.
        self._arrived: tuple[str, Any, int | None, Any] | None = None
        self._adapter = SyncAdapter()
        self.__dict__.pop("_subscriber", None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of '{self._model_id}' version {self.version}>"

    # -- registering --------------------------------------------------------------------------------------------

    def _set_context(self, context: Any) -> None:
        self._context_ref = held(context)

    def _register_model(self, model_ref: Any) -> None:
        """Set the model, or its path in the context, for the next version and later ones."""
        self._model_ref = model_ref

    def _register_worker_transport(self, pipe: Any) -> None:
        self._transport = self._scheme.create_transport(pipe)

    def _resolve_model_ref(self) -> Any:
        if self._model_ref is None:
            raise ValueError("No model registered")
        if not isinstance(self._model_ref, str):
            return self._model_ref
        if self._context_ref is None:
            raise ValueError("Context is required to resolve string references")
        context = self._context_ref()
        if context is None:
            raise ValueError("Context has been garbage collected")
        model = _resolve_model(context, self._model_ref)
        if model is None:
            raise ValueError(f"No model registered: the context's {self._model_ref!r} is None")
        return model

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, timeout: float = 0.001) -> Any:
        """Apply received weights, if any, and acknowledge them.

        A version that the model already has is acknowledged but not applied again.

        Args:
            timeout: seconds to wait for weights.

        Returns:
            True if the model has a new version; in a coroutine, a ``Work`` that resolves to this flag.

        Raises:
            ValueError: there is no model; the weights belong to another model; or the model has a later version, or
                another sender's version with that number.
            DeadlineExceeded: readers have not left within ``ack_timeout``.
            Exception: the weights do not fit. The sender gets each of these errors, too; the model is unchanged.
        """
        self._check_open()
        return self._adapter.run(self._receive(timeout), f"weights of '{self._model_id}'")

    async def _receive(self, timeout: float, *, in_background: bool = False) -> bool:
        transport = self._transport
        if transport is None:
            return False
        if isinstance(transport, LinkTransport):
            subscriber = self._standing  # the first access opens the link
            with self._watching():
                return await subscriber.receive(timeout)
        arrived, self._arrived = self._arrived, None
        if arrived is None:
            coming = transport.receive_weights(timeout=timeout)
            if in_background and not inspect.isawaitable(coming):
                error = ConfigError(
                    f"receive_weights() of {transport!r} is plain code, which would hold up the loop that serve() runs "
                    "in: make it a coroutine (async def), or call receive() where a wait does no harm"
                )
                if coming is not None:
                    await self._answer("send_error", error)
                raise error
            try:
                found = await finish(coming, None, f"weights from {transport!r}")
            except asyncio.CancelledError:
                if isinstance(coming, Work):  # which may just have ended with weights
                    coming._follow(functools.partial(self._keep, transport, coming))
                raise
            if found is None:
                return False
            arrived = _with_facts(transport, *found)
        self._heard += 1
        self._subscriber.belongs_here()
        before, (model_id, weights, version, sender) = self.version, arrived
        try:
            return await self._take(model_id, weights, version, sender, write=self._adopt)
        except asyncio.CancelledError:
            # Leave the weights to the next call; otherwise, their sender would wait for an answer until its deadline.
            if _is_cancelled():
                self._arrived = model_id, weights, version if self.version == before else self.version, sender
            raise

    def _keep(self, transport: TransportBackend, coming: Work[Any]) -> None:
        with contextlib.suppress(Exception):
            self._arrived = _with_facts(transport, *coming._result())

    async def _take(
        self, model_id: str | None, weights: Any, version: int | None, sender: Any = None, *, write: Write
    ) -> bool:
        """Apply weights, and report the outcome to their sender. Return False if the model already had them."""
        try:
            if self._model_id not in (None, model_id):
                raise ValueError(f"weights of '{model_id}' have come to the receiver of '{self._model_id}'")
            is_new = await self._standing.accept(lambda: write(self._resolve_model_ref(), weights), version, sender)
        except Exception as error:
            await self._answer("send_error", error)
            raise
        await self._answer("send_ack", "updated")
        return is_new

    def _write(self, model: Any, weights: Any) -> None:
        self._strategy.apply_weights(model, weights)

    def _adopt(self, model: Any, weights: Any) -> None:
        """Write weights whose memory no other object uses."""
        self._write(model, weights)

    async def _answer(self, how: str, what: Any) -> None:
        """Answer a sender without a link; senders with a link do not expect a message."""
        answer = getattr(self._transport, how, None)
        if answer is not None and not self._subscriber.has_met:
            await finish(answer(what), None, f"the answer to {self._transport!r}")

    def apply_weights(self, weights: Any, version: int | None = None) -> Any:
        """Apply weights that arrived outside ``receive``, and acknowledge them (TorchRL's older name).

        Args:
            weights: the weights; or a notice that a sender has put into a pipe. In that case, the call returns once the
                notice's version, or a later one, has been applied.
            version: version of the weights, if they arrive only through calls; a repeated version is acknowledged but
                not applied. The default is one more than the last, but if a sender on a link counts versions, the
                number stays the same.

        Raises:
            ValueError: there is no model; the model has a later version.
            DeadlineExceeded: readers have not left within ``ack_timeout``.
            Exception: the weights do not fit; the model is unchanged.
        """
        self._check_open()
        return self._adapter.run(self._apply_and_answer(weights, version), f"weights of '{self._model_id}'")

    async def _apply_and_answer(self, weights: Any, version: int | None) -> None:
        if isinstance(weights, Notice):
            await self._apply_noticed(weights)
            return
        await self._take(self._model_id, weights, version, write=self._write)

    async def _apply_noticed(self, notice: Notice) -> None:
        """Apply the version waiting at the sender's socket; the link acknowledges it."""
        if notice.model_id != self._name:
            notice.name_other(self._name)
            raise ValueError(
                f"a notice of weights of '{notice.model_id}' has come to the receiver of '{self._name}': a model has "
                "one id on both sides, and a loop that has several hands each its own"
            )
        subscriber = self._standing
        if subscriber.link is None:
            subscriber.link = SocketLink(self._name)
        link = subscriber.link
        if not isinstance(link, SocketLink):
            raise ValueError(f"{self!r} receives by {self._transport!r}, and takes no notices")
        try:
            link.join(notice, LOOP)
        except PeerLost as error:
            if link.error is not None:
                raise
            logger.warning("%r passes over %s", self, error)
        else:
            await subscriber.wait_version(notice.version, self._scheme.options.ack_timeout)

    @property
    def _name(self) -> str:
        return self._model_id or "policy"

    @functools.cached_property
    def _subscriber(self) -> Subscriber:  # must not be created before the model has a name
        find = weakref.WeakMethod(self._resolve_model_ref)
        return Subscriber(
            None,
            find=lambda: find()(),  # type: ignore[misc]  # the subscriber must not keep its receiver alive
            model_id=self._name,
            **self._scheme.options.for_subscriber(),
        )

    @property
    def _reception(self) -> Reception:  # type: ignore[override]
        return self._subscriber._reception

    @property
    def _standing(self) -> Subscriber:
        """The subscriber, with its link if the transport has one."""
        self._check_open()
        if self._subscriber.link is None and isinstance(self._transport, LinkTransport):
            self._subscriber.link = self._transport.open_link(self._name)
        return self._subscriber

    # -- versions -----------------------------------------------------------------------------------------------

    def reading(self, timeout: float | None = None) -> Reading:
        """Return an ``async with`` block in which the model is used and no update is applied.

        The block's value is the model's version, to be stored with the results.

        Raises:
            DeadlineExceeded: on entering: an update was still being applied after ``timeout`` seconds.
            TransferFailed: on entering: the last update failed midway, and no complete version has followed yet.
        """
        return self._standing.reading(timeout)

    def wait_version(self, version: int, timeout: float | None = None) -> Any:
        """Wait until the model has this version or a later one, while another task or thread calls ``receive`` or
        ``serve``.

        Raises:
            DeadlineExceeded: no such version has arrived within ``timeout`` seconds.
        """
        return self._wait(self._standing.wait_version(version, timeout), f"version {version}")

    def wait_fresh(self, max_lag: int, timeout: float | None = None) -> Any:
        """Wait until the model is at most ``max_lag`` versions behind the published version.

        Raises:
            DeadlineExceeded: the model was still further behind after ``timeout`` seconds.
        """
        return self._wait(self._standing.wait_fresh(max_lag, timeout), "fresh weights")

    def _wait(self, waiting: Coroutine[Any, Any, None], what: str) -> Any:
        only_waits = self._standing.link is None  # with a link, receive while waiting
        return self._adapter.wait(waiting, what) if only_waits else self._adapter.run(self._watched(waiting), what)

    # -- life ---------------------------------------------------------------------------------------------------

    def connect(self, timeout: float | None = 60.0) -> Any:
        """Connect to the sender; return once the model has the initial weights, or the latest version.

        If weights arrive by calls, there is no connection, and the method returns immediately.

        Raises:
            DeadlineExceeded: the sender or its first version has not arrived within ``timeout`` seconds.
            WeightMismatch: the weights do not fit; the sender gets the same error.
            PeerLost: the sender has ended.
        """
        self._check_open()
        if isinstance(self._transport, LinkTransport):
            return self._adapter.run(self._watched(self._standing.begin(timeout)), "the sender")
        return at_once()

    async def _watched(self, waiting: Coroutine[Any, Any, None]) -> None:
        with self._watching():
            await waiting

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """Context manager around a wait for a sender that may not have connected yet; keeps this receiver alive."""
        with self._transport.watching() if isinstance(self._transport, LinkTransport) else contextlib.nullcontext():
            yield

    def serve(self) -> asyncio.Task[None]:
        """Receive in a background task on the running loop until the task is cancelled.

        An update that does not fit is reported to the sender and logged here. The task ends with a ``ConfigError`` if
        the ``receive_weights`` of a user's transport is not a coroutine, so that it would block the loop, or repeatedly
        returns nothing without having waited.

        Raises:
            RuntimeError: this thread runs no loop.
        """
        self._check_open()
        if isinstance(self._transport, LinkTransport):
            return self._standing.serve(self._watching())
        return asyncio.get_running_loop().create_task(self._serve(), name=f"weights of '{self._model_id}'")

    async def _serve(self) -> None:
        in_vain = 0
        timeout = 0.0  # the first call shows whether the transport can be awaited
        while self._transport is not None:
            begun, heard = clock.monotonic(), self._heard
            try:
                await self._receive(timeout, in_background=True)
                took = clock.monotonic() - begun
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                    raise  # not an error of the user's transport or model
                # DeadlineExceeded is an OSError, too, but only means that an answer was late.
                is_transports = self._heard == heard and not isinstance(error, DeadlineExceeded)
                if isinstance(error, _ENDS) and is_transports:
                    raise
                took = clock.monotonic() - begun
                logger.exception("an update of '%s' could not be applied", self._model_id)
            in_vain = in_vain + 1 if self._heard == heard and took < _AT_ONCE else 0
            if in_vain == _TRIES:
                raise ConfigError(
                    f"receive_weights(timeout={timeout:g}) of {self._transport!r} has come back {_TRIES} times in a "
                    "row with nothing, and has not waited: serve() would spin. Let it wait until weights come or its "
                    "time is over, or call receive() when something has come"
                )
            if in_vain:
                await asyncio.sleep(0)  # let other tasks of this loop run
            timeout = _PATIENCE

    def _check_open(self) -> None:
        self._subscriber._check_process()
        if self._is_closed:
            raise ClosedError(f"the receiver of '{self._model_id}' is closed: init_on_worker() makes a new one")

    def close(self) -> Any:
        """Close the transport; in a coroutine, return a ``Work``, which completes even if it is not awaited.

        Later calls raise ``ClosedError``.
        """
        self._is_closed = True
        if running_loop() is None:
            # Another thread may be waiting for weights on the loop that this thread needs, so end that wait.
            self._subscriber.on_end(ClosedError(f"{self!r} is closed"))
        ends, self._transport, self._arrived = (self._subscriber, self._transport), None, None
        work = self._adapter.run(_close(*ends), f"the closing of {self!r}", abandonable=False)
        self._adapter.release()
        return work

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the context."""
        own = ("_adapter", "_arrived", "_heard", "_subscriber", "_is_closed")
        return {name: value for name, value in self.__dict__.items() if name not in own} | {"_context_ref": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())


def _with_facts(transport: TransportBackend, model_id: str, weights: Any) -> tuple[str, Any, int | None, Any]:
    return model_id, weights, getattr(transport, "version", None), getattr(transport, "sender", None)


async def _close(*ends: Any) -> None:
    async with contextlib.AsyncExitStack() as closing:  # closes all, even if one raises
        for end in reversed(ends):
            closing.push_async_callback(close_one, end)

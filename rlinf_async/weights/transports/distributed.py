"""``DistributedTransport``: weights between processes of a torch.distributed job, which need not be workers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any, Final

import torch

from rlinf_async._core import frames
from rlinf_async._core.own_logger import own_logger
from rlinf_async._transports.lazy_thread import LazyThread
from rlinf_async.errors import ClosedError, DeadlineExceeded, SerializationError, WrongAcknowledgement
from rlinf_async.weights.links.store_mail import StoreMail
from rlinf_async.weights.model.copying import copy_tensors
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.model.param_tree import ParamTree, Path, is_tensordict, name_of
from rlinf_async.weights.waiting.execution import SyncAdapter, WorkerThread
from rlinf_async.work import Work

logger = own_logger(__name__)

_CLOSE_TIMEOUT_S: Final = 10.0
"""Seconds to wait for the thread, which may itself be waiting for a stopped store, or for a new store client."""


class DistributedTransport:
    """A transport to one worker of a torch.distributed job.

    A store announces weights; a private process group carries the packed weights and the answers, because the job's
    default group may be in use, or may not exist. Weights are copied before they are sent. Without a store or a rank,
    the transport neither sends nor receives.

    Args:
        store: a ``TCPStore``, or another store that can be cloned.
        rank: the worker's rank, counted from 1; 0 is the trainer.
        sync: accepted for TorchRL's callers; the copy is always kept until the worker answers.
        backend: ``"gloo"``, or ``"nccl"`` if each end has its own GPU.
        timeout: seconds within which the worker must answer.
    """

    carries_version: Final = True

    def __init__(
        self,
        store: Any = None,
        rank: int | None = None,
        sync: bool = True,
        *,
        backend: str = "gloo",
        timeout: float = 60.0,
        transport_dtype: Any = None,
    ) -> None:
        self._store = store
        self._rank = rank
        self._backend = backend
        self._transport_dtype = transport_dtype
        self.timeout = timeout
        self.version: int | None = None
        """The last version sent or received."""
        self.sender: str | None = None
        """Sender of the last received version; each sender counts its own versions."""
        self.nbytes = 0
        """Packed size in bytes of the last weights sent."""
        self._adapter = SyncAdapter()
        # Pack in a separate thread, because ``_thread`` may still be sending the previous version.
        self._packing = WorkerThread(f"packing for rank {rank}")
        self._thread = LazyThread(f"rlinf-weights-{rank}")
        self._interrupting = LazyThread(f"rlinf-weights-{rank}-interrupting")
        self._mail: StoreMail | None = None
        self._stop = threading.Event()
        """Event that interrupts the calls made since the last ``give_up``."""
        self._sending: _ThreadCall | None = None
        self._receiving: _ThreadCall | None = None
        """Call that receives a message; if its waiter is cancelled, the next waiter gets the message."""

    def __repr__(self) -> str:
        return f"<DistributedTransport rank {self._rank} by {self._backend}>"

    # -- the sender ---------------------------------------------------------------------------------------------

    def send_weights(
        self, model_id: str, weights: Any, version: int | None = None, timeout: float | None = None
    ) -> Any:
        """Send a copy, and wait until the worker has applied it.

        Args:
            version: version of the weights; by default one more than the last.
            timeout: seconds for this message; by default the transport's timeout. After a cancellation or a close, the
                caller does not wait for the worker, even if the worker has stopped.

        Raises:
            DeadlineExceeded: the worker has not answered in time.
            PeerLost: the connection broke.
            WrongAcknowledgement: the worker has sent an unexpected answer.
            RemoteError: the worker could not apply the weights; the error says why.
            SerializationError: a value other than a tensor cannot be pickled; nothing was sent.
        """
        return self._adapter.run(self._send_and_wait(model_id, weights, version, timeout), f"the sending to {self!r}")

    async def _send_and_wait(self, *message: Any) -> None:
        await self._send(*message)
        await self._wait_ack()

    def send_weights_async(
        self, model_id: str, weights: Any, version: int | None = None, timeout: float | None = None
    ) -> Any:
        """Send a copy; ``wait_ack`` waits for the worker."""
        return self._adapter.run(self._send(model_id, weights, version, timeout), f"the sending to {self!r}")

    async def _send(self, model_id: str, weights: Any, version: int | None, timeout: float | None) -> None:
        mail, stop = self._opened(is_sender=True), self._stop
        if mail is None:
            return
        tree = ParamTree.of(weights)
        head, packed = await self._packing.do(_pack, tree, self._transport_dtype, nbytes=tree.nbytes)
        if self._mail is not mail:
            raise ClosedError(f"{self!r} was closed while it packed")
        version = (self.version or 0) + 1 if version is None else version
        head |= {"model_id": model_id, "version": version, "nested": is_tensordict(weights)}
        # From here on the thread continues by itself, and can send the copy even if the source changes.
        patience = self.timeout if timeout is None else timeout
        self._sending = _ThreadCall(self._thread, mail.send, head, packed, patience, stop)
        self.version, self.nbytes = version, packed.numel()

    def wait_ack(self) -> Any:
        """Wait for the worker; errors as for ``send_weights``."""
        return self._adapter.run(self._wait_ack(), f"the answer of {self!r}")

    async def _wait_ack(self) -> None:
        sending = self._sending
        if sending is None:
            return
        try:
            answer = await sending.async_wait()
        except asyncio.CancelledError:
            if self._sending is sending:
                self.give_up()
            raise
        if self._sending is not sending:
            raise ClosedError(f"nobody waits for the answer of {self!r} any more")
        if answer != b"updated":
            raise WrongAcknowledgement(f"Expected 'updated' but got status {answer!r}.")
        self._sending = None

    def give_up(self) -> None:
        """Abandon the answer, so that the next message need not wait for its deadline."""
        if self._sending is not None:
            self._sending = None
            self._interrupt()

    def _interrupt(self) -> _ThreadCall:
        """Interrupt the thread, from another thread, because the store may not answer for a long time."""
        assert self._mail is not None
        stop, self._stop = self._stop, threading.Event()
        stop.set()
        return _ThreadCall(self._interrupting, self._mail.interrupt, stop)

    # -- the receiver -------------------------------------------------------------------------------------------

    def receive_weights(self, timeout: float = 1.0) -> Any:
        """Return ``(model_id, weights)``, a TensorDict or a flat dict, as sent; None if nothing has arrived.

        Raises:
            PeerLost: the store does not answer.
            Exception: the message cannot be used here; the sender gets the same error.
        """
        return self._adapter.run(self._receive(timeout), f"weights from {self!r}")

    async def _receive(self, timeout: float) -> tuple[str, Any] | None:
        mail = self._opened(is_sender=False)
        if mail is None:
            return None
        if self._receiving is None:
            self._receiving = _ThreadCall(self._thread, mail.receive, self._stop)
        receiving = self._receiving
        with contextlib.suppress(Exception):  # the message's error is raised below, unless this was closed
            await receiving.async_wait(timeout)
        # The transport was closed during the wait, or nothing has arrived.
        if self._receiving is not receiving or not receiving.done():
            return None
        self._receiving = None
        head, packed = await receiving
        try:
            weights = _unpack(head, packed)
        except Exception as error:
            await self._answer(error)
            raise
        self.version, self.sender = head["version"], head["sender"]
        return head["model_id"], weights

    def send_ack(self, message: str = "updated") -> Any:
        """Report to the sender that the last received weights were applied."""
        return self._adapter.run(self._answer(message.encode()), f"the answer to {self!r}")

    def send_error(self, error: BaseException) -> Any:
        """Report to the sender that the last received weights could not be applied."""
        return self._adapter.run(self._answer(error), f"the answer to {self!r}")

    async def _answer(self, answer: bytes | BaseException) -> None:
        mail = self._opened(is_sender=False)
        if mail is not None:
            await _ThreadCall(self._thread, mail.answer, answer).async_wait()

    # -- both ---------------------------------------------------------------------------------------------------

    def check_connection(self) -> bool:
        """True if there is a store and it answers."""
        try:
            return self._store is not None and self._store.check([f"NODE_{self._rank}_count"]) is not None
        except RuntimeError:
            return False

    def _opened(self, *, is_sender: bool) -> StoreMail | None:
        if self._mail is None and self._store is not None and self._rank is not None:
            self._mail = StoreMail(self._store, self._rank, is_sender, self._backend)
        return self._mail

    def close(self) -> Any:
        """Close the connection and end the thread; in a coroutine, return a ``Work``. Idempotent.

        A thread that has not returned after some seconds, because the store has stopped or its host is unreachable, is
        left behind, and ends when the store answers or the process exits.
        """
        ending: list[_ThreadCall] = []  # all of these start in threads at once
        # Interrupt pending calls only; if there are none, an answer may still have to be sent before the connection
        # closes.
        if self._sending is not None or self._receiving is not None:
            ending.append(self._interrupt())
        if self._mail is not None:
            ending.append(_ThreadCall(self._thread, self._mail.part))
        self._mail = self._sending = self._receiving = None
        work = self._adapter.run(self._end(ending), f"the closing of {self!r}")
        self._adapter.release()
        return work

    async def _end(self, ending: list[_ThreadCall]) -> None:
        await self._packing.end()
        try:
            for each in ending:
                await each.async_wait(_CLOSE_TIMEOUT_S)
        except DeadlineExceeded:
            logger.warning(
                "%r is closed, but its thread has not come back within %g s and is left behind: does the store answer?",
                self,
                _CLOSE_TIMEOUT_S,
            )


class _ThreadCall(Work[Any]):
    """A blocking call that runs in a thread for as long as it takes."""

    def __init__(self, thread: LazyThread, call: Callable[..., Any], *args: Any) -> None:
        super().__init__()
        thread.submit(functools.partial(self._run, call, args))

    def _run(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            self._settle(call(*args))
        except Exception as error:
            self._settle(error=error)


def _pack(tree: ParamTree, transport_dtype: Any) -> tuple[dict[str, Any], torch.Tensor]:
    manifest = Manifest.of(tree, transport_dtype)
    packed = torch.empty(manifest.nbytes, dtype=torch.uint8)
    views = manifest.views(packed)
    copy_tensors(list(views.values()), [tree.tensors[path].detach() for path in views])
    extra = [[path, _plain(path, value)] for path, value in tree.extra.items()]
    return {"manifest": manifest.to_bytes(), "extra": extra}, packed


def _plain(path: Path, value: Any) -> Any:
    try:
        frames.pack(value)
    except (TypeError, ValueError, OverflowError):
        raise SerializationError(
            f"{name_of(path)!r} is {type(value).__name__}: beside tensors only plain values, lists and dicts of them "
            "travel by a torch store, from which nothing is unpickled, because anybody may write to it"
        ) from None
    return value


def _unpack(head: dict[str, Any], packed: torch.Tensor) -> Any:
    manifest = Manifest.from_bytes(head["manifest"])
    extra = {tuple(path): value for path, value in head["extra"]}
    tree = ParamTree(manifest.views(packed), manifest.aliases, extra)
    return tree.to_tensordict() if head["nested"] else tree.to_state_dict()

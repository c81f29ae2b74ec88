"""Weights between processes of a torch.distributed job, which need not be this framework's workers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, Final

import torch

from rlinf_async.core import failures
from rlinf_async.errors import DeadlineExceeded, WrongAcknowledgement
from rlinf_async.weights.aside import Aside
from rlinf_async.weights.bridge import Bridge
from rlinf_async.weights.manifest import Manifest
from rlinf_async.weights.param_tree import ParamTree, is_tensordict
from rlinf_async.weights.scheme import WeightSyncScheme, from_either, model_of, register_weight_sync_backend
from rlinf_async.weights.store_mail import StoreMail
from rlinf_async.work import Work

_FAILED: Final = b"failed "


class DistributedTransport:
    """The way to one worker of a torch.distributed job.

    A store says that weights come and that they have been applied; the weights travel, packed, by a process group that
    is this transport's own: the job's default group may be in use meanwhile, and need not exist.  What is sent is
    copied first.  Without a store or a rank, sending does nothing and nothing is received.

    Args:
        store: a ``TCPStore``, or another that can be cloned.
        rank: the worker's, counted from 1; 0 is the trainer.
        sync: whether the bytes have to be sent before the answer is waited for; the copy is kept until the worker
            answers either way.
        backend: ``"gloo"``, or ``"nccl"`` where both ends have a GPU of their own.
        timeout: seconds for the connection, and for the worker's answer.
    """

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
        self._sync = sync
        self._backend = backend
        self._transport_dtype = transport_dtype
        self.timeout = timeout
        self.version: int | None = None
        """Of the weights that were sent or received last."""
        self._bridge = Bridge()
        self._aside = Aside(f"packing for rank {rank}")  # the other thread may be sending what came before
        self._mail: StoreMail | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._sent: Future[int] | None = None
        self._coming: _Coming | None = None

    def __repr__(self) -> str:
        return f"<DistributedTransport rank {self._rank} by {self._backend}>"

    # -- the sender ---------------------------------------------------------------------------------------------

    def send_weights(self, model_id: str, weights: Any) -> Any:
        """Sends a copy, and waits until the worker has applied it.

        Raises:
            DeadlineExceeded: the worker has not answered in time.
            PeerLost: the connection broke.
            WrongAcknowledgement: the worker has answered something else.
            RemoteError: the worker could not apply it; says why.
        """
        return self._bridge.run(self._send_and_wait(model_id, weights), f"the sending to {self!r}")

    async def _send_and_wait(self, model_id: str, weights: Any) -> None:
        await self._send(model_id, weights)
        await self._wait_ack()

    def send_weights_async(self, model_id: str, weights: Any) -> Any:
        """Sends a copy; ``wait_ack`` waits for the worker."""
        return self._bridge.run(self._send(model_id, weights), f"the sending to {self!r}")

    async def _send(self, model_id: str, weights: Any) -> None:
        if self._is_idle:
            return
        version = (self.version or 0) + 1
        tree = ParamTree.of(weights)
        head, packed = await self._aside.do(_pack, tree, self._transport_dtype, nbytes=tree.nbytes)
        head |= {"model_id": model_id, "version": version, "nested": is_tensordict(weights)}
        # From here on the thread goes on by itself: the copy can be sent whatever becomes of the source.
        mail = self._opened(True)
        self._sent = self._executor.submit(mail.send, head, packed, self.timeout, self._sync)
        self.version = version

    def wait_ack(self) -> Any:
        """The errors are those of ``send_weights``."""
        return self._bridge.run(self._wait_ack(), f"the answer of {self!r}")

    async def _wait_ack(self) -> None:
        if self._is_idle or self._sent is None:
            return
        number = await asyncio.wrap_future(self._sent)
        answer = await self._in_thread(self._opened(True).wait_answer, number, self.timeout)
        if answer.startswith(_FAILED):
            failure = failures.unpack(answer[len(_FAILED) :])
            raise failures.rebuild(dataclasses.replace(failure, pickled=None))  # nobody knows who writes to the store
        if answer != b"updated":
            raise WrongAcknowledgement(f"Expected 'updated' but got status {answer!r}.")
        self._sent = None

    # -- the receiver -------------------------------------------------------------------------------------------

    def receive_weights(self, timeout: float = 1.0) -> Any:
        """``(model_id, weights)``: a TensorDict, or a flat dict, as was sent; None if nothing has come."""
        return self._bridge.run(self._receive(timeout), f"weights from {self!r}")

    async def _receive(self, timeout: float) -> tuple[str, Any] | None:
        if self._is_idle:
            return None
        if self._coming is None:
            self._coming = _Coming(self._executor, self._opened(False).next_head)
        try:
            head = await self._coming.async_wait(timeout)
        except DeadlineExceeded:
            if not self._coming.done():
                return None
            raise
        self._coming = None
        if head is None:
            return None
        packed = await self._in_thread(self._opened(False).receive, head, self.timeout)
        self.version = head["version"]
        return head["model_id"], _unpack(head, packed)

    def send_ack(self, message: str = "updated") -> Any:
        """Tells the sender that what was received last has been applied."""
        return self._bridge.run(self._answer(message.encode()), f"the answer to {self!r}")

    def send_error(self, error: BaseException) -> Any:
        """Tells the sender that what was received last could not be applied."""
        failure = dataclasses.replace(failures.capture(error, {}), pickled=None)
        return self._bridge.run(self._answer(_FAILED + failures.pack(failure)), f"the answer to {self!r}")

    async def _answer(self, text: bytes) -> None:
        if not self._is_idle:
            await self._in_thread(self._opened(False).answer, text)

    # -- both ---------------------------------------------------------------------------------------------------

    def check_connection(self) -> bool:
        """Whether there is a store that answers."""
        if self._store is None:
            return False
        try:
            self._store.check([f"NODE_{self._rank}_count"])
        except RuntimeError:
            return False
        return True

    @property
    def _is_idle(self) -> bool:
        return self._store is None or self._rank is None

    def _opened(self, is_sender: bool) -> StoreMail:
        if self._mail is None:
            assert self._rank is not None
            self._mail = StoreMail(self._store, self._rank, is_sender, self._backend)
        return self._mail

    @property
    def _executor(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"rlinf-weights-{self._rank}")
        return self._thread

    async def _in_thread(self, function: Any, *args: Any) -> Any:
        return await asyncio.wrap_future(self._executor.submit(function, *args))

    def close(self) -> None:
        """Ends the connection and the thread."""
        if self._coming is not None and self._mail is not None:
            self._mail.wake()
        if self._thread is not None:
            self._thread.shutdown()
        if self._mail is not None:
            self._mail.part()
        self._thread = self._mail = self._coming = self._sent = None
        self._aside.close()
        self._bridge.release()


class _Coming(Work[Any]):
    """The head of the next message, which a thread waits for however long nobody else does."""

    def __init__(self, executor: ThreadPoolExecutor, wait: Callable[[], Any]) -> None:
        super().__init__()
        executor.submit(self._run, wait)

    def _run(self, wait: Callable[[], Any]) -> None:
        try:
            self._settle(wait())
        except Exception as error:
            self._settle(error=error)


def _pack(tree: ParamTree, transport_dtype: Any) -> tuple[dict[str, Any], torch.Tensor]:
    manifest = Manifest.of(tree, transport_dtype)
    packed = torch.empty(manifest.nbytes, dtype=torch.uint8)
    for path, view in manifest.views(packed).items():
        view.copy_(tree.tensors[path].detach())
    return {"manifest": manifest.to_bytes()}, packed


def _unpack(head: dict[str, Any], packed: torch.Tensor) -> Any:
    manifest = Manifest.from_bytes(head["manifest"])
    tree = ParamTree(manifest.views(packed), manifest.aliases, {})
    return tree.to_tensordict() if head["nested"] else tree.to_state_dict()


@register_weight_sync_backend("distributed")
class DistributedWeightSyncScheme(WeightSyncScheme):
    """Synchronises the processes of a torch.distributed job; see ``DistributedTransport``.

    Args:
        backend: ``"gloo"`` or ``"nccl"``.
        sync: whether a send waits until the bytes are sent, before it waits for the workers.
    """

    missing: ClassVar[str] = "store and num_workers (or ranks) must be provided via context or kwargs"

    def __init__(self, backend: str = "gloo", sync: bool = True, strategy: Any = "state_dict", **options: Any) -> None:
        super().__init__(strategy, **options)
        self.backend = backend
        self.sync = sync

    def init_on_sender(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        """
        Args:
            kwargs: ``store``; ``num_workers``, whose ranks are 1 to that number, or ``ranks``.  The id of a worker is
                its rank less one.

        Raises:
            ValueError: one is missing.
        """
        store = from_either(context, kwargs, "store", "_store")
        workers = from_either(context, kwargs, "num_workers", "num_collectors")
        ranks = from_either(context, kwargs, "ranks") or (range(1, workers + 1) if workers else None)
        if store is None or ranks is None:
            raise ValueError(self.missing)
        sender = self.create_sender()
        for rank in ranks:
            sender._register_worker(rank - 1, (store, rank))
        self._become_sender(sender, model_id, context, kwargs.get("source_model", kwargs.get("model")))

    def init_on_worker(self, model_id: str, context: Any = None, **kwargs: Any) -> None:
        """
        Args:
            kwargs: ``store``; ``rank``, of this worker, counted from 1; ``model``.

        Raises:
            ValueError: there is no store or no rank.
        """
        store, rank = from_either(context, kwargs, "store", "_store"), from_either(context, kwargs, "rank", "_rank")
        if store is None or rank is None:
            raise ValueError("store and rank must be provided via context or kwargs")
        receiver = self.create_receiver()
        receiver._register_worker_transport((store, rank))
        self._become_receiver(receiver, model_id, context, model_of(context, kwargs, model_id))

    def create_transport(self, pipe_or_context: Any) -> DistributedTransport:
        """
        Args:
            pipe_or_context: ``(store, rank)``; for anything else the transport does nothing.
        """
        is_pair = isinstance(pipe_or_context, tuple) and len(pipe_or_context) == 2
        store, rank = pipe_or_context if is_pair else (None, None)
        return DistributedTransport(
            store,
            rank,
            self.sync,
            backend=self.backend,
            timeout=self.options.ack_timeout,
            transport_dtype=self.options.transport_dtype,
        )

"""Weights between processes of a torch.distributed job, which need not be this framework's workers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final

import torch

from rlinf_async._core import failures, frames
from rlinf_async.errors import ClosedError, DeadlineExceeded, PeerLost, SerializationError, WrongAcknowledgement
from rlinf_async.weights.links.store_mail import StoreMail
from rlinf_async.weights.model.manifest import Manifest
from rlinf_async.weights.model.param_tree import ParamTree, Path, is_tensordict, name_of
from rlinf_async.weights.waiting.aside import Aside
from rlinf_async.weights.waiting.beside import Beside
from rlinf_async.weights.waiting.bridge import Bridge
from rlinf_async.work import Work

logger = logging.getLogger(__name__)

_FAILED: Final = b"failed "

_PARTING: Final = 10.0
"""Seconds that ``close`` waits for the thread, which may wait for a store that has stopped; torch takes five of them
now and then for a new client of one that has not."""


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
        self.nbytes = 0
        """Of those that were sent last, packed."""
        self._bridge = Bridge()
        self._aside = Aside(f"packing for rank {rank}")  # the other thread may be sending what came before
        self._mail: StoreMail | None = None
        self._thread: Beside | None = None
        self._interrupting = Beside(f"rlinf-weights-{rank}-interrupting")
        self._sent: Future[int] | None = None
        self._given_up = threading.Event()
        self._patience = timeout
        self.sender: str | None = None
        """Who has sent what was received last: another one counts anew."""
        self._coming: _Coming | None = None
        self._taking: tuple[dict[str, Any], _Coming] | None = None
        """A message that has begun to arrive; if whoever receives is cancelled, the next one gets it."""

    def __repr__(self) -> str:
        return f"<DistributedTransport rank {self._rank} by {self._backend}>"

    # -- the sender ---------------------------------------------------------------------------------------------

    carries_version: Final = True

    def send_weights(
        self, model_id: str, weights: Any, version: int | None = None, timeout: float | None = None
    ) -> Any:
        """Sends a copy, and waits until the worker has applied it.

        Args:
            version: of the weights; by default one more than the last.
            timeout: seconds for this message; by default the transport's.  Who is cancelled or closes meanwhile waits
                for no worker, not for one that has stopped either.

        Raises:
            DeadlineExceeded: the worker has not answered in time.
            PeerLost: the connection broke.
            WrongAcknowledgement: the worker has answered something else.
            RemoteError: the worker could not apply it; says why.
            SerializationError: something beside the tensors cannot travel; nothing was sent.
        """
        return self._bridge.run(self._send_and_wait(model_id, weights, version, timeout), f"the sending to {self!r}")

    async def _send_and_wait(self, model_id: str, weights: Any, version: int | None, timeout: float | None) -> None:
        await self._send(model_id, weights, version, timeout)
        await self._wait_ack()

    def send_weights_async(
        self, model_id: str, weights: Any, version: int | None = None, timeout: float | None = None
    ) -> Any:
        """Sends a copy; ``wait_ack`` waits for the worker."""
        return self._bridge.run(self._send(model_id, weights, version, timeout), f"the sending to {self!r}")

    async def _send(self, model_id: str, weights: Any, version: int | None, timeout: float | None) -> None:
        if self._is_idle:
            return
        if version is None:
            version = (self.version or 0) + 1
        tree, aside = ParamTree.of(weights), self._aside
        head, packed = await aside.do(_pack, tree, self._transport_dtype, nbytes=tree.nbytes)
        if self._aside is not aside:
            raise ClosedError(f"{self!r} was closed while it packed")
        head |= {"model_id": model_id, "version": version, "nested": is_tensordict(weights)}
        # From here on the thread goes on by itself: the copy can be sent whatever becomes of the source.
        mail = self._opened(True)
        self._given_up, self._patience = threading.Event(), self.timeout if timeout is None else timeout
        self._sent = self._executor.submit(mail.send, head, packed, self._patience, self._sync, self._given_up)
        self.version, self.nbytes = version, packed.numel()

    def wait_ack(self) -> Any:
        """The errors are those of ``send_weights``."""
        return self._bridge.run(self._wait_ack(), f"the answer of {self!r}")

    async def _wait_ack(self) -> None:
        sent = self._sent
        if self._is_idle or sent is None:
            return
        try:
            number = await asyncio.wrap_future(sent)
            if self._sent is not sent:
                raise ClosedError(f"nobody waits for the answer of {self!r} any more")
            answer = await self._in_thread(self._opened(True).wait_answer, number, self._patience)
        except asyncio.CancelledError:
            if self._sent is sent:
                self.give_up()
            raise
        if answer.startswith(_FAILED):
            failure = failures.unpack(answer[len(_FAILED) :])
            raise failures.rebuild(dataclasses.replace(failure, pickled=None))  # nobody knows who writes to the store
        if answer != b"updated":
            raise WrongAcknowledgement(f"Expected 'updated' but got status {answer!r}.")
        self._sent = None

    def give_up(self) -> None:
        """Nobody waits for the answer any more: the next message need not wait until this one's time is over."""
        sent, self._sent = self._sent, None
        if sent is not None:
            self._given_up.set()
            if self._mail is not None:
                self._interrupting.submit(self._mail.tell, self._mail.cut())  # the store may not answer for long
                self._executor.submit(self._mail.withdraw)

    # -- the receiver -------------------------------------------------------------------------------------------

    def receive_weights(self, timeout: float = 1.0) -> Any:
        """``(model_id, weights)``: a TensorDict, or a flat dict, as was sent; None if nothing has come.

        Raises:
            PeerLost: the store is gone.
            Exception: what has come is of no use here; the sender hears the same.
        """
        return self._bridge.run(self._receive(timeout), f"weights from {self!r}")

    async def _receive(self, timeout: float) -> tuple[str, Any] | None:
        if self._is_idle:
            return None
        if self._taking is None and not await self._begin_to_take(timeout):
            return None
        assert self._taking is not None
        head, arriving = self._taking
        failure: Exception | None = None
        try:
            packed = await arriving.async_wait()
        except Exception as error:
            failure = error
        if self._taking is None:  # closed meanwhile
            return None
        self._taking = None
        if isinstance(failure, (DeadlineExceeded, PeerLost)):
            logger.warning("version %d of '%s' has not come: %s", head["version"], head["model_id"], failure)
            await self._fail(failure)
            return None
        try:
            if failure is not None:
                raise failure
            weights = _unpack(head, packed)
        except ClosedError:
            raise
        except Exception as error:
            await self._fail(error)
            raise
        self.version, self.sender = head["version"], head.get("sender")
        return head["model_id"], weights

    async def _begin_to_take(self, timeout: float) -> bool:
        """Whether a message is there."""
        coming = self._coming
        if coming is None:
            coming = self._coming = _Coming(self._executor, self._opened(False).next_head)
        with contextlib.suppress(DeadlineExceeded):
            await coming.async_wait(timeout)
        if not coming.done():
            return False
        head = await coming.async_wait()  # also where it came just when the time was over
        if self._coming is not coming:  # closed meanwhile
            return False
        self._coming = None
        if head is None:
            return False
        self._given_up = threading.Event()
        receive = functools.partial(self._opened(False).receive, head, self.timeout, self._given_up)
        self._taking = head, _Coming(self._executor, receive)
        return True

    def send_ack(self, message: str = "updated") -> Any:
        """Tells the sender that what was received last has been applied."""
        return self._bridge.run(self._answer(message.encode()), f"the answer to {self!r}")

    def send_error(self, error: BaseException) -> Any:
        """Tells the sender that what was received last could not be applied."""
        return self._bridge.run(self._fail(error), f"the answer to {self!r}")

    async def _fail(self, error: BaseException) -> None:
        failure = dataclasses.replace(failures.capture(error, {}), pickled=None)
        await self._answer(_FAILED + failures.pack(failure))

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
    def _executor(self) -> Beside:
        if self._thread is None:
            self._thread = Beside(f"rlinf-weights-{self._rank}")
        return self._thread

    async def _in_thread(self, function: Any, *args: Any) -> Any:
        return await asyncio.wrap_future(self._executor.submit(function, *args))

    def close(self) -> Any:
        """Ends the connection and the thread; in a coroutine a ``Work``.  A second time is nothing.

        A thread that has not come back after some seconds, because the store has stopped or its host cannot be reached,
        is left behind, and ends when the store answers or with the process.
        """
        mail, thread, aside = self._mail, self._thread, self._aside
        ending: _Coming | None = None
        if mail is not None or thread is not None:
            # Begun at once, in a thread: the store may be slow, and the other thread in the middle of making a group.
            end = functools.partial(_end, (thread, self._interrupting), *self._last_words(mail))
            ending = _Coming(Beside(f"rlinf-weights-{self._rank}-ending"), end)
        self._thread = self._mail = self._coming = self._sent = self._taking = None
        self._aside = Aside(aside.label)
        work = self._bridge.run(self._part(aside, ending), f"the closing of {self!r}")
        self._bridge.release()
        return work

    async def _part(self, aside: Aside, ending: _Coming | None) -> None:
        await aside.end()
        if ending is None:
            return
        try:
            await ending.async_wait(_PARTING)
        except DeadlineExceeded:
            logger.warning(
                "%r is closed, but its thread has not come back within %g s and is left behind: does the store answer?",
                self,
                _PARTING,
            )

    def _last_words(self, mail: StoreMail | None) -> tuple[Callable[[], None], Callable[[], None]]:
        """What has the other thread come back, and what is to be done once it has."""
        if mail is None:
            return _nothing, _nothing
        if self._coming is not None:
            return (_nothing if self._coming.done() else mail.wake), mail.part
        if self._sent is not None:
            self._given_up.set()
            return mail.interrupt, mail.withdraw
        if self._taking is not None:
            self._given_up.set()
            return mail.interrupt, mail.part
        return _nothing, mail.part


def _end(threads: Iterable[Beside | None], interrupt: Callable[[], None], finish: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # of a store that is gone, which nobody waits for
        interrupt()
    for thread in threads:
        if thread is not None:
            thread.drain()
    with contextlib.suppress(RuntimeError):
        finish()


def _nothing() -> None:
    pass


class _Coming(Work[Any]):
    """What a thread waits for however long nobody else does: the head of the next message, or the rest."""

    def __init__(self, executor: Beside, wait: Callable[[], Any]) -> None:
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

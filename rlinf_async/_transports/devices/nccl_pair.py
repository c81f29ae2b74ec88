"""``NcclPair``, one side of two NCCL process groups of two (one per direction): rendezvous, transfers, abort."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import torch
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # torch does not list it

from rlinf_async._transports.devices.gpu_tensors import SideStream
from rlinf_async._transports.lazy_thread import LazyThread
from rlinf_async._transports.pair import Pair, PairOwner
from rlinf_async._transports.pair_store import PeerStore
from rlinf_async._transports.tcp_connections import Address
from rlinf_async._transports.transfer import ReceiveTransfer, SendTransfer
from rlinf_async.errors import TransferFailed

MakeGroup = Callable[[Store, int], Any]

_FOR_EVER: Final = timedelta(days=365)

_QUIET: Final = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # by default torch ends the whole process when a peer dies
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}

_environment = threading.Lock()


class NcclPair(Pair):
    """A pair with one group per direction; in a shared group, a receive would wait behind a send that waits for the
    peer.

    NCCL connects at the first operation, over the same store, and its operations occupy the GPU while they wait. So
    neither side enters an operation before the other is about to: the receiver waits for "coming", the sender for
    "ready". For the same reason each direction has its own stream, because work in a stream waits for the previous
    operation.
    """

    def __init__(
        self, owner: PairOwner, first: bool, device: torch.device, make_group: MakeGroup | None = None
    ) -> None:
        self._owner = owner
        self._rank = 0 if first else 1
        self._device = device
        self._make_group = make_group or make_nccl_group
        self._store = PeerStore(lambda key, value: owner.set_key(self, key, value))
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._incoming: Any = None
        self._outgoing: Any = None
        self._requested: deque[ReceiveTransfer[Any]] = deque()
        self._coming: set[int] = set()
        self._unsent: deque[tuple[SendTransfer, int]] = deque()
        try:
            for name, run in (("receive", self._receive), ("send", self._send)):
                threading.Thread(target=self._run, args=(run,), name=f"rlinf-nccl-{name}", daemon=True).start()
        except RuntimeError as error:
            self.close(error)  # the other thread may be waiting already
            raise

    @property
    def is_connected(self) -> bool:
        return self._incoming is not None

    def on_set(self, key: str, value: bytes) -> None:
        self._store.on_set(key, value)

    def admit(self, address: Address) -> None:
        raise TransferFailed(f"NCCL finds together by itself: {address} has no meaning")

    def receive(self, receiving: ReceiveTransfer[Any]) -> None:
        with self._changed:
            self._requested.append(receiving)
            self._changed.notify_all()

    def expect(self, number: int) -> None:
        with self._changed:
            self._coming.add(number)
            self._changed.notify_all()

    def send(self, sending: SendTransfer, tag: int, start: int) -> None:
        with self._changed:
            self._unsent.append((sending, start))
            self._changed.notify_all()

    def forget(self, number: int) -> None:
        """Do nothing, because memory is released once the GPU has sent it."""

    def close(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error
            groups = [group for group in (self._incoming, self._outgoing) if group is not None]
            self._incoming = self._outgoing = None
            self._changed.notify_all()
        self._store.close()
        for group in groups:  # an abort may take a long time
            LazyThread("rlinf-nccl-abort").submit(lambda group=group: _abort(group))  # type: ignore[misc]

    # -- on the pair's own threads --------------------------------------------------------------------------------

    def _run(self, run: Callable[[], None]) -> None:
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            with SideStream(self._device).entered():
                run()
        except Exception as error:
            if isinstance(error, RuntimeError):
                error = TransferFailed(f"NCCL: {error}")
            error.__traceback__ = None  # the traceback's frames would keep the group alive
            self._owner.broke(self, error)
            self.close(error)

    def _join(self, sender: int) -> Any:
        return self._make_group(PrefixStore(f"from {sender}", self._store), self._rank)

    def _receive(self) -> None:
        group = self._join(1 - self._rank)
        with self._changed:
            self._incoming = None if self._error else group
        while self._error is None:
            self._receive_next(group)

    def _receive_next(self, group: Any) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._requested)
            if self._error is not None:
                return
            receiving = self._requested.popleft()
        try:
            start = self._owner.begins(self, receiving)
        except MemoryError as error:
            self._owner.refuses(self, receiving, error)
            return
        if start is None:
            return
        chunks = receiving.chunks[start:]
        self._owner.ready(self, receiving, 0, start)
        with self._changed:
            self._changed.wait_for(lambda: self._error or receiving.number in self._coming)
            if self._error is not None:
                return
            self._coming.remove(receiving.number)
        for chunk in chunks:
            group.recv([chunk], 1 - self._rank, 0).wait(_FOR_EVER)
            self._synchronize()
            self._owner.arrived(self, receiving)

    def _send(self) -> None:
        group = self._join(self._rank)
        with self._changed:
            self._outgoing = None if self._error else group
        while self._error is None:
            self._send_next(group)

    def _send_next(self, group: Any) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._unsent)
            if self._error is not None:
                return
            sending, start = self._unsent.popleft()
        chunks = sending.chunks()[start:]
        self._owner.sends(self, sending)
        for chunk in chunks:
            group.send([chunk], 1 - self._rank, 0).wait(_FOR_EVER)
        self._synchronize()

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()


def make_nccl_group(store: Store, rank: int) -> Any:
    """Create a private NCCL group on the current device. Raise TransferFailed if torch was built without NCCL."""
    try:
        from torch.distributed import ProcessGroupNCCL
    except ImportError:
        raise TransferFailed("this torch has no NCCL: install one that was built for CUDA") from None
    options = ProcessGroupNCCL.Options()
    options._timeout = _FOR_EVER
    with _set_environment(_QUIET):
        return ProcessGroupNCCL(store, rank, 2, options)


@contextlib.contextmanager
def _set_environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables only while torch's constructor reads them, so that the user's own groups keep the user's values."""
    with _environment:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _abort(group: Any) -> None:
    with contextlib.suppress(RuntimeError):
        group.abort()

"""``GlooPair``, one side of a Gloo process group of two, and ``GlooDevice``, which all pairs of a process share."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Final

from torch.distributed import ProcessGroupGloo

from rlinf_async._transports.pair import Pair, PairOwner
from rlinf_async._transports.pair_store import PeerStore
from rlinf_async._transports.tcp_connections import Address, TcpConnection, is_named_in
from rlinf_async._transports.transfer import ReceiveTransfer, SendTransfer
from rlinf_async.errors import TransferFailed

_WINDOW_BYTES: Final = 16 << 20
"""Maximum total bytes of all admitted transfers when more than two are admitted. Two are always admitted, so that the
next transfer's message can travel together with the last transfer's memory."""

_CONNECT_TIMEOUT: Final = timedelta(seconds=3)
"""Gloo tries to connect for up to five times this long, and cannot be interrupted. A shorter timeout is dangerous: a
distant peer takes tenths of a second to answer, and when Gloo gives up, it frees memory that its own thread still uses,
which crashes the process. tests/test_rough_networks.py::test_traffic_of_every_kind_arrives_once_over_a_rough_network"""

_CHUNK_TIMEOUT: Final = timedelta(seconds=1.5)
"""Timeout for one chunk that the peer is sending; if it expires, the pair is closed. Within a chunk, nothing can
interrupt Gloo, not even the end of its connection, so a thread may linger this long after a pair has broken."""

_MAX_TAGS: Final = 1 << 31

_UNWANTED: Final = "the process group is not wanted any more"


Job = Callable[[], None]


class GlooDevice:
    """A Gloo device that listens on one address of this machine, shared by all pairs of the process.

    Gloo sends and receives on the device's thread, but starts each send on the caller's thread, where it copies data as
    long as the socket accepts it. So this object has another thread, which starts the sends for all callers and never
    waits for a peer.
    """

    _lock = threading.Lock()
    _open: dict[str, GlooDevice] = {}  # noqa: RUF012  # the process's own table

    def __init__(self, address: str) -> None:
        self._address = address
        self._users = 0
        # Do not use lazy pairs, because with a shared device a lazy pair's first message never arrives.
        self.gloo: Any = ProcessGroupGloo.create_device(hostname=address, lazy_init=False)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        threading.Thread(target=self._run, name="rlinf-gloo-send", daemon=True).start()

    @classmethod
    def acquire(cls, address: str) -> GlooDevice:
        """Return the device for this address, creating it if necessary. Each ``acquire`` must be matched by a
        ``release``.

        Raises:
            RuntimeError: the address is not one of this machine's.
        """
        with cls._lock:
            device = cls._open.get(address)
            if device is None:
                device = cls._open[address] = cls(address)
            device._users += 1
            return device

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                del self._open[self._address]
                self._jobs.put(None)

    def submit(self, job: Job) -> None:
        """Run ``job``, which must not raise, on the sending thread, after earlier jobs."""
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # the job's references must not outlive it


class _GlooReceive:
    """A transfer that Gloo is receiving."""

    def __init__(self, receiving: ReceiveTransfer[Any], start: int) -> None:
        self.receiving = receiving
        self.chunks = receiving.chunks[start:]
        self.works: deque[Any] = deque()

    def release(self) -> None:
        self.works.clear()


class GlooPair(Pair):
    """A connection to the peer's pair, with a thread that sets it up and receives.

    Only this thread waits for Gloo's constructor and operations. ``close`` makes the store raise and ends the
    connection, without waiting for the thread.
    """

    def __init__(self, owner: PairOwner, first: bool, address: str) -> None:
        self._owner = owner
        self._rank = 0 if first else 1
        self._address = address
        self._store = PeerStore(lambda key, value: owner.set_key(self, key, value))
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._admitted: Address | None = None
        self._device: GlooDevice | None = None
        self._connection: TcpConnection | None = None
        self._group: Any = None
        self._requested: deque[ReceiveTransfer[Any]] = deque()
        self._coming: set[int] = set()
        self._unsent: list[tuple[SendTransfer, int, int]] = []
        self._sent: dict[int, tuple[SendTransfer, list[Any]]] = {}
        self._tag = 0
        threading.Thread(target=self._run, name="rlinf-gloo-receive", daemon=True).start()

    @property
    def is_connected(self) -> bool:
        return self._group is not None

    def on_set(self, key: str, value: bytes) -> None:
        self._store.on_set(key, value)

    def admit(self, address: Address) -> None:
        with self._changed:
            self._admitted = address
            self._changed.notify_all()

    def receive(self, receiving: ReceiveTransfer[Any]) -> None:
        with self._changed:
            self._requested.append(receiving)
            self._changed.notify_all()

    def send(self, sending: SendTransfer, tag: int, start: int) -> None:
        with self._changed:
            if self._group is None:
                self._unsent.append((sending, tag, start))
                return
        self._submit(sending, tag, start)

    def expect(self, number: int) -> None:
        with self._changed:
            self._coming.add(number)
            self._changed.notify_all()

    def forget(self, number: int) -> None:
        with self._changed:
            self._sent.pop(number, None)

    def close(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error
            connection, self._connection = self._connection, None
            self._changed.notify_all()
        if connection is not None:
            connection.end()
        self._store.close()

    # -- the pair's own thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        taken: deque[_GlooReceive] = deque()
        try:
            self._connect()
            self._serve(taken)
        except Exception as error:
            self._break(error)
        self._end(taken)

    def _connect(self) -> None:
        self._device = GlooDevice.acquire(self._address)
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch does not list it
        options._devices = [self._device.gloo]
        options._threads = 0  # Gloo's threads serve only collectives
        options._timeout = _CONNECT_TIMEOUT
        group = ProcessGroupGloo(self._store, self._rank, 2, options)
        connection = self._find_connection()
        with self._changed:
            if self._error is not None:
                connection.end()
                raise TransferFailed(_UNWANTED)
            self._connection, self._group = connection, group
            unsent, self._unsent = self._unsent, []
        for sending, tag, start in unsent:
            self._submit(sending, tag, start)

    def _find_connection(self) -> TcpConnection:
        """Return the new group's connection, which is needed to end the group's operations."""
        own, peers = (self._store.get(f"0/{rank}") for rank in (self._rank, 1 - self._rank))
        connection = TcpConnection.find(lambda _, far: is_named_in(peers, far))
        if connection is not None:  # this side opened the connection
            self._owner.connected(self, connection.near)
            return connection
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._admitted)
            if self._error is not None:
                raise TransferFailed(_UNWANTED)
        connection = TcpConnection.find(lambda near, far: far == self._admitted and is_named_in(own, near))
        if connection is None:
            raise TransferFailed("the connection that Gloo has made is not among the files of this process")
        return connection

    def _serve(self, taken: deque[_GlooReceive]) -> None:
        # No cycle of peers can deadlock. A send enters Gloo only after the peer's receive has entered it. Gloo's own
        # thread completes such a receive, whatever this thread waits for, and this thread waits only for such receives.
        # So the oldest receive depends only on one peer's progress, never on another transfer.
        while self._error is None:
            self._advance(taken)

    def _advance(self, taken: deque[_GlooReceive]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._may_take(taken) or self._is_coming(taken))
            requested = self._requested.popleft() if self._may_take(taken) else None
        if requested is not None:
            self._take(requested, taken)
        elif self._error is None:
            self._receive_oldest(taken)

    def _may_take(self, taken: deque[_GlooReceive]) -> bool:
        if not self._requested or len(taken) < 2:
            return bool(self._requested)
        return sum(each.receiving.nbytes for each in taken) + self._requested[0].nbytes <= _WINDOW_BYTES

    def _is_coming(self, taken: deque[_GlooReceive]) -> bool:
        return bool(taken) and taken[0].receiving.number in self._coming

    def _take(self, receiving: ReceiveTransfer[Any], taken: deque[_GlooReceive]) -> None:
        try:
            start = self._owner.begins(self, receiving)
        except MemoryError as error:
            self._owner.refuses(self, receiving, error)
            return
        if start is None:
            return
        taken.append(_GlooReceive(receiving, start))
        tag = self._tag
        for chunk in taken[-1].chunks:
            taken[-1].works.append(self._group.recv([chunk], 1 - self._rank, self._tag))
            self._tag = (self._tag + 1) % _MAX_TAGS
        self._owner.ready(self, receiving, tag, start)

    def _receive_oldest(self, taken: deque[_GlooReceive]) -> None:
        oldest = taken[0]
        with self._changed:
            self._coming.remove(oldest.receiving.number)
        while oldest.works:
            oldest.works[0].wait(_CHUNK_TIMEOUT)
            oldest.works.popleft()
            self._owner.arrived(self, oldest.receiving)
        taken.popleft()

    def _break(self, error: Exception) -> None:
        if isinstance(error, RuntimeError):
            error = self._translate(error)
        error.__traceback__ = None  # the traceback's frames would keep the group alive
        self._owner.broke(self, error)
        self.close(error)

    def _translate(self, error: RuntimeError) -> TransferFailed:
        text = re.sub(r"\[[^\]]*\.(cc|h):\d+\] ", "", str(error)).partition(" This is typically")[0]
        if self.is_connected:
            return TransferFailed(f"Gloo: {text}")
        return TransferFailed(
            f"Gloo: {text} (on {self._address}; workers of different nodes connect to each other on ports that the "
            "kernel chooses: no firewall may stand between the nodes)"
        )

    def _end(self, taken: deque[_GlooReceive]) -> None:
        for each in taken:
            each.release()
        with self._changed:
            self._sent.clear()
            self._group = None
            device, self._device = self._device, None
        if device is not None:
            device.release()

    # -- the thread that sends ------------------------------------------------------------------------------------

    def _submit(self, sending: SendTransfer, tag: int, start: int) -> None:
        with self._changed:
            device = self._device
        if device is not None:
            device.submit(lambda: self._send(sending, tag, start))

    def _send(self, sending: SendTransfer, tag: int, start: int) -> None:
        group = self._group
        if group is None or self._error is not None:
            return
        # Keep Gloo's work objects until the peer has received everything. Waiting for them is unnecessary, and might
        # take forever.
        works: list[Any] = []
        with self._changed:
            self._sent[sending.number] = (sending, works)
        try:
            chunks = sending.chunks()
            self._owner.sends(self, sending)
            for index in range(start, len(chunks)):
                works.append(group.send([chunks[index]], 1 - self._rank, (tag + index - start) % _MAX_TAGS))
        except Exception as error:
            self._break(error)

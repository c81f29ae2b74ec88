"""``GlooPair``, one side of a Gloo process group of two: rendezvous, chunked sends and receives, end at an error."""

from __future__ import annotations

import re
import threading
from collections import deque
from datetime import timedelta
from typing import Any, Final

from torch.distributed import ProcessGroupGloo

from rlinf_async._transports.gloo_device import GlooDevice
from rlinf_async._transports.pair import Owner, Pair
from rlinf_async._transports.pair_store import PeerStore
from rlinf_async._transports.tcp_connections import Address, Connection, is_named_in
from rlinf_async._transports.transfer import Receiving, Sending
from rlinf_async.errors import TransferFailed

_WINDOW_BYTES: Final = 16 << 20
"""Bytes for which the peer may send at once, and more in two transfers: the word for the next one is under way while
the memory of the last is."""

_CONNECT_TIMEOUT: Final = timedelta(seconds=3)
"""Gloo gives a connection up to five times this long, and cannot be interrupted meanwhile.  No shorter: where it gives
one up, it frees what its own thread is at, and the process dies of that; a far peer takes many tenths of a second.
tests/test_rough_networks.py::test_traffic_of_every_kind_arrives_once_over_a_rough_network"""

_CHUNK_TIMEOUT: Final = timedelta(seconds=1.5)
"""For one chunk that the peer is sending.  Gloo cannot be interrupted in the middle of one, not even by the end of its
connection, and afterwards it closes the pair; so this is how long a thread may stay behind when a pair breaks."""

_MAX_TAGS: Final = 1 << 31

_UNWANTED: Final = "the process group is not wanted any more"


class _Taken:
    """A transfer that Gloo is receiving."""

    def __init__(self, receiving: Receiving[Any], start: int) -> None:
        self.receiving = receiving
        self.chunks = receiving.chunks[start:]
        self.works: deque[Any] = deque()

    def let_go(self) -> None:
        """Gloo does not touch the memory any more."""
        self.works.clear()


class GlooPair(Pair):
    """A connection to the opposite number's pair, and a thread that makes it and receives.

    Nobody waits for the constructor of Gloo's or for its operations but that thread.  ``close`` makes the store raise,
    and ends the connection, whichever there is; nobody waits for the thread then either.
    """

    def __init__(self, owner: Owner, first: bool, address: str) -> None:
        self._owner = owner
        self._rank = 0 if first else 1
        self._address = address
        self._store = PeerStore(lambda key, value: owner.set_key(self, key, value))
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._admitted: Address | None = None
        self._device: GlooDevice | None = None
        self._connection: Connection | None = None
        self._group: Any = None
        self._asked: deque[Receiving[Any]] = deque()
        self._coming: set[int] = set()
        self._unsent: list[tuple[Sending, int, int]] = []
        self._sent: dict[int, tuple[Sending, list[Any]]] = {}
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

    def receive(self, receiving: Receiving[Any]) -> None:
        with self._changed:
            self._asked.append(receiving)
            self._changed.notify_all()

    def send(self, sending: Sending, tag: int, start: int) -> None:
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
        taken: deque[_Taken] = deque()
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
        options._threads = 0  # those are for collectives
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

    def _find_connection(self) -> Connection:
        """A group counts only once its connection is at hand, so that whatever it does can be ended."""
        own, peers = (self._store.get(f"0/{rank}") for rank in (self._rank, 1 - self._rank))
        connection = Connection.find(lambda _, far: is_named_in(peers, far))
        if connection is not None:  # made on this side
            self._owner.connected(self, connection.near)
            return connection
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._admitted)
            if self._error is not None:
                raise TransferFailed(_UNWANTED)
        connection = Connection.find(lambda near, far: far == self._admitted and is_named_in(own, near))
        if connection is None:
            raise TransferFailed("the connection that Gloo has made is not among the files of this process")
        return connection

    def _serve(self, taken: deque[_Taken]) -> None:
        # No circle of peers can stand still: a send enters Gloo only after the peer's receive has, a receive that has
        # entered is filled by Gloo's own thread whatever ours wait for, and ours wait for nothing else.  So every
        # oldest receive depends on one peer's progress alone, never on another transfer.
        while self._error is None:
            self._go_on(taken)

    def _go_on(self, taken: deque[_Taken]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._may_take(taken) or self._is_coming(taken))
            asked = self._asked.popleft() if self._may_take(taken) else None
        if asked is not None:
            self._take(asked, taken)
        elif self._error is None:
            self._receive_oldest(taken)

    def _may_take(self, taken: deque[_Taken]) -> bool:
        if not self._asked or len(taken) < 2:
            return bool(self._asked)
        return sum(each.receiving.nbytes for each in taken) + self._asked[0].nbytes <= _WINDOW_BYTES

    def _is_coming(self, taken: deque[_Taken]) -> bool:
        return bool(taken) and taken[0].receiving.number in self._coming

    def _take(self, receiving: Receiving[Any], taken: deque[_Taken]) -> None:
        try:
            start = self._owner.begins(self, receiving)
        except MemoryError as error:
            self._owner.refuses(self, receiving, error)
            return
        if start is None:
            return
        taken.append(_Taken(receiving, start))
        tag = self._tag
        for chunk in taken[-1].chunks:
            taken[-1].works.append(self._group.recv([chunk], 1 - self._rank, self._tag))
            self._tag = (self._tag + 1) % _MAX_TAGS
        self._owner.ready(self, receiving, tag, start)

    def _receive_oldest(self, taken: deque[_Taken]) -> None:
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
        error.__traceback__ = None  # its frames hold the group, and whoever holds the error would with it
        self._owner.broke(self, error)
        self.close(error)

    def _translate(self, error: RuntimeError) -> TransferFailed:
        """Gloo's word for it, without its source files and its guesses."""
        text = re.sub(r"\[[^\]]*\.(cc|h):\d+\] ", "", str(error)).partition(" This is typically")[0]
        if self.is_connected:
            return TransferFailed(f"Gloo: {text}")
        return TransferFailed(
            f"Gloo: {text} (on {self._address}; workers of different nodes connect to each other on ports that the "
            "kernel chooses: no firewall may stand between the nodes)"
        )

    def _end(self, taken: deque[_Taken]) -> None:
        for each in taken:
            each.let_go()
        with self._changed:
            self._sent.clear()
            self._group = None
            device, self._device = self._device, None
        if device is not None:
            device.release()

    # -- the thread that sends ------------------------------------------------------------------------------------

    def _submit(self, sending: Sending, tag: int, start: int) -> None:
        with self._changed:
            device = self._device
        if device is not None:
            device.submit(lambda: self._send(sending, tag, start))

    def _send(self, sending: Sending, tag: int, start: int) -> None:
        group = self._group
        if group is None or self._error is not None:
            return
        # Kept until the peer has it all: to wait for them would tell no more, and may take for ever.
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

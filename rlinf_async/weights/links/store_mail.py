"""Numbered messages between a sender and one receiver by a torch store, and tensors by a process group of their own.

    NODE_<rank>_in/<n>     sender → receiver   the head of message n; its tensor follows by the group
    NODE_<rank>_count      sender → receiver   n of the last message
    NODE_<rank>_here/<g>   receiver → sender   it takes part in the making of group g
    NODE_<rank>_there/<g>  sender → receiver   so does the sender, or it no longer does
    NODE_<rank>_out/<n>    receiver → sender   the answer to it

Nothing is overwritten by a second message, and an answer is found by its number.  All methods block, and be it
for a store that has stopped: each side calls them in a thread of its own, ``interrupt`` and ``wake`` in another one.

Gloo lets nobody go who waits in the middle of a tensor, whatever becomes of its connection, but those at once who wait
for what has not begun.  So nobody waits for the tensor itself: the receiver waits for a byte that follows it, and the
sender for one that comes back.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # torch does not list it

from rlinf_async._core import frames
from rlinf_async._transports.tcp_connections import Connection, is_named_in
from rlinf_async.errors import ClosedError, ConfigError, DeadlineExceeded, PeerLost, TransferFailed

CLOSED: Final = b"closed"
_VOID: Final = b"void"
"""The head of a message that its sender has given up."""

_CONNECTING: Final = 10.0
"""Seconds at most in which a group is made once both sides are there; nothing can interrupt that."""

_TENSOR, _MARK, _RECEIPT = 0, 1, 2
"""Tags: of what is sent, of the byte that follows it, and of the one that comes back."""


class StoreMail:
    """One side of it.

    Args:
        store: any store of torch.distributed that can be cloned; all receivers may share it.
        rank: the receiver's, from 1 on.
        is_sender: which side this is.
        backend: ``"gloo"``, or ``"nccl"`` for tensors that travel from GPU to GPU.
    """

    def __init__(self, store: Any, rank: int, is_sender: bool, backend: str) -> None:
        if backend not in ("gloo", "nccl"):
            raise ConfigError(f"backend= is 'gloo' or 'nccl'; got {backend!r}")
        self._shared = store
        self._own: Any = None
        self._beside: Any = None
        """What ``interrupt`` speaks by, once there is something to interrupt."""
        self._name = f"NODE_{rank}"
        self._me = 0 if is_sender else 1
        self._backend = backend
        self._group: Any = None
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        """Over what ``interrupt`` looks at from another thread."""
        self._speaking = threading.Lock()
        self._name_of_this = uuid.uuid4().hex[:12]
        """Another sender may have used this store before, and what it has left would lead nowhere."""
        self._groups = 0
        self._generation = ""
        self._number = 0
        self._sent: dict[int, _Sent] = {}
        self._receipt: _Sent | None = None
        self._is_declined = False
        """Whether the message that is to be answered has not even been begun to be received."""

    @property
    def _store(self) -> Any:
        """This side's own client: one serves one caller at a time.  It is made in the thread, as that may take torch
        seconds.
        """
        if self._own is None:
            self._own = self._shared.clone()
            self._beside = self._shared.clone()
        return self._own

    # -- the sender ---------------------------------------------------------------------------------------------

    def send(
        self, head: dict[str, Any], tensor: torch.Tensor, timeout: float, wait: bool, given_up: threading.Event
    ) -> int:
        """Sends a message; returns its number.  The tensor must not change until it is answered.

        Args:
            given_up: set before ``interrupt`` is called.

        Raises:
            DeadlineExceeded: the receiver does not take it.
            PeerLost: the connection broke.
            ClosedError: it was given up.
        """
        if not self._number:
            self._go_on_from_the_last()
        with self._lock:
            if self._group is None:
                self._groups += 1
                self._generation = f"{self._name_of_this}-{self._groups}"
            self._number += 1
            number = self._number
        if given_up.is_set():
            self._avoid(number)
            raise ClosedError(f"message {number} to {self._name} was given up")
        whose = {"sender": self._name_of_this, "generation": self._generation}
        facts = {**head, **whose, "nbytes": tensor.numel()}
        self._store.set(self._key("in", number), frames.pack(facts))
        self._store.set(f"{self._name}_count", str(number))
        try:
            group = self._connect(timeout, given_up)
            self._sent[number] = sent = self._send(group, tensor)
            if wait:
                sent.until.wait(timedelta(seconds=timeout))
        except (RuntimeError, PeerLost, DeadlineExceeded, ClosedError) as error:
            self.part()
            if not given_up.is_set() and self._is_answered(number):
                return number  # why it was not taken, says the answer
            self._avoid(number)
            raise self._translated(error, timeout) from None
        return number

    def _is_answered(self, number: int) -> bool:
        with contextlib.suppress(RuntimeError):  # of a store that is gone
            return bool(self._store.check([self._key("out", number)]))
        return False

    def _send(self, group: Any, tensor: torch.Tensor) -> _Sent:
        if self._backend == "nccl":
            moved = tensor.to("cuda")
            return _Sent(group.send([moved], 1, _TENSOR), [moved])
        mark, receipt = _byte(), _byte()
        until = group.recv([receipt], 1, _RECEIPT)
        works = group.send([tensor], 1, _TENSOR), group.send([mark], 1, _MARK)
        return _Sent(until, [tensor, mark, receipt, works])

    def _go_on_from_the_last(self) -> None:
        last = self._last()
        if last and self._store.check([self._key("in", last)]):
            self._avoid(last)
        with self._lock:
            self._number = last

    def _avoid(self, number: int) -> None:
        """The receiver, if it has not seen that message, is not to take it."""
        self._store.set(self._key("in", number), _VOID)
        self._store.set(f"{self._name}_count", str(number))

    def withdraw(self) -> None:
        """After ``interrupt``, when nobody waits for the last message any more: the receiver is not to take it."""
        self.part()
        if self._number:
            self._avoid(self._number)

    def wait_answer(self, number: int, timeout: float) -> bytes:
        """
        Raises:
            DeadlineExceeded: there is none; whatever the receiver does with the message, the next one takes another
                connection.
        """
        key = self._key("out", number)
        answer = self._wait(key, timeout)
        self._sent.pop(number, None)
        if answer is None or answer == CLOSED:
            self.part()
            self._avoid(number)
            if answer is None:
                raise DeadlineExceeded(f"{self._name} has not answered message {number} within {timeout:g} s")
            raise ClosedError(f"nobody waits for the answer to message {number} of {self._name}")
        self._store.delete_key(key)
        return answer

    # -- the receiver -------------------------------------------------------------------------------------------

    def next_head(self) -> dict[str, Any] | None:
        """Waits for a message, as long as it takes; None once ``wake`` was called."""
        if not self._number:
            self._number = self._first()
        found = None
        while found is None:
            key = self._key("in", self._number)
            found = self._wait(key, 3600.0)
            if found is None:
                continue  # what comes from now on is not to be lost
            self._store.delete_key(key)  # CLOSED too: the next receiver of this rank begins here
            if found == CLOSED:
                return None
            for what in ("in", "out"):  # which nobody may have asked for
                self._store.delete_key(self._key(what, self._number - 1))
            if found == _VOID:
                self._number += 1
                found = None
        head: dict[str, Any] = frames.unpack(found)
        return head

    def receive(self, head: dict[str, Any], timeout: float, given_up: threading.Event) -> torch.Tensor:
        """The tensor of the message whose head was received last.

        Args:
            given_up: set before ``interrupt`` is called.

        Raises:
            DeadlineExceeded, PeerLost: it does not come; the message may be answered all the same.
            ClosedError: it was given up.
            Exception: there is no memory for it; the message has to be answered.
        """
        if head["generation"] != self._generation:
            self.part()
            with self._lock:
                self._generation = head["generation"]
        device = "cuda" if self._backend == "nccl" else "cpu"
        try:
            tensor = torch.empty(head["nbytes"], dtype=torch.uint8, device=device)
        except Exception:
            self._is_declined = True
            raise
        try:
            self._fill(self._connect(timeout, given_up), tensor, timedelta(seconds=timeout))
        except (RuntimeError, PeerLost, DeadlineExceeded, ClosedError) as error:
            self.part()
            if isinstance(error, ClosedError) and not given_up.is_set():
                raise PeerLost(f"its sender has given up: {error}") from None
            raise self._translated(error, timeout) from None
        return tensor

    def _fill(self, group: Any, tensor: torch.Tensor, timeout: timedelta) -> None:
        work = group.recv([tensor], 0, _TENSOR)
        if self._backend == "gloo":
            group.recv([_byte()], 0, _MARK).wait(timeout)
        work.wait(timeout)
        if self._backend == "gloo":
            receipt = _byte()
            self._receipt = _Sent(group.send([receipt], 0, _RECEIPT), [receipt])

    def answer(self, text: bytes) -> None:
        self._store.set(self._key("out", self._number), text)
        self._number += 1
        if self._is_declined:  # its sender waits for the connection yet, and not for the answer
            self._is_declined = False
            if self._group is None:
                self._store.set(self._key("here", self._generation), CLOSED)
            self.part()

    def _first(self) -> int:
        """A receiver that is started again begins with what has not been taken."""
        last = self._last()
        return last if last and self._store.check([self._key("in", last)]) else last + 1

    # -- both ---------------------------------------------------------------------------------------------------

    def _last(self) -> int:
        count = f"{self._name}_count"
        return int(self._store.get(count)) if self._store.check([count]) else 0

    def wake(self) -> None:
        """Has ``next_head`` return; from another thread."""
        other = self._shared.clone()
        other.set(self._key("in", self._number or self._first()), CLOSED)

    def interrupt(self) -> None:
        """What the other thread waits for, it waits for no longer; the next message takes another connection."""
        self.tell(self.cut())

    def cut(self) -> list[str]:
        """The first half of ``interrupt``, which asks nothing of the store; returns what to ``tell`` it."""
        with self._lock:
            connection, self._connection = self._connection, None
            keys = [self._key("here" if self._me == 0 else "there", self._generation)]
            if self._me == 0:
                keys.append(self._key("out", self._number))
        if connection is not None:
            connection.end()
        return keys

    def tell(self, keys: list[str]) -> None:
        """The other half: it waits for the store, for however long that does not answer."""
        if self._beside is None:
            return  # nobody waits for the store
        with self._speaking, contextlib.suppress(RuntimeError):  # of a store that is gone, which nobody waits for
            for key in keys:
                if not self._beside.check([key]):
                    self._beside.set(key, CLOSED)

    def part(self) -> None:
        """Ends the connection; the next message takes another one."""
        with self._lock:
            group, self._group = self._group, None
            connection, self._connection = self._connection, None
        self._sent.clear()
        self._receipt = None
        if connection is not None:
            connection.end()
        if group is not None:
            group.abort()

    def _connect(self, timeout: float, given_up: threading.Event) -> Any:
        if self._group is None:
            self._meet(timeout)
            store = PrefixStore(f"{self._name}/{self._generation}", self._store)
            group = _make(self._backend, store, self._me, timedelta(seconds=min(timeout, _CONNECTING)))
            connection = _find_connection(store, self._me) if self._backend == "gloo" else None
            with self._lock:
                self._group, self._connection = group, connection
        if given_up.is_set():  # before there was a connection to end
            raise ClosedError(f"message {self._number} of {self._name} was given up")
        return self._group

    def _meet(self, timeout: float) -> None:
        """Both sides are about to make a group, or neither is: nothing can interrupt the making."""
        here, there = (self._key(what, self._generation) for what in ("here", "there"))
        if self._me == 0:
            try:
                self._expect(here, timeout, f"{self._name} has not taken message {self._number}")
            except (DeadlineExceeded, ClosedError):
                self._store.set(there, CLOSED)
                raise
            self._store.set(there, b"yes")
        else:
            self._store.set(here, b"yes")
            patience = min(timeout, _CONNECTING)
            self._expect(there, patience, f"the sender of message {self._number} to {self._name} has not come back")

    def _expect(self, key: str, timeout: float, complaint: str) -> None:
        found = self._wait(key, timeout)
        if found is None:
            raise DeadlineExceeded(f"{complaint} within {timeout:g} s")
        self._store.delete_key(key)
        if found == CLOSED:
            raise ClosedError(f"message {self._number} to {self._name} was given up")

    def _wait(self, key: str, timeout: float) -> bytes | None:
        from torch.distributed import DistNetworkError, DistStoreError

        try:
            self._store.wait([key], timedelta(seconds=timeout))
            found: bytes = self._store.get(key)
        except DistStoreError:
            return None
        except DistNetworkError as error:
            raise PeerLost(f"the store of {self._name} is gone: {str(error).splitlines()[0]}") from None
        return found

    def _key(self, what: str, number: int | str) -> str:
        return f"{self._name}_{what}/{number}"

    def _translated(self, error: Exception, timeout: float) -> Exception:
        if isinstance(error, (PeerLost, DeadlineExceeded, ClosedError)):
            return error
        text = str(error).splitlines()[0]
        if "timeout" in text.lower() or "timed out" in text.lower():
            return DeadlineExceeded(f"{self._name} was not reached by {self._backend} within {timeout:g} s: {text}")
        return PeerLost(f"{self._name} was lost by {self._backend}: {text}")


class _Sent(NamedTuple):
    """What has been sent and may not be there yet.

    Attributes:
        until: who waits for it waits for this.
        held: what Gloo uses until then.
    """

    until: Any
    held: Sequence[Any]


def _byte() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.uint8)


def _make(backend: str, store: Any, rank: int, timeout: timedelta) -> Any:
    if backend == "nccl":
        from torch.distributed import ProcessGroupNCCL

        options = ProcessGroupNCCL.Options()
        options._timeout = timeout
        return ProcessGroupNCCL(store, rank, 2, options)
    from torch.distributed import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, 2, timeout)


def _find_connection(store: Any, me: int) -> Connection | None:
    """Gloo's, so that it can be ended; None if it cannot be told from others."""
    own, peers = (bytes(store.get(f"0/{rank}")) for rank in (me, 1 - me))
    try:
        made_here = Connection.find(lambda near, far: is_named_in(peers, far))
        return made_here or Connection.find(lambda near, far: is_named_in(own, near))
    except TransferFailed:
        return None

"""Numbered messages from a sender to one receiver: heads in a torch store, tensors and answers over a process group.

    NODE_<rank>_in/<n>           sender → receiver   head of message n, whose tensor follows over the group
    NODE_<rank>_count            sender → receiver   number of the last message
    NODE_<rank>_at/<g>/0/<side>  both                address of that side in group g (0: the sender), or "closed"

No message overwrites another. All methods block, even if the store has stopped responding: each side calls them in its
own thread, and calls ``interrupt`` in another thread.

Gloo never releases a thread that waits in the middle of a tensor, even if the connection ends, but immediately releases
a thread that waits for a transfer that has not begun. So no thread waits for a tensor itself: the receiver waits for a
byte that follows the tensor, and the sender for the length of the answer. Such a wait ends as soon as the other process
does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # torch does not list them

from rlinf_async._core import clock, failures, frames
from rlinf_async._core.own_logger import own_logger
from rlinf_async._transports.tcp_connections import TcpConnection, is_named_in
from rlinf_async.errors import ClosedError, ConfigError, DeadlineExceeded, PeerLost, TransferFailed

logger = own_logger(__name__)

_CLOSED: Final = b"closed"
"""Value stored under an awaited key whose real value will not be set."""
_VOID: Final = b"void"
"""Head of a message that its sender has abandoned."""

_MAX_CONNECT_S: Final = 10.0
"""Limit on connecting once both addresses are known, because connecting cannot be interrupted."""
_MAX_WAIT_S: Final = 3600.0
"""Limit on one request to the store; longer waits repeat the request."""
_ENDLESS_S: Final = 1e8  # limit on one wait of Gloo, three years, because its nanoseconds overflow after 292

_TENSOR, _MARK, _LENGTH, _ANSWER = range(4)
"""Tags of the tensor, of the byte that follows it, and of the answer's two parts."""
_DONE, _FAILED, _UNTAKEN = b"+", b"-", b"!"
"""First byte of an answer. The rest is the receiver's message, the reason why it could not apply the weights, or the
reason why it could not even receive them, in which case they are still in transit."""

_BREAKS: Final = (RuntimeError, PeerLost, DeadlineExceeded, ClosedError)
"""Errors that end a connection; Gloo and the store raise RuntimeErrors."""


class StoreMail:
    """One side of the exchange, used by one thread.

    Args:
        store: any torch.distributed store that can be cloned; all receivers may share it.
        rank: the receiver's rank, starting at 1.
        is_sender: True for the sender's side.
        backend: ``"gloo"``, or ``"nccl"`` for tensors sent from GPU to GPU.
    """

    def __init__(self, store: Any, rank: int, is_sender: bool, backend: str) -> None:
        if backend not in ("gloo", "nccl"):
            raise ConfigError(f"backend= is 'gloo' or 'nccl'; got {backend!r}")
        self._shared = store
        self._own: Any = None
        self._name = f"NODE_{rank}"
        self._side = 0 if is_sender else 1
        self._device = "cuda" if backend == "nccl" else "cpu"
        self._id = uuid.uuid4().hex[:12]
        """Identity of this sender; entries that an earlier sender left in the store must be ignored."""
        self._number = 0
        self._generation = ""
        """Name of the current group or, if there is none, of the last one."""
        self._group: Any = None
        self._carrier: Any = None
        """Process group that transfers the tensors: the same group, or NCCL's."""
        self._held: Sequence[Any] = ()
        """Tensors that Gloo may still read or write."""
        self._end = 0.0
        """Deadline for answering the last received message."""
        self._lock = threading.Lock()
        """Lock that guards the attributes that ``interrupt`` reads in another thread."""
        self._stop = threading.Event()
        self._awaited = ""
        self._connection: TcpConnection | None = None

    @property
    def _store(self) -> Any:
        """This object's own store client, which serves one caller at a time. It is created in this object's thread,
        because torch resolves each address, and a lost DNS reply costs five seconds."""
        if self._own is None:
            self._own = self._shared.clone()
        return self._own

    def send(self, head: dict[str, Any], tensor: torch.Tensor, timeout: float, stop: threading.Event) -> bytes:
        """Send a message; return the receiver's answer.

        Args:
            stop: event that is set before ``interrupt`` is called.

        Raises:
            DeadlineExceeded: no answer arrived in time. Whatever the receiver does with the message, the next message
                uses another connection.
            PeerLost: the connection broke.
            ClosedError: the call was interrupted.
            RemoteError: the receiver could not receive or apply the message; the error says why.
        """
        self._begin(stop)
        end = clock.monotonic() + timeout
        if not self._number:
            self._number = self._last()
            if self._number and self._store.check([self._key("in")]):
                self._withdraw()
        self._number += 1
        if self._group is None:
            self._generation = f"{self._id}-{self._number}"
        facts = {"sender": self._id, "generation": self._generation, "nbytes": tensor.numel(), "timeout": timeout}
        try:
            self._check()
            self._store.set(self._key("in"), frames.pack({**head, **facts}))
            self._store.set(f"{self._name}_count", str(self._number))
            self._connect(end)
            answer = self._ship(tensor, end)
        except Exception as error:  # whatever it is: without a void, the receiver would wait for this message
            self.part()
            with contextlib.suppress(RuntimeError):  # the store does not answer
                self._withdraw()
                self._store.set(f"{self._key('at', self._generation)}/0/0", _CLOSED)
            raise self._translated(error, timeout) from None
        if answer.startswith(_UNTAKEN):
            self.part()
        if not answer.startswith(_DONE):
            # Unpickle no part of the answer, because any process may write to the store and thus impersonate the other
            # side.
            raise failures.rebuild(dataclasses.replace(failures.unpack(answer[1:]), pickled=None))
        return answer[1:]

    def _ship(self, tensor: torch.Tensor, end: float) -> bytes:
        tensor, mark, length = tensor.to(self._device), _byte(), torch.zeros(1, dtype=torch.int64)
        answered = self._group.recv([length], 1, _LENGTH)
        sending = self._carrier.send([tensor], 1, _TENSOR), self._group.send([mark], 1, _MARK)
        self._held = [tensor, mark, length, answered, sending]
        answered.wait(_until(end))
        answer = torch.empty(int(length), dtype=torch.uint8)
        self._group.recv([answer], 1, _ANSWER).wait(_until(end))
        self._held = ()
        return answer.numpy().tobytes()

    def _withdraw(self) -> None:
        """Prevent the receiver from taking the current message."""
        self._store.set(self._key("in"), _VOID)
        self._store.set(f"{self._name}_count", str(self._number))

    def receive(self, stop: threading.Event) -> tuple[dict[str, Any], torch.Tensor]:
        """Wait indefinitely for a message; if a message breaks off midway, wait for the next.

        Args:
            stop: event that is set before ``interrupt`` is called.

        Raises:
            PeerLost: the store does not answer.
            ClosedError: the call was interrupted.
            Exception: memory for the message could not be allocated; the sender gets the same error.
        """
        self._begin(stop)
        while True:
            head, failure = self._next_head(), None
            if head["generation"] != self._generation:
                self.part()
                self._generation = head["generation"]
            try:
                tensor = torch.empty(head["nbytes"], dtype=torch.uint8, device=self._device)
            except Exception as error:
                failure = error
            self._end = clock.monotonic() + head["timeout"]
            try:
                self._connect(min(self._end, clock.monotonic() + _MAX_CONNECT_S))
                if failure is None:
                    self._fill(self._group, tensor, _until(self._end))
                    return head, tensor
                self.answer(failure, _UNTAKEN)
            except _BREAKS as error:
                self.part()
                reason = self._translated(error, head["timeout"])
                if stop.is_set():
                    raise reason from None
                logger.warning("version %d of '%s' has not come: %s", head["version"], head["model_id"], reason)
            if failure is not None:
                raise failure

    def _next_head(self) -> dict[str, Any]:
        if not self._number:
            # A restarted receiver begins with the last message if no receiver has taken it.
            self._number = self._last()
            if self._number and self._store.check([self._key("in")]):
                self._number -= 1
        self._number += 1
        while True:
            found = self._wait(self._key("in"), clock.monotonic() + _MAX_WAIT_S)
            if found is None:
                continue
            # The last message may have been withdrawn after its predecessor was taken, so delete both.
            for number in (self._number, self._number - 1):
                self._store.delete_key(self._key("in", number))
            if found == _VOID:
                self._number += 1
            elif found != _CLOSED:
                head: dict[str, Any] = frames.unpack(found)
                return head

    def _fill(self, group: Any, tensor: torch.Tensor, timeout: timedelta) -> None:
        work = self._carrier.recv([tensor], 0, _TENSOR)
        group.recv([_byte()], 0, _MARK).wait(timeout)
        work.wait(timeout)

    def answer(self, answer: bytes | BaseException, failed: bytes = _FAILED) -> None:
        """Tell the sender that its last message was applied, or why it was not."""
        answer = failed + failures.pack_error(answer) if isinstance(answer, BaseException) else _DONE + answer
        if self._group is not None:
            try:
                # Wait for each send, because the connection may be closed right afterwards.
                self._group.send([torch.tensor([len(answer)])], 0, _LENGTH).wait(_until(self._end))
                text = torch.frombuffer(bytearray(answer), dtype=torch.uint8)
                self._group.send([text], 0, _ANSWER).wait(_until(self._end))
            except RuntimeError:  # the sender has stopped waiting
                self.part()

    def interrupt(self, stop: threading.Event) -> None:
        """End the call that was given ``stop``, if it is running. Block while the store does not answer."""
        with self._lock:
            if self._stop is not stop:
                return
            connection, self._connection = self._connection, None
            awaited = self._awaited
        if connection is not None:
            connection.end()
        if awaited:
            with contextlib.suppress(RuntimeError):  # the store does not answer, so no thread can be released
                self._shared.clone().compare_set(awaited, "", _CLOSED.decode())

    def part(self) -> None:
        """Close the connection; the next message uses another connection."""
        with self._lock:
            connection, self._connection = self._connection, None
        groups = {self._group, self._carrier} - {None}
        self._group, self._carrier, self._held = None, None, ()
        if connection is not None:
            connection.end()
        for group in groups:
            group.abort()

    def _begin(self, stop: threading.Event) -> None:
        if self._stop.is_set():
            # The last call may have returned when it was interrupted, after its connection was closed.
            self.part()
        with self._lock:
            self._stop = stop

    def _check(self) -> None:
        if self._stop.is_set():
            raise ClosedError(f"message {self._number} to {self._name} was given up")

    def _connect(self, end: float) -> None:
        if self._group is None:
            from torch.distributed import ProcessGroupGloo

            store = _Meeting(self, self._key("at", self._generation), end)
            limit = min(_until(end), timedelta(seconds=_MAX_CONNECT_S))
            # Gloo waits for a connection five times as long as its timeout, so pass a fifth of the limit.
            self._group = self._carrier = ProcessGroupGloo(store, self._side, 2, limit / 5)
            connection = _find_connection(store, self._side)
            with self._lock:
                self._connection = connection
            if self._device == "cuda":
                self._carrier = _make_nccl(PrefixStore(self._generation, self._store), self._side, limit)
        # ``interrupt`` may have been called before there was a connection to close.
        self._check()

    def _last(self) -> int:
        count = f"{self._name}_count"
        return int(self._store.get(count)) if self._store.check([count]) else 0

    def _key(self, what: str, which: int | str | None = None) -> str:
        return f"{self._name}_{what}/{self._number if which is None else which}"

    def _wait(self, key: str, end: float) -> bytes | None:
        """Wait for a key and return its value; None at the deadline."""
        from torch.distributed import DistNetworkError, DistStoreError

        store = self._store
        # Check under the lock, so that ``interrupt`` either precedes the check or sees the key.
        with self._lock:
            self._check()
            self._awaited = key
        try:
            store.wait([key], _until(end))
            found: bytes = store.get(key)
        except DistStoreError:
            return None
        except DistNetworkError as error:
            raise PeerLost(f"the store of {self._name} is gone: {str(error).splitlines()[0]}") from None
        finally:
            with self._lock:
                self._awaited = ""
        return found

    def _translated(self, error: Exception, timeout: float) -> Exception:
        if self._stop.is_set():
            return ClosedError(f"message {self._number} to {self._name} was given up")
        if isinstance(error, (PeerLost, DeadlineExceeded)) or not isinstance(error, RuntimeError):
            return error
        text = re.sub(r"\[[^\]]*\.(cc|h):\d+\] ", "", str(error).splitlines()[0]).partition(" This is typically")[0]
        if "timeout" in text.lower() or "timed out" in text.lower():
            return DeadlineExceeded(f"{self._name} has not taken or answered it within {timeout:g} s: {text}")
        return PeerLost(f"{self._name} was lost: {text}")


class _Meeting(Store):
    """The keys in the job's store by which Gloo's two ends find each other; ``interrupt`` ends a wait for them."""

    def __init__(self, mail: StoreMail, prefix: str, end: float) -> None:
        super().__init__()
        self._mail, self._prefix, self._end = mail, prefix, end

    def set(self, key: str, value: bytes | str) -> None:
        self._mail._store.set(f"{self._prefix}/{key}", value)

    def get(self, key: str) -> bytes:
        message = f"message {self._mail._number} to {self._mail._name}"
        found = self._mail._wait(f"{self._prefix}/{key}", self._end)
        if found is None:
            raise DeadlineExceeded(f"{message} was not taken in time, or its sender has ended")
        if found == _CLOSED:
            raise PeerLost(f"its sender has given up: {message}")
        return found

    def wait(self, keys: Sequence[str], timeout: Any = None) -> None:
        for key in keys:
            self.get(key)


def _byte() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.uint8)


def _until(end: float) -> timedelta:
    return timedelta(seconds=min(max(0.001, end - clock.monotonic()), _ENDLESS_S))


def _make_nccl(store: Any, side: int, timeout: timedelta) -> Any:
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, side, 2, options)


def _find_connection(store: _Meeting, side: int) -> TcpConnection | None:
    """Return Gloo's connection, so that it can be closed; None if it cannot be identified."""
    own, others = (store.get(f"0/{each}") for each in (side, 1 - side))
    try:
        made_here = TcpConnection.find(lambda near, far: is_named_in(others, far))
        return made_here or TcpConnection.find(lambda near, far: is_named_in(own, near))
    except TransferFailed:
        return None

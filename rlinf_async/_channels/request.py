"""``Put``, ``Get``, ``QueueQuery``: awaitable requests to a channel's queue; deadlines, withdrawal, return of items."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from rlinf_async import settings
from rlinf_async._channels.queue_errors import QueueEnd
from rlinf_async._channels.state.refusals import lease_lost
from rlinf_async._core import clock, dialect, frames, process
from rlinf_async._core.error_copy import copy_of
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.segment import close_fds
from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._waits import slow_waits
from rlinf_async.errors import ClosedError, DeadlineExceeded, EndOfChannel, LeaseLost, SerializationError
from rlinf_async.work import Returnable, Work

logger = own_logger(__name__)

T = TypeVar("T")


class QueueDestination:
    """A queue that receives requests, in this process or in a daemon.

    Attributes:
        name: name of the channel.
        where: the queue's location, for messages.
        channel: number of the channel; 0 for a local channel.
        has_told_of_loss: True once a warning has been logged that the closed channel refused an unawaited put.
    """

    name: str
    where = "this process"
    channel = 0
    has_told_of_loss = False

    def peer_activity(self, request: QueueRequest[Any]) -> slow_waits.PeerActivity | None:
        """Describe how many items are queued and how many requests wait."""
        return None

    @property
    def user_loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the user's loop, which must run for answers to arrive, or None."""
        return None

    def flush_from_thread(self) -> None: ...

    def withdraw(self, request: QueueRequest[Any]) -> None:
        raise NotImplementedError

    def withdraw_later(self, request: QueueRequest[Any]) -> None:
        """Schedule the withdrawal of an abandoned request; must take no lock, because finalizers call this."""
        raise NotImplementedError

    def taken(self, get: Get[Any]) -> None:
        raise NotImplementedError

    def decode(self, body: Any, fds: list[int]) -> Any:
        raise NotImplementedError

    def recall(self, put: Put) -> bool:
        """Withdraw a put whose deadline has passed. Return True if the queue will report whether it was in time."""
        return False


class QueueRequest(Work[T]):
    """A request to a queue, with its own deadline.

    Attributes:
        destination: its queue; None until the request is sent.
        number: the request's id at the queue.
        key: canonical encoding of the key.
        since: start time, in seconds of the monotonic clock.
        opening: settled once the channel is known, for requests that wait for the channel.
    """

    opening: Work[None] | None = None
    noun = "channel"

    def __init__(self, verb: str, channel: str, name: Any, key: bytes, timeout: float | None) -> None:
        """Create a request. Errors mention ``verb`` (with its preposition), ``channel`` and ``name``, the user's key.

        With a ``timeout`` of 0 the queue answers immediately.
        """
        super().__init__()
        self.destination: QueueDestination | None = None
        self.number = 0
        self.key = key
        self._said = (verb, channel, name)
        self._timeout = timeout
        self.since = self._since = clock.monotonic()

    def _describe(self) -> str:
        verb, channel, name = self._said
        where = "" if self.destination is None else f" on {self.destination.where}"
        return f"{verb} {self.noun} '{channel}'{where} (key {name!r})"

    def _awaiting(self) -> str:
        return f"`await {self.noun}.{self._said[0].partition(' ')[0]}`"

    def __bool__(self) -> bool:
        if dialect.is_rlinf:
            return True
        # Raise even if the request is done; otherwise an `if` without `await` would fail only sometimes.
        raise self._unawaited("asking for its truth")

    def _whom(self) -> str:
        return f"{self.noun} '{self._said[1]}'"

    def _peer_activity(self) -> slow_waits.PeerActivity | None:
        if self.destination is not None:
            return self.destination.peer_activity(self)
        return None if self.opening is None else self.opening._peer_activity()

    def _needs(self) -> slow_waits.Needs:
        destination = self.destination
        if destination is None:
            return ([], True) if self.opening is None else self.opening._needs()
        if not destination.channel:
            return [Target(TargetKind.LOCAL)], False
        return [Target(TargetKind.QUEUE, number=destination.channel, name=destination.name)], False

    def _user_loop(self) -> asyncio.AbstractEventLoop | None:
        return self._loop if self.destination is None else self.destination.user_loop

    # -- deadlines ----------------------------------------------------------------------------------------------

    def _remaining(self) -> float | None:
        if self._timeout == 0:  # the queue answers immediately, but the answer takes time to arrive
            return max(0.0, self._since + settings.CHANNEL_ANSWER_TIMEOUT_S() - clock.monotonic())
        return super()._remaining()

    def done(self) -> bool:
        if self._timeout is not None and not self._done and self._remaining() == 0.0:
            self._expire()
        return self._done

    def _wait_for_thread(self, timeout: float | None) -> None:
        if self.destination is not None:
            self.destination.flush_from_thread()  # the flushing loop may be stopped
        super()._wait_for_thread(timeout)

    def _expire(self) -> None:
        self.abandon(self._late(self._timeout))

    def reject(self, error: Exception) -> None:
        """Fail with a queue's refusal. If the timeout is 0, a full or empty queue counts as an expired deadline."""
        if self._timeout == 0 and isinstance(error, (asyncio.QueueFull, asyncio.QueueEmpty)):
            error = self._late(self._timeout)
        self._settle(error=error)

    def refuse(self, end: QueueEnd) -> None:
        # Copy the error, because a raised error holds the frames it passes through, and the queue keeps this one for
        # later requests. tests/channel/test_ends.py::test_the_end_of_a_queue_keeps_nothing_of_those_who_were_told
        self._settle(error=copy_of(end.get))

    def abandon(self, error: Exception) -> None:
        """Fail the request unless it is done, and withdraw it from its queue."""
        if self._settle(error=error) and self.destination is not None:
            self.destination.withdraw(self)

    def _abandon(self) -> None:
        self.abandon(ClosedError(f"{self._describe()} was withdrawn, because nobody waited for it any more"))


class Put(QueueRequest[None]):
    """The put of an item; done once the queue has accepted the item or is certain to accept it.

    After a failure the item is not in the queue, unless the error says that this is unknown.

    Attributes:
        carried: the encoded item, or the item itself in a local queue; None once packed and no longer needed.
        mode: the mode, as in a PUT frame.
        nbytes: size of the item.
        pauses: True to let other tasks run at the next await, even if the put is done.
        observed: True once a caller has received the result.
        refused: True if a queue has refused the item, which is silently lost unless a caller learns about it.
    """

    _kind = "put"
    pauses = False
    observed = False
    refused = False
    _is_recalled = False

    def __init__(
        self,
        channel: str,
        name: Any,
        key: bytes,
        weight: int,
        carried: Any,
        nbytes: int,
        mode: int,
        timeout: float | None,
    ) -> None:
        super().__init__("put() to", channel, name, key, timeout)
        self.weight = weight
        self.mode = mode
        self.carried = carried
        self.nbytes = nbytes

    # -- deadlines ----------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        # The queue may already have accepted a sent put, although its answer is late. So ask the queue to withdraw the
        # put; its answer decides whether the put has failed or is done. tests/_channels/test_remote_queue.py::
        # test_a_put_that_times_out_is_not_in_the_channel_or_says_that_nobody_knows
        if self._is_recalled or self._done:
            return
        self._is_recalled = True
        destination = self.destination
        if destination is not None and self.mode == frames.NOWAIT and destination.channel:
            self.end_unknown()
        elif destination is None or not destination.recall(self):
            self.end_late()

    def end_late(self) -> None:
        self.abandon(self._late(self._timeout))

    def end_unknown(self) -> None:
        """Fail at the deadline, without knowing whether the queue has the item."""
        where = "" if self.destination is None else f", which {self.destination.where} has not said"
        self.abandon(DeadlineExceeded(f"{self._late(self._timeout)}; the item may be in the {self.noun}{where}"))

    # -- waiting ------------------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, Any, None]:
        if not self._done:
            yield from super().__await__()
            return
        if self.pauses:
            self.pauses = False
            yield
        self._result()

    def _result(self) -> None:
        self.observed = True
        super()._result()

    def reject(self, error: Exception) -> None:
        self.refused = True
        super().reject(error)

    def refuse(self, end: QueueEnd) -> None:
        self.refused = end.closed
        self._settle(error=copy_of(end.put))

    def __del__(self) -> None:
        error = self._error
        if error is None or self.observed:
            return
        if isinstance(error, ClosedError):
            # All unawaited puts to a closed channel fail in the same way, so log this once per channel.
            if not self.refused or (self.destination is not None and self.destination.has_told_of_loss):
                return
            if self.destination is not None:
                self.destination.has_told_of_loss = True
        logger.error("%s failed, and nobody asked: %s: %s", self._describe(), type(error).__name__, error)


class Get(QueueRequest[T], Returnable[T]):
    """A get of an item or a batch.

    Arrived items are leased until a waiter receives them. If the last waiter is cancelled first, or no reference to the
    get remains, the items return to their places in the queue.

    Attributes:
        target: the target, as in a GET frame: the weight of a batch, in a list if the batch must be available now; None
            for one item; ``NOW`` for one item available now; ``[count, mode]``, with ``SOME`` if fewer items suffice.
        redelivered: True if an earlier consumer received one of the items but returned it or died.
        reader: the loop (``ChannelItems``) that takes the items one by one; None if the result has them all.
        brought, had: number of arrived items, and number of items taken by the caller.
        is_lease: True if the items stay in the queue until they are confirmed.
        is_lost: True if the lease has ended, so that its items have returned to the queue.
    """

    _kind = "get"
    _is_opened = False
    redelivered = False
    brought = had = 0
    is_lease = is_lost = False

    def __init__(
        self,
        verb: str,
        channel: str,
        name: Any,
        key: bytes,
        target: int | list[Any] | None,
        timeout: float | None,
        reader: weakref.ref[Any] | None = None,
    ) -> None:
        super().__init__(verb, channel, name, key, timeout)
        self.target = target
        self.reader = reader
        if type(target) is list:
            self.is_lease = target[1:2] == [frames.LEASE]
        self._bodies: list[tuple[Any, list[int]]] = []

    @property
    def is_batch(self) -> bool:
        return self.target is not None and self.target != frames.NOW

    # -- arrival ------------------------------------------------------------------------------------------------

    def reject(self, error: Exception) -> None:
        if isinstance(error, asyncio.QueueEmpty) and isinstance(self.target, list) and self.target[1:] == [frames.SOME]:
            self._is_opened = True  # no lease to end, no item to return
            self._settle([])
        else:
            super().reject(error)

    def deliver(self, body: Any, fds: list[int], more: bool, redelivered: bool) -> None:
        if redelivered:
            self.redelivered = True
        self._bodies.append((body, fds))
        self.brought += 1
        if not more and not self._settle():
            self._drop_bodies()  # the get was abandoned, but the queue may not know that
            if self.destination is not None:
                self.destination.withdraw(self)

    def _drop_bodies(self) -> None:
        bodies, self._bodies = self._bodies, []
        for _, fds in bodies:
            close_fds(fds)

    # -- the result ---------------------------------------------------------------------------------------------

    def _result(self) -> T:
        if not self._is_opened and self._error is None:
            if self._pid != process.pid:
                raise self._inherited()
            with self._lock:
                first = not self._is_opened and self._error is None
                if first:
                    self._open()
                    # Set this last: a waiter on another thread that finds it set reads the value. tests/_channels/
                    # test_local_queue.py::test_who_asks_while_another_thread_rebuilds_the_item_has_it
                    self._is_opened = True
            if first and self.reader is None:
                assert self.destination is not None
                if self._error is not None and (self.is_lease or not isinstance(self._error, SerializationError)):
                    # The result raises, so the caller has no item. Only items that nobody can rebuild do not return.
                    self.had = 0
                    self.destination.withdraw(self)
                elif not self.is_lease:
                    self.destination.taken(self)
        return super()._result()

    def _open(self) -> None:
        destination = self.destination
        assert destination is not None
        if self.reader is not None:
            self._bodies.reverse()
            return
        self.had = self.brought
        bodies, self._bodies = self._bodies, []
        if self.target is None:
            try:
                self._value = destination.decode(*bodies[0])
            except BaseException as error:
                self._error = error
            return
        bodies.reverse()
        values = []
        try:
            while bodies:
                values.append(destination.decode(*bodies.pop()))
        except BaseException as error:
            self._error = error
            for _, fds in bodies:
                close_fds(fds)
        else:
            self._value = values if self.is_batch else values[0]

    # -- taking items one by one --------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        return len(self._bodies)

    def take_next(self) -> list[Any]:
        """Return a one-item list with the next item; an empty list if the remaining items were returned."""
        destination = self.destination
        assert destination is not None
        if self._pid != process.pid:
            raise self._inherited()
        with self._lock:
            if not self._bodies:
                return []
            body, fds = self._bodies.pop()
            self.had += 1
            destination.taken(self)
        return [destination.decode(body, fds)]

    def return_rest(self) -> None:
        """Return the items that the loop has not reached yet, because the channel has other consumers."""
        with self._lock:
            if (self._bodies or not self._done) and self.destination is not None:
                # Withdraw first, because a loop that has no items left may immediately request more.
                self.destination.withdraw_later(self)
                self._drop_bodies()
        self._settle()

    # -- cancelled waits ----------------------------------------------------------------------------------------

    def _return(self) -> None:
        with self._lock:
            if self._interested or not self._done or self._is_opened or self._error is not None:
                return
            self._error = ClosedError(f"{self._describe()} was cancelled, and what had arrived went back")
        self._drop_bodies()
        assert self.destination is not None
        self.destination.withdraw(self)

    def __del__(self) -> None:
        if self._bodies and self.destination is not None:
            self._drop_bodies()
            self.destination.withdraw_later(self)


class QueueQuery(QueueRequest[Any]):
    """A query about a queue's size or items, or another request with a single answer.

    Args:
        word: name of the request: ``"size"``, ``"peek"`` or ``"confirm"``.
        show: converts the answer into the result, on the waiting thread.

    Attributes:
        facts: arguments of the request.
    """

    def __init__(self, verb: str, channel: str, name: Any, key: bytes, word: str, show: Callable[[Any], Any]) -> None:
        super().__init__(verb, channel, name, key, None)
        self.word = word
        self.facts: list[Any] = [key]
        self.items: list[tuple[int, Callable[[], Any]]] = []
        self._show: Callable[[Any], Any] | None = show

    def _needs(self) -> slow_waits.Needs:
        return [Target(TargetKind.DAEMON, name=self._describe())], True

    def refuse(self, end: QueueEnd) -> None:
        if isinstance(end.get, EndOfChannel):
            self._settle((0, False) if self.word == "size" else [])
        else:
            super().refuse(end)

    def _result(self) -> Any:
        with self._lock:
            if self._show is not None and self._error is None:
                self._value, self._show = self._show(self._value), None
        return super()._result()


class Confirmation(QueueQuery):
    """A request to permanently remove a lease's first items from the channel."""

    def __init__(self, lease: Get[list[Any]], count: int) -> None:
        _, channel, name = lease._said
        super().__init__("end of a lease of", channel, name, lease.key, "confirm", lambda answer: None)
        self.facts = [lease.number, count]
        self._lease = lease

    def refuse(self, end: QueueEnd) -> None:
        if not end.closed:
            self._settle(error=copy_of(end.get))
        elif self._lease.is_lost:
            self._settle(error=LeaseLost(lease_lost(self._said[1])))
        else:
            self._settle()  # the leased items are lost with the channel, so no other consumer gets them

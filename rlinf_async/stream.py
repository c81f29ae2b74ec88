"""``Stream``: the items of an async generator method that was called on many ranks, merged as they arrive."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic

from rlinf_async import settings
from rlinf_async._client.reply_handler import NOWHERE
from rlinf_async._core import codec, process
from rlinf_async._core.frames import Status
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.payload import Body
from rlinf_async._core.pending_calls import Tally, TallyStep
from rlinf_async._core.root_cause import name_ranks
from rlinf_async._core.type_variables import R
from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._waits import slow_waits
from rlinf_async._waits.unobserved_errors import cause_of
from rlinf_async.errors import ClosedError, DeadlineExceeded
from rlinf_async.handle import Handle
from rlinf_async.outcome import Callee, overdue, root_error, unobserved
from rlinf_async.work import Work

logger = own_logger(__name__)


class StreamCall:
    """A call of an async generator method; the client keeps it until every rank has ended.

    The user holds only a ``Stream`` or an iterator, so its garbage collection shows that no more items are wanted.
    """

    _targets: Sequence[int] = ()

    def __init__(self, callee: Callee, method: str) -> None:
        self._callee = callee
        self._method = method
        self._pid = process.pid
        self._call = 0
        self._items: deque[tuple[int, Body]] = deque()
        self._window = int(settings.STREAM_ITEMS())  # number of items that a rank may send ahead of the consumer
        self._consumed = [0] * len(callee.ranks)
        self._tally = Tally(len(callee.ranks))
        self._tick: Work[None] | None = None
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._closed = False
        self._iterated = False
        self._is_reported = False
        # True if the stream was closed before any item was requested, so that its errors count as unobserved.
        self._was_dropped = False
        self._cancel_wanted = False
        self._cancel_sent = False
        self._departed = False
        self._ended: Work[None] = Work()
        self._ended._loop = callee.client.user_loop

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._tally.missing} ranks open, {len(self._items)} items here"
        return f"<Stream {self._title()} [{state}]>"

    def _title(self) -> str:
        return f"{self._callee.name}.{self._method}()"

    def _begin(self, call: int) -> Sequence[int]:
        self._call, self._targets = call, self._callee.targets
        return self._targets

    def _mark_departed(self) -> None:
        self._departed = True
        if self._cancel_wanted:
            self._cancel_open()

    def _unanswered(self) -> Sequence[int]:
        return self._tally.unanswered()

    def _answer(self, slot: int, status: int, body: Body) -> bool:
        if status == Status.ITEM:
            if not self._closed:
                self._items.append((slot, body))
        else:
            step = self._tally.answer(slot, Status.OK if status == Status.END else status, body)
            if step is TallyStep.CANCEL_OTHERS:
                self._callee.call_failed(self)
                self._cancel_open()
            is_wanted = self._was_dropped or not self._closed
            if step in (TallyStep.CANCEL_OTHERS, TallyStep.FINISH) and is_wanted and not self._is_reported:
                self._arrive()
        self._wake()
        if not self._tally.missing:
            self._ended._settle()
            self._callee.call_finished(self, failed=self._tally.failed)
            return True
        return False

    def _arrive(self) -> None:
        """Report the error as unobserved until the consumer has received it."""
        # As with handles, closing the group does not count as an unobserved error.
        if failed := [failure for failure in self._tally.failures() if failure[1] != Status.UNKNOWN]:
            self._is_reported = True
            error = unobserved(self._callee, self._method, self._title(), failed, awaited=self._iterated)
            self._callee.client.unobserved.arrived(error)

    def _fail(self, error: BaseException) -> None:
        if not self._closed:
            self._error = error
        self._ended._settle()
        self._wake()

    def _overdue(self, slots: Sequence[int], doing: str) -> DeadlineExceeded:
        return overdue(self._callee, self._method, slots, doing)

    def _describe_next(self) -> str:
        have = "has" if len(self._unanswered()) == 1 else "have"
        return f"the next item of {self._title()}, {self._whom()} {have} not ended"

    def _whom(self) -> str:
        return f"{name_ranks(self._callee.ranks[slot] for slot in self._unanswered())} of '{self._callee.name}'"

    def _peer_activity(self) -> slow_waits.PeerActivity | None:
        return self._callee.peer_activity(self._unanswered())

    def _needs(self) -> slow_waits.Needs:
        targets = [self._callee.targets[slot] for slot in self._unanswered() if self._call]
        return [Target(TargetKind.CALL, target, self._call) for target in targets], False

    def _expire(self, tick: Work[None], doing: str) -> None:
        with self._lock:
            slots = self._tally.unanswered()
            if self._tick is not tick or not slots:
                return  # an item, an error or the end arrived during the daemons' query
            self._error = self._overdue(slots, doing)
            self._is_reported = True
        self._cancel_open()
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            tick, self._tick = self._tick, None
        if tick is not None:
            tick._settle()

    def _cancel_open(self) -> None:
        self._cancel_wanted = True  # set before _departed is tested, as in Handle
        if self._cancel_sent or not self._departed:
            return
        slots = self._tally.unanswered()
        if slots:
            self._cancel_sent = True
            client = self._callee.client
            client.cancel(self._call, [self._callee.targets[slot] for slot in slots])
            for slot in slots:
                if self._targets[slot] == NOWHERE:  # the rank is being restarted and cannot answer
                    client.answer_for(self._call, slot, Status.CANCELLED, b"")

    def _next(self) -> tuple[int, Any] | Work[None] | None:
        """Return an item, a ``Work`` to wait for if there is no item yet, or None at the end.

        Raises:
            Exception: a rank's error, once all earlier items have been consumed.
            ForkedProcessError: called in a forked child, whose parent receives the items.
        """
        if self._pid != process.pid:
            raise process.forked(f"stream {self._title()}", self._pid)
        with self._lock:
            if not self._items:
                if self._error is not None:
                    self._callee.client.unobserved.observed(cause_of(self._error))
                    raise self._error
                # Read this before the failures, because answers arrive in another thread, and only an ended stream has
                # all its failures.
                has_ended = not self._tally.missing
                failed = self._tally.failures()
                if failed:
                    self._error = root_error(self._callee, failed)
                    raise self._error
                if self._closed or (has_ended and self._tally.whole):
                    return None
                if has_ended:
                    # Another process cancelled a rank. Ending the loop normally would imply that all items have
                    # arrived. tests/simulation/test_sim_streams.py::test_the_close_of_a_group_is_no_end_of_its_streams
                    self._error = ClosedError(f"{self._title()} was cancelled because its group was closed")
                    raise self._error
                if self._tick is None:
                    self._tick = _NextItem(self)
                    if self._callee.deadline is not None:
                        self._tick._limit(self._callee.deadline.seconds)
                return self._tick
            slot, body = self._items.popleft()
            self._consumed[slot] += 1
            grant = self._consumed[slot] >= self._window / 2
            if grant:
                count, self._consumed[slot] = self._consumed[slot], 0
        if grant and not self._closed:
            self._callee.client.credit(self._call, self._callee.targets[slot], count)
        return self._callee.ranks[slot], codec.decode(body)

    async def _await_item(self) -> tuple[int, Any]:
        while True:
            item = self._next()
            if item is None:
                raise StopAsyncIteration
            if isinstance(item, tuple):
                return item
            await item.async_wait()

    def _block_for_item(self) -> tuple[int, Any]:
        while True:
            item = self._next()
            if item is None:
                raise StopIteration
            if isinstance(item, tuple):
                return item
            item.wait()

    def _begin_iterating(self) -> None:
        if self._iterated:
            raise RuntimeError(f"{self!r} has been iterated over before; call {self._method}() again for a new stream")
        self._iterated = True

    def close(self) -> None:
        self._closed = True
        if self._pid != process.pid:
            return
        with self._lock:  # another thread may be between its look for an item and its taking of one
            self._items.clear()
        self._cancel_open()
        if not self._call:  # the call was never sent
            self._ended._settle()
        self._wake()

    def _close_later(self) -> None:
        """Close the stream from a finalizer, without locks: drop the items, and let the loop send the cancellation."""
        if not self._closed and self._pid == process.pid:
            self._closed = True
            self._was_dropped = not self._iterated
            self._items.clear()
            if self._tally.missing:
                self._callee.client.later(0, self.close)

    async def aclose(self) -> None:
        self.close()
        try:
            await self._ended.async_wait(settings.ABORT_GRACE_S())
        except DeadlineExceeded:
            slots = self._tally.unanswered()
            have = "has" if len(slots) == 1 else "have"
            stuck = name_ranks(self._callee.ranks[slot] for slot in slots)
            logger.warning("%s %s not closed %s", stuck, have, self._title())


class Stream(Generic[R]):
    """The items that an ``async def`` generator method yields on every rank, merged as they arrive.

    Each rank may run ahead of the consumer by at most a window of items. Leaving the loop in any way closes the remote
    generators, so that their ``finally`` blocks run; so does dropping a stream over which no loop has started.

    Example:
        async for rank, item in group.rollout():
            if enough(item):
                break
    """

    def __init__(self, call: StreamCall) -> None:
        """Internal; call an async generator method of a ``WorkerGroup`` to create an instance."""
        self._streaming = call

    def __repr__(self) -> str:
        return repr(self._streaming)

    def __aiter__(self) -> AsyncIterator[tuple[int, R]]:
        self._streaming._begin_iterating()
        return _Items(self._streaming)

    def __iter__(self) -> Iterator[tuple[int, R]]:
        """Return an iterator for code without a running loop; it blocks the thread between items."""
        self._streaming._begin_iterating()
        return _BlockingItems(self._streaming)

    def close(self) -> None:
        """Close the remote generators without waiting for them to end. Idempotent; any thread may call this."""
        self._streaming.close()

    async def aclose(self) -> None:
        """Close the remote generators and wait until their ``finally`` blocks have run.

        A rank that does not end within ``abort_grace``, perhaps because it is frozen, is named in a warning and left
        alone.
        """
        await self._streaming.aclose()

    async def __aenter__(self) -> Stream[R]:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report the same mistakes themselves

        def __await__(self) -> Any:
            raise TypeError(
                f"{self._streaming._title()} is an async generator: iterate over it with `async for rank, item in ...`"
            )

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or not hasattr(Handle, name):
                raise AttributeError(f"'Stream' object has no attribute {name!r}", name=name, obj=self)
            raise AttributeError(
                f"{self._streaming._title()} is an async generator, and its Stream has no {name}(): loop "
                "over it with `async for rank, item in ...`, or `for` in plain code"
            )

    def __del__(self) -> None:
        if not self._streaming._iterated:  # a stream over which a loop runs is closed by its iterator
            self._streaming._close_later()


class _NextItem(Work[None]):
    _kind = "stream"

    def __init__(self, stream: StreamCall) -> None:
        super().__init__()
        self._stream = stream

    def _expire(self) -> None:
        slow_waits.with_peer_activity(self, lambda words: self._stream._expire(self, words))

    def _describe(self) -> str:
        return self._stream._describe_next()

    def _user_loop(self) -> asyncio.AbstractEventLoop | None:
        return self._stream._callee.client.user_loop

    def _whom(self) -> str:
        return self._stream._whom()

    def _peer_activity(self) -> slow_waits.PeerActivity | None:
        return self._stream._peer_activity()

    def _needs(self) -> slow_waits.Needs:
        return self._stream._needs()


class _Items(AsyncIterator[tuple[int, Any]]):
    """The iterator of one loop over a stream; leaving the loop drops the iterator, which closes the stream."""

    def __init__(self, stream: StreamCall) -> None:
        self._stream = stream

    async def __anext__(self) -> tuple[int, Any]:
        # A traceback from the wait keeps this frame alive. So whatever holds the traceback, even a cancelled task,
        # would keep the iterator alive and the remote generators open. But until the wait ends, this frame must hold
        # the iterator, because ``await anext(aiter(stream))`` has no other reference to it.
        # tests/simulation/test_sim_streams.py::test_a_loop_that_was_cancelled_closes_its_stream_though_its_task_is_kept
        try:
            return await self._stream._await_item()
        finally:
            del self

    def __del__(self) -> None:
        self._stream._close_later()


class _BlockingItems(Iterator[tuple[int, Any]]):
    def __init__(self, stream: StreamCall) -> None:
        self._stream = stream

    def __next__(self) -> tuple[int, Any]:
        stream = self._stream
        del self  # as in __anext__, a wait's traceback must not keep the iterator alive
        return stream._block_for_item()

    def __del__(self) -> None:
        self._stream._close_later()

"""Client-side proxy of a queue in a daemon: sends requests within the window, and settles them when answers arrive."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from rlinf_async._channels.batching import MIN_BURST, Batching, Large, emptied
from rlinf_async._channels.queue_errors import QueueEnd, error_of
from rlinf_async._channels.request import Confirmation, Get, Put, QueueDestination, QueueQuery, QueueRequest
from rlinf_async._channels.state.put_window import PutWindow, cost
from rlinf_async._client import peer_activity
from rlinf_async._client.client import NodeClient
from rlinf_async._core import codec, frames
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.payload import open_body, pack_body
from rlinf_async._core.segment import close_fds
from rlinf_async.errors import ClosedError, NodeLost
from rlinf_async.work import Work

logger = own_logger(__name__)

_TURN_S: Final = 1e-3
"""Time for which a coroutine may put items without pausing, before other tasks get a turn."""

_LAST_WORD_S: Final = 1.0
"""Seconds to wait for a queue to report whether a put was withdrawn in time."""


# This class is not split, although it has more than 30 methods, because puts, gets and queries are all started,
# answered and withdrawn in one order.
class RemoteQueue(QueueDestination):
    """A proxy of one queue, shared by all of this process's ``Channel`` objects for the same channel.

    Requests to the daemon are numbered, and answers refer to these numbers. ``start`` may be called from any thread;
    the client's thread handles the daemon's messages.
    """

    def __init__(
        self,
        client: NodeClient,
        node: int,
        channel: int,
        name: str,
        max_bytes: int,
        maxsize: int = 0,
        noun: str = "channel",
    ) -> None:
        self.node = node
        self.where = f"node {node}"
        self.name = name
        self._noun = noun
        self.channel = channel
        self._client = client
        self._daemon = frames.endpoint(node, 0)
        self._numbers = itertools.count(1)
        self._query_numbers = itertools.count(1)
        self._window: PutWindow[Put] = PutWindow(max_bytes, self._numbers)
        self._puts_are_answered = bool(maxsize or max_bytes)
        """True for a bounded or closed channel, in which puts wait for answers."""
        self._is_known_as_producer = False
        self._puts: dict[int, Put] = {}
        """Puts that are unanswered, or that count as done once sent but have not yet reached the kernel."""
        self._gets: dict[int, Get[Any]] = {}
        self._queries: dict[int, QueueQuery] = {}
        self._lost = 0
        """Number of items lost after their puts were done, and not yet reported by an operation."""
        self._paused_at = 0.0
        self._batching = Batching(client.unsent, self._send_together)
        self._last_put: Put | None = None
        self._unobserved = 0
        """Number of consecutive puts started before the previous put's result was read."""
        self._forgotten: deque[QueueRequest[Any]] = deque()
        self._withdrawing = threading.RLock()
        self._leases: weakref.WeakValueDictionary[int, Get[Any]] = weakref.WeakValueDictionary()
        self._reading: weakref.WeakValueDictionary[int, Get[Any]] = weakref.WeakValueDictionary()
        self._over: QueueEnd | None = None

    def __repr__(self) -> str:
        puts = len(self._puts) + len(self._window.waiting)
        return f"<RemoteQueue {self.name} [{self.where} | {puts} puts, {len(self._gets)} gets open]>"

    # -- to the daemon ------------------------------------------------------------------------------------------

    def start(self, request: QueueRequest[Any]) -> None:
        if request.done():
            return
        request.destination = self
        if self._forgotten and self._client.closed is None:
            # Return dropped items first, because this request must find them in their places.
            self._withdraw_forgotten()
        over = self._over
        # The end of a lease is no occasion for this error: its items would stay leased.
        if over is not None or (self._lost and not isinstance(request, Confirmation)):
            request.refuse(over or self._loss_error())
            return
        # Avoid isinstance(), which takes a microsecond for an abstract base class.
        kind = type(request)
        if kind is Put:
            self._start_put(request)  # type: ignore[arg-type]
        elif kind is Get or isinstance(request, Get):
            self._start_get(request)  # type: ignore[arg-type]
        elif isinstance(request, QueueQuery):
            self.flush()
            request.number = next(self._query_numbers)
            self._queries[request.number] = request
            self.tell(request.word, [request.number, *request.facts])
        # The queue may have ended since the check above, and the handler of its end may have missed this request.
        if self._over is not None:
            request.refuse(self._over)

    def _start_put(self, put: Put) -> None:
        self._send_in_turn(put)
        if put._error is not None and not isinstance(put._error, Exception):
            raise put._error

    def _send_in_turn(self, put: Put) -> None:
        if put.mode == frames.WAIT:
            if self._window.enter(put, cost(put.nbytes)) and not self._leave(put):
                self._fill_window()
            return
        # A put that must not wait is sent immediately, after the waiting puts, because only the daemon knows whether
        # there is room.
        puts, has_room = self._window.force(put, cost(put.nbytes))
        left = [self._leave(each, has_room or each is not put) for each in puts]
        if not all(left):
            self._fill_window()

    def _fill_window(self) -> None:
        while (put := self._window.next()) is not None:
            self._leave(put)

    def _leave(self, put: Put, has_room: bool = True) -> bool:
        """Send a put that has entered the window. Return False if that fails or the put has been withdrawn."""
        number = put.number
        # Register the put before packing it, so that a withdrawal by another thread finds it.
        self._puts[number] = put
        try:
            body, fds = pack_body(put.carried)
        except BaseException as error:  # a signal handler may raise: tests/_channels/test_remote_queue.py::
            # test_a_put_that_does_not_leave_is_no_gap_among_the_numbers_and_keeps_nothing_of_the_window
            self._skip(number)
            put._settle(error=error)
            return False
        # A put counts as done once sent if nothing can keep the item out and the daemon reads everything that this
        # process has sent, even if the process is killed. This holds only for a daemon on its own node, and for a body
        # that needs no descriptor there. The first put waits for its answer, because a daemon reads only the sockets of
        # known producers before it answers a size query.
        # tests/channel/test_puts.py::test_what_was_put_outlives_a_producer_that_is_killed_at_once
        # tests/channel/test_puts.py::test_who_has_heard_that_something_was_put_finds_it
        is_sent = self._is_known_as_producer and not self._puts_are_answered and self.node == self._client.node
        # An earlier put of another thread, which is still being packed, would hold this one up at the daemon.
        is_sent = is_sent and put.nbytes <= frames.MAX_UNSEALED_BYTES and len(self._window.leaving) == 1
        with put._lock:
            is_over = put._done
            if not is_over and is_sent and has_room and cost(put.nbytes) <= self._window.size:
                put.mode = frames.SENT
                put.carried = None  # the item may be large, so do not keep it as long as the put
        if is_over:
            close_fds(fds)
            self._skip(number)
            return False
        self._send_or_batch(put, body, fds)
        self._window.leaving.discard(number)
        return True

    def _send_or_batch(self, put: Put, body: bytes | int, fds: Any) -> None:
        """Send a put now, or at the end of the loop's turn in one frame with other puts that will probably follow.

        More puts are likely to follow if the caller has not awaited the previous puts, if other tasks get a turn (see
        below), or if several puts were just answered.
        """
        batching = self._batching
        small, several = not fds and put.nbytes <= frames.MAX_BATCHED_BYTES, False
        if put.mode == frames.SENT:
            last, self._last_put = self._last_put, put
            self._unobserved = 0 if last is None or last.observed else self._unobserved + 1
            several = self._unobserved >= MIN_BURST
            if not several and put.since - self._paused_at > _TURN_S:
                # Give other tasks a turn; their puts, if any, share a frame with this put.
                self._paused_at = put.since
                put.pauses = True
        # A put that counts as done must not overtake batched requests; otherwise its item would precede theirs in the
        # queue.
        joins = several or put.pauses or (put.mode == frames.SENT and (batching.puts or batching.gets))
        waits = batching.gathers() if joins and (small or several) else small and batching.may_wait(put.since)
        if not waits:
            if put.mode == frames.SENT:
                batching.flush_from_thread()
            self._send_put(put, body, fds)
            return
        if small:
            batching.puts.append((put.number, put.key, put.weight, put.mode, body))
        else:
            batching.large.append((put, body, fds))
        if batching.is_complete:
            batching.leave()

    def _skip(self, number: int) -> None:
        self._pop_put(number)
        self.tell("skip", [number])
        self._window.leaving.discard(number)

    def _have_left(self, numbers: list[int]) -> None:
        for number in numbers:
            put = self._puts.pop(number, None)
            if put is not None:
                put._settle()

    def _send_put(self, put: Put, body: bytes | int, fds: Any, *, hold: bool = False) -> None:
        me, place, channel = self._client.endpoint, self._daemon, self.channel
        frame = (frames.PUT, len(fds), me, place, channel, put.number, put.key, put.weight, put.mode, body)
        on_sent = functools.partial(self._have_left, [put.number]) if put.mode == frames.SENT else None
        self._client.send(frame, fds, hold=hold, on_sent=on_sent)

    def _start_get(self, get: Get[Any]) -> None:
        number = get.number = next(self._numbers)
        self._gets[number] = get
        if get.is_lease:
            self._leases[number] = get
        if get.reader is not None and get.target[1] == frames.READ_SHARED:  # type: ignore[index]
            # Compare by identity, because all callback-free weak references to an object are the same object.
            if any(each.reader is not get.reader for each in self._gets_of_loops()):
                get.target = [1, frames.READ_SHARED]
                self._share()
                self._withdraw_forgotten()
            self._reading[number] = get
        batching = self._batching
        # Send a non-waiting get in its own frame, because the daemon reads the producers' sockets before it answers.
        # Batch other gets if several are in progress, because the caller will probably request more in this turn of the
        # loop.
        several = len(self._gets) > MIN_BURST
        waits = batching.gathers() if several else batching.may_wait(get.since)
        if waits and (get.target is None or not frames.is_for_now(get.target)):
            batching.gets.append((number, get.key, get.target))
            if batching.is_complete:
                batching.leave()
            return
        taken = emptied(batching.taken) if batching.taken else None
        me, place, channel = self._client.endpoint, self._daemon, self.channel
        self._client.send((frames.GET, 0, me, place, channel, number, get.key, get.target, taken))

    def _share(self, *, is_told: bool = False) -> None:
        """Make all loops return their unread items, because there is another consumer."""
        # Also withdraw a get in progress, which requests later items; otherwise, these items would arrive before the
        # unread items have returned. tests/_channels/test_remote_queue.py::test_a_loop_that_gives_way_asks_anew
        gets = self._gets_of_loops()
        holding = [get.reader for get in gets if get.done() and get.left]
        for get in gets:
            if get.reader in holding and (get.done() or is_told):
                get.return_rest()

    def _gets_of_loops(self) -> list[Get[Any]]:
        return [get for ref in self._reading.valuerefs() if (get := ref()) is not None]

    def flush(self) -> None:
        self._batching.flush()

    def _send_together(self, puts: list[Any], gets: list[Any], taken: list[Any], large: list[Large]) -> None:
        for put, body, fds in large:
            self._send_put(put, body, fds, hold=put is not large[-1][0])
        if puts or gets:
            sent = [put[0] for put in puts if put[3] == frames.SENT]
            self._batching.burst(len(sent))
            self.tell("requests", [puts, gets, taken], functools.partial(self._have_left, sent) if sent else None)
        elif taken:
            self.tell("taken", taken, now=True)

    def tell(self, what: str, facts: Any, on_sent: Callable[[], None] | None = None, *, now: bool = False) -> None:
        frame = (frames.QUEUE, 0, self._client.endpoint, self._daemon, self.channel, what, facts)
        self._client.send(frame, on_sent=on_sent, now=now)

    # -- as a destination ---------------------------------------------------------------------------------------

    def peer_activity(self, request: QueueRequest[Any]) -> Work[str]:
        return peer_activity.queue(self._client, self.node, self.channel, request.key)

    @property
    def user_loop(self) -> asyncio.AbstractEventLoop | None:
        return self._client.user_loop

    def flush_from_thread(self) -> None:
        self._batching.flush_from_thread()

    def withdraw(self, request: QueueRequest[Any]) -> None:
        if isinstance(request, QueueQuery):
            self._queries.pop(request.number, None)
        elif isinstance(request, Put):
            if not self._window.withdraw(request) and request.mode != frames.SENT:
                self._pop_put(request.number)
                self._cancel(request.number)
                self._fill_window()
        else:
            self._gets.pop(request.number, None)
            self._note_return(request)
            request._drop_bodies()  # type: ignore[attr-defined]
            if had := request.had:  # type: ignore[attr-defined]
                # Report the taken items now, because a report from another thread must not follow the cancel.
                self.tell("taken", [(request.number, had)])
            self._cancel(request.number)

    def _cancel(self, number: int) -> None:
        # Flush the batch first, because it may contain the request to be cancelled.
        self._batching.leave()
        self.tell("cancel", [number])

    def withdraw_later(self, request: QueueRequest[Any]) -> None:
        if self._client.closed is not None:
            return  # for example in a forked child, where the item belongs to the parent
        self._note_return(request)
        self._forgotten.append(request)
        try:
            self._client.loop.call_soon_threadsafe(self._withdraw_forgotten)
        except RuntimeError:
            pass  # the connection was closed with its loop, so the daemon returns all items

    def _note_return(self, request: QueueRequest[Any]) -> None:
        giving_back = self._client.giving_back
        if self._over is None:
            giving_back.open[self, request.number] = None
            # An ended queue no longer confirms returns.
            if self._over is not None:
                self._client.later(0.0, functools.partial(giving_back.confirmed, self, request.number))

    def _withdraw_forgotten(self) -> None:
        # Hold the lock, so that later requests wait until the withdrawals are sent.
        with self._withdrawing:
            while self._forgotten:
                request = self._forgotten[0]
                self.withdraw(request)
                # A finalizer may have appended a request in the meantime, but never removes one, so check the head.
                if self._forgotten and self._forgotten[0] is request:
                    self._forgotten.popleft()

    def recall(self, put: Put) -> bool:
        if put.number not in self._puts:
            return False
        if put.mode == frames.SENT:
            put.end_unknown()
            return True
        self._cancel(put.number)
        self._client.later(_LAST_WORD_S, put.end_unknown)
        return True

    def taken(self, get: Get[Any]) -> None:
        """Record that the caller is about to get the items; if this process is killed, the daemon finds the record."""
        number, had = get.number, get.had
        self._batching.taken.append((number, had))
        self._client.takings.note(self, self._daemon, self.channel, number, had)

    def send_taken(self) -> None:
        taken = emptied(self._batching.taken)
        if taken:
            self.tell("taken", taken, now=True)

    def decode(self, body: Any, fds: list[int]) -> Any:
        return codec.decode(open_body(body, fds) if fds or type(body) is str else body)

    # -- from the daemon ----------------------------------------------------------------------------------------

    def on_give(self, frame: list[Any], fds: list[int]) -> None:
        """Handle a GIVE frame, which carries one item."""
        _, _, _, _, _, number, more, weight, redelivered, body = frame
        if number >= 0:
            self._give(number, more, redelivered, body, fds)
        elif -number in self._queries:
            try:
                make = functools.partial(codec.decode, open_body(body, fds))
            except Exception as error:  # mapping fails for lack of memory, or the body was lost on its way
                self._queries.pop(-number).reject(error)
            else:
                self._queries[-number].items.append((weight, make))
        else:
            close_fds(fds)

    def _give(self, number: int, more: bool, redelivered: bool, body: Any, fds: list[int]) -> None:
        get = self._gets.get(number) if more else self._gets.pop(number, None)
        if get is not None:
            get.deliver(body, fds, more, redelivered)
        elif fds:
            close_fds(fds)  # the get was abandoned, and the daemon knows that

    def on_queue_frame(self, what: str, facts: Any) -> None:
        if what == "replies":
            accepted, given, freed = facts
            self._batching.burst(max(len(accepted), len(given)))
            for number in accepted:
                put = self._pop_put(number)
                if put is not None:
                    self._is_known_as_producer = True
                    put._settle()
            for number, more, redelivered, body in given:
                self._give(number, more, redelivered, body, [])
            if freed:
                self._window.free(freed)
            if self._window.waiting and (accepted or freed):
                self._fill_window()
        elif what == "failed":
            number, kind, text = facts
            request: QueueRequest[Any] | None = (
                self._queries.pop(-number, None) if number < 0 else self._pop_put(number)
            )
            request = self._gets.pop(number, None) if request is None else request
            if request is not None:
                request.reject(error_of(kind, text))
            self._fill_window()
        elif what == "cancelled":
            put = self._pop_put(facts[0])
            if put is not None:  # the put was withdrawn before it was answered
                put.end_late()
            self._fill_window()
            self._client.giving_back.confirmed(self, facts[0])
        elif what == "answer_puts":
            self._puts_are_answered = True
        elif what == "lost":
            self._lost += facts
            if self._over is not None:
                self._log_loss()
        elif what == "shared":
            self._share(is_told=True)
        elif what == "lease_lost":
            lease = self._leases.get(facts[0])
            if lease is not None:
                lease.is_lost = True
        elif what == "confirmed":
            self._answer(facts[0], None)
        elif what == "size":
            self._answer(facts[0], tuple(facts[1:]))
        elif what == "peeked" and facts[0] in self._queries:
            self._answer(facts[0], self._queries[facts[0]].items)

    def _pop_put(self, number: int) -> Put | None:
        put = self._puts.pop(number, None)
        if put is not None:
            self._window.free(cost(put.nbytes))
        return put

    def _answer(self, number: int, value: Any) -> None:
        query = self._queries.pop(number, None)
        if query is not None:
            query._settle(value)

    # -- close ------------------------------------------------------------------------------------------------

    def _loss_error(self) -> QueueEnd:
        lost, self._lost = self._lost, 0
        return QueueEnd.of_lost(ClosedError(_lost_items(lost, self.name)))

    def _log_loss(self) -> None:
        if self._lost:
            lost, self._lost = self._lost, 0
            logger.error("%s", _lost_items(lost, self.name))

    def end(self, why: str) -> None:
        self._finish(QueueEnd.of_closed(self.name, why, self._noun))

    def fail(self, error: Exception) -> None:
        puts = len(self._puts) + len(self._window.waiting)
        if isinstance(error, NodeLost) and (self._gets or puts):
            error = NodeLost.from_facts(
                error.node,
                error.node_rank,
                f"{error.reason}; {self._noun} '{self.name}' lived there, with what was in it: {len(self._gets)} gets "
                f"of this process waited, {puts} puts had no answer yet",
            )
        self._finish(QueueEnd.of_lost(error))

    def _finish(self, end: QueueEnd) -> None:
        # Set the end first, so that requests that start from now on are refused.
        self._over = end
        self._client.giving_back.forget(self)
        self._batching.drop()
        self._log_loss()
        waiting = self._window.end()
        puts, self._puts = self._puts, {}
        gets = dict(self._gets)
        self._gets.clear()
        queries, self._queries = self._queries, {}
        for requests in (puts.values(), waiting, gets.values(), queries.values()):
            for request in list(requests):
                request.refuse(end)


def _lost_items(count: int, channel: str) -> str:
    return (
        f"{count} item{'s' * (count != 1)} that this process had put into channel '{channel}' came there after it had "
        "been closed, and are lost: close a channel when its producers are done"
    )

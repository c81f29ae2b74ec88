"""Client-side proxy of a queue in a daemon: sends requests, batched or on credit, and settles them by its answers."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable
from typing import Any, Final, TypeVar

from rlinf_async._channels.batching import MIN_BURST, Batching, Large, emptied
from rlinf_async._channels.prefetched_gets import PrefetchedGets
from rlinf_async._channels.queue_errors import QueueEnd, error_of
from rlinf_async._channels.request import Get, Put, Question, QueueRequest
from rlinf_async._channels.state.credit import CreditBalance, cost
from rlinf_async._client import far_side
from rlinf_async._client.client import NodeClient
from rlinf_async._core import codec, frames
from rlinf_async._core.payload import open_body, pack_body
from rlinf_async._core.segment import close_fds
from rlinf_async.errors import NodeLost
from rlinf_async.work import Work

T = TypeVar("T")

_SHARE: Final = 32
_WINDOW_BYTES: Final = 16 << 20
"""The part of ``max_bytes``, or bytes, that one process sends before it is told whether there is room."""

_SMALL_BYTES: Final = 2048
"""Bytes; a larger body has a frame of its own."""

_TURN_S: Final = 1e-3
"""Seconds for which a coroutine may put and put, none of which has to wait, until others have their turn."""


class RemoteQueue:
    """Proxy of one queue, shared by all ``Channel`` objects of this process that are the same channel.

    What is asked of the daemon is numbered, and answered by that number.  ``start`` may be used from any thread; what
    the daemon says is handled on the client's.
    """

    has_told_of_loss = False

    def __init__(
        self,
        client: NodeClient,
        node: int,
        channel: int,
        name: str,
        max_bytes: int,
        maxsize: int = 0,
    ) -> None:
        self.node = node
        self.name = name
        self.channel = channel
        self._client = client
        self._place = frames.endpoint(node, 0)
        self._numbers = itertools.count(1)
        self._questions = itertools.count(1)
        self._puts: dict[int, Put] = {}
        self._gets: dict[int, Get[Any]] = {}
        self._asked: dict[int, Question] = {}
        self._window = max_bytes // _SHARE if max_bytes else _WINDOW_BYTES
        self._under_way = 0
        """Bytes of bodies that have left before it was known whether there is room for them."""
        self._parked = False
        """There was none: from now on bodies wait here until they are pulled."""
        self._credit = CreditBalance()
        self._leaving: dict[int, Put] = {}
        """Puts that were paid for, and that the kernel does not have yet."""
        self._paused_at = 0.0
        self._batching = Batching(client, self._send_together)
        self._prefetched = PrefetchedGets(self, client, self._numbers, self._gets, self._batching.gets)
        self._prefetched.is_on = not maxsize and not max_bytes
        self._last_put: Put | None = None
        self._unobserved = 0
        """Puts in a row that were started before the result of the one before was observed: several are under way."""
        self._over: QueueEnd | None = None
        """There is no such queue any more, or no way to it."""

    def __repr__(self) -> str:
        puts = len(self._puts) + len(self._leaving)
        return f"<RemoteQueue {self.name} [{self.where} | {puts} puts, {len(self._gets)} gets open]>"

    @property
    def where(self) -> str:
        return f"node {self.node}"

    # -- to the daemon ------------------------------------------------------------------------------------------

    def start(self, request: QueueRequest[Any]) -> None:
        """Sends it; a request that is done already is forgotten."""
        if request.done():
            return
        request.destination = self
        if self._over is not None:
            request.refuse(self._over)
            return
        # Not isinstance(): of an abstract base class that takes a microsecond.
        kind = type(request)
        if kind is Put:
            self._start_put(request)  # type: ignore[arg-type]
        elif kind is Get:
            self._start_get(request)  # type: ignore[arg-type]
        elif isinstance(request, Question):
            self.flush()
            request.number = next(self._questions)
            self._asked[request.number] = request
            self._prefetched.ask(request)
        if self._over is not None:  # meanwhile: whoever ended the queue may not have seen this request
            request.refuse(self._over)

    def _start_put(self, put: Put) -> None:
        body: bytes | int
        fds: Any = ()
        price = cost(put.nbytes)
        if self._credit.pay(price):
            self._start_on_credit(put, price)
            return
        if not self._puts:
            self._parked, self._under_way = False, 0
        if self._puts and (self._parked or self._under_way + put.nbytes > self._window):
            body = put.nbytes
        else:
            try:
                body, fds = pack_body(put.carried)
            except Exception as error:
                put._settle(error=error)
                return
            put.ahead = put.nbytes
            self._under_way += put.nbytes
        number = put.number = next(self._numbers)
        self._puts[number] = put
        if not fds and put.nbytes <= _SMALL_BYTES and self._batching.may_wait(put.since):
            self._batching.puts.append((number, put.key, put.weight, put.mode, body))
        else:
            self._send_put(put, put.mode, body, fds)

    def _start_on_credit(self, put: Put, price: int) -> None:
        """There is room for it: it is done as soon as the kernel has it."""
        try:
            body, fds = pack_body(put.carried)
        except Exception as error:
            self.tell("returned", [price, False])
            put._settle(error=error)
            return
        put.carried = None  # which may be large, and whoever keeps the put need not keep it
        number = put.number = next(self._numbers)
        self._leaving[number] = put
        small = not fds and put.nbytes <= _SMALL_BYTES
        last, self._last_put = self._last_put, put
        self._unobserved = 0 if last is None or last.observed else self._unobserved + 1
        batching = self._batching
        if self._unobserved >= MIN_BURST and batching.gathers():
            if small:
                batching.puts.append((number, put.key, put.weight, frames.CREDITED, body))
            else:
                batching.large.append((put, body, fds))
            if batching.is_complete:
                batching.leave()
            return
        if put.since - self._paused_at > _TURN_S:
            # Others have their turn, and if they put too, what they put leaves in one frame from then on.
            self._paused_at = put.since
            put.pauses = True
            waits = small and batching.gathers()
        else:
            waits = small and batching.may_wait(put.since)
        if waits:
            batching.puts.append((number, put.key, put.weight, frames.CREDITED, body))
        else:
            self._send_put(put, frames.CREDITED, body, fds, functools.partial(self._has_left, number))

    def _has_left(self, number: int) -> None:
        put = self._leaving.pop(number, None)
        if put is not None:
            put._settle()

    def _have_left(self, numbers: list[int]) -> None:
        for number in numbers:
            self._has_left(number)

    def _send_put(
        self,
        put: Put,
        mode: int,
        body: bytes | int,
        fds: Any,
        on_sent: Callable[[], None] | None = None,
        *,
        hold: bool = False,
    ) -> None:
        me, place, channel = self._client.endpoint, self._place, self.channel
        frame = (frames.PUT, len(fds), me, place, channel, put.number, put.key, put.weight, mode, body)
        self._client.send(frame, fds, hold=hold, on_sent=on_sent)

    def _start_get(self, get: Get[Any]) -> None:
        if self._prefetched.take(get):
            return
        number = get.number
        self._gets[number] = get
        self._prefetched.asked(get)
        batching = self._batching
        is_for_now = get.target == frames.NOW or type(get.target) is list  # producers are heard before the answer
        if not is_for_now and batching.may_wait(get.since):
            batching.gets.append((number, get.key, get.target))
            if batching.is_complete:
                batching.leave()
            return
        taken = emptied(batching.taken) if batching.taken else None
        me, place, channel = self._client.endpoint, self._place, self.channel
        self._client.send((frames.GET, 0, me, place, channel, number, get.key, get.target, taken))

    def flush(self) -> None:
        """Sends requests that have waited to be batched."""
        self._batching.flush()

    def send_held(self) -> None:
        self._batching.leave()

    def _send_together(self, puts: list[Any], gets: list[Any], taken: list[int], large: list[Large]) -> None:
        for put, body, fds in large:
            on_sent = functools.partial(self._has_left, put.number)
            self._send_put(put, frames.CREDITED, body, fds, on_sent, hold=put is not large[-1][0])
        if puts or gets:
            credited = [put[0] for put in puts if put[3] == frames.CREDITED]
            self._batching.burst(len(credited))
            self.tell(
                "requests", [puts, gets, taken], functools.partial(self._have_left, credited) if credited else None
            )
        elif taken:
            self.tell("taken", taken)

    def tell(self, what: str, facts: Any, on_sent: Callable[[], None] | None = None) -> None:
        frame = (frames.QUEUE, 0, self._client.endpoint, self._place, self.channel, what, facts)
        self._client.send(frame, on_sent=on_sent)

    # -- as a destination ---------------------------------------------------------------------------------------

    def far_side(self, request: QueueRequest[Any]) -> Work[str]:
        return far_side.queue(self._client, self.node, self.channel, request.key)

    @property
    def user_loop(self) -> asyncio.AbstractEventLoop | None:
        return self._client.user_loop

    def flush_from_thread(self) -> None:
        self._batching.flush_from_thread()

    def withdraw(self, request: QueueRequest[Any]) -> None:
        if isinstance(request, Question):
            self._asked.pop(request.number, None)
            return
        if isinstance(request, Put):
            self._pop_put(request.number)
            self._leaving.pop(request.number, None)
            self.tell("cancel", [request.number])
            return
        self._gets.pop(request.number, None)
        self._prefetched.cancel(request.key, request.number)

    def withdraw_later(self, request: QueueRequest[Any]) -> None:
        self._prefetched.cancel_later(request.key, request.number)

    def taken(self, get: Get[Any]) -> None:
        """Tells the daemon: with the next get, if that follows in this turn of the loop."""
        self._batching.taken.append(get.number)
        self._prefetched.had(get)
        if not self._batching.gathers():
            self.flush()

    def open(self, body: Any, fds: list[int]) -> Any:
        return codec.decode(open_body(body, fds) if fds else body)

    # -- from the daemon ----------------------------------------------------------------------------------------

    def on_give(self, frame: list[Any], fds: list[int]) -> None:
        """One item."""
        _, _, _, _, _, number, more, weight, redelivered, body = frame
        if number >= 0:
            self._give(number, more, redelivered, body, fds)
        elif -number in self._asked:
            make = functools.partial(codec.decode, open_body(body, fds))
            self._asked[-number].items.append((weight, make))
        else:
            close_fds(fds)

    def _give(self, number: int, more: bool, redelivered: bool, body: Any, fds: list[int]) -> None:
        get = self._gets.get(number) if more else self._gets.pop(number, None)
        if get is not None:
            if fds:
                self._prefetched.large(get.key, body)
            get.deliver(body, fds, more, redelivered)
        elif not self._prefetched.arrived(number, body, fds, redelivered) and fds:
            close_fds(fds)  # it was given up, and the daemon has been told

    def on_queue_frame(self, what: str, facts: Any) -> None:
        """Anything else."""
        if what == "replies":
            accepted, given, credit = facts
            if credit:
                self._credit.add(credit)
            self._batching.burst(max(len(accepted), len(given)))
            for number in accepted:
                put = self._pop_put(number)
                if put is not None:
                    put._settle()
            for number, more, redelivered, body in given:
                self._give(number, more, redelivered, body, [])
        elif what == "pull":
            self._supply(facts[0])
        elif what == "parked":
            self._parked = True
        elif what == "recall":
            self.send_held()
            self.tell("returned", [self._credit.empty(), True])
        elif what == "call_back":
            self._prefetched.called_back(facts)
        elif what == "failed":
            number, kind, text = facts
            refused: QueueRequest[Any] | None = self._asked.pop(-number, None) if number < 0 else self._pop_put(number)
            request = self._prefetched.ended(number) if refused is None else refused
            if request is not None:
                request.turn_down(error_of(kind, text))
        elif what == "size":
            self._answer(facts[0], tuple(facts[1:]))
        elif what == "peeked" and facts[0] in self._asked:
            self._answer(facts[0], self._asked[facts[0]].items)

    def _pop_put(self, number: int) -> Put | None:
        put = self._puts.pop(number, None)
        if put is not None:
            self._under_way -= put.ahead
        return put

    def _supply(self, number: int) -> None:
        """There is room for an item whose body has waited here."""
        put = self._puts.get(number)
        if put is None:
            return
        try:
            body, fds = pack_body(put.carried)
        except Exception as error:
            put.give_up(error)
        else:
            self._send_put(put, frames.SUPPLY, body, fds)

    def _answer(self, number: int, value: Any) -> None:
        question = self._asked.pop(number, None)
        if question is not None:
            question._settle(value)

    # -- the end ------------------------------------------------------------------------------------------------

    def end(self, why: str) -> None:
        """The daemon has no such queue any more."""
        self._finish(QueueEnd.of_closed(self.name, why))

    def fail(self, error: Exception) -> None:
        """Everything that waits, and whatever is asked from now on, ends with this error."""
        puts = len(self._puts) + len(self._leaving)
        if isinstance(error, NodeLost) and (self._gets or puts):
            error = NodeLost.from_facts(
                error.node,
                error.node_rank,
                f"{error.reason}; channel '{self.name}' lived there, with what was in it: {len(self._gets)} gets of "
                f"this process waited, {puts} puts had no answer yet",
            )
        self._finish(QueueEnd.of_lost(error))

    def _finish(self, end: QueueEnd) -> None:
        self._over = end  # first: what is started meanwhile is refused by its starter
        self._batching.drop()
        puts, self._puts = {**self._puts, **self._leaving}, {}
        self._leaving = {}
        self._prefetched.end()
        gets = dict(self._gets)
        self._gets.clear()
        asked, self._asked = self._asked, {}
        for requests in (puts, gets, asked):
            for request in list(requests.values()):
                request.refuse(end)

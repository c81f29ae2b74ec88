"""Consumer-side prefetching of gets: sends them before callers ask, hands their items out, gives the rest back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from rlinf_async._channels.request import Get, Question
from rlinf_async._channels.state.prefetch_window import IDLE_S, Delivery, PrefetchWindows
from rlinf_async._client.client import NodeClient
from rlinf_async._core import clock, frames
from rlinf_async._core.segment import close_fds

_TURN_S: Final = 1e-3
"""For which a coroutine may get and get, and never has to wait, until others have their turn."""


class Sender(Protocol):
    """A queue as this process reaches it."""

    def send_held(self) -> None:
        """Sends the gets that wait to be sent, and acknowledgements."""

    def tell(self, what: str, facts: Any) -> None:
        """Says something else."""


class PrefetchedGets:
    """The prefetched gets of one queue.  From any thread.

    What is given back is said under the lock, and whether there is anything is asked under it: so no get that is asked
    for after it arrives before it, and has what is behind it.

    Attributes:
        is_on: whether any may be sent.
    """

    is_on = True

    def __init__(
        self,
        sender: Sender,
        client: NodeClient,
        numbers: Iterator[int],
        gets: dict[int, Get[Any]],
        held: deque[Any],
    ) -> None:
        """``gets`` have callers, by number; gets in ``held`` are sent by ``send_held``."""
        self._sender = sender
        self._client = client
        self._numbers = numbers
        self._gets = gets
        self._held = held
        self._state = PrefetchWindows()
        self._forgotten: deque[tuple[bytes, int]] = deque()
        self._watching = False
        self._paused_at = 0.0

    def __repr__(self) -> str:
        return f"<PrefetchedGets [{self._state!r}]>"

    # -- callers ------------------------------------------------------------------------------------------------

    def take(self, get: Get[Any]) -> bool:
        """Answers a caller's get by the oldest prefetched one; False if there is none.  For a batch there is none.

        Either way it has its number then, lower than those of all gets that are prefetched from now on.
        """
        key = get.key
        if self._client.closed is not None:  # in a forked child, for one, where the lock may never be released
            get.number = next(self._numbers)
            return False
        with self._state.lock:
            if key not in self._state.open:
                get.number = next(self._numbers)
                return False
            if get.target is not None or self._state.is_stale(key, get.since):
                self._give_back(key)
                get.number = next(self._numbers)
                return False
            taken = self._state.take(key, get.since)
            assert taken is not None
            number, delivery = taken
            get.number = number
            if delivery is None:
                self._gets[number] = get
            wanted = self._state.wanted(key)
            if wanted:
                self._send(key, wanted)
        if delivery is None:
            self._paused_at = get.since
        else:
            if get.since - self._paused_at > _TURN_S:
                self._paused_at = get.since
                get.pauses = True
            body, fds, redelivered = delivery
            get.deliver(body, fds, False, redelivered)
        if wanted:
            self._sender.send_held()
        return True

    def asked(self, get: Get[Any]) -> None:
        """A caller's get is sent, because none was prefetched."""
        self._state.asked(get.key, get.number, get.since)

    def had(self, get: Get[Any]) -> None:
        """A caller has its item: if that goes on, gets are prefetched."""
        if not self.is_on or get.target is not None:
            return
        if self._state.had(get.key, get.number):
            with self._state.lock:
                if self._state.may_begin(get.key):  # another thread may have begun, or asked what is queued
                    self._send(get.key, self._state.limit(get.key))

    def ask(self, question: Question) -> None:
        """Says it when all of its key is back, and before any more is sent ahead."""
        facts = [question.number, question.key]
        if self._client.closed is not None:
            self._sender.tell(question.word, facts)
            return
        with self._state.lock:
            self._state.interrupt(question.key)
            if question.key in self._state.open:
                self._give_back(question.key)
            self._sender.tell(question.word, facts)

    def _send(self, key: bytes, count: int) -> None:
        numbers = [next(self._numbers) for _ in range(count)]
        self._state.sent(key, numbers)
        self._held.extend((number, key, frames.AHEAD) for number in numbers)
        if not self._watching:
            self._watching = True
            self._client.later(IDLE_S, self._look)

    # -- the queue ----------------------------------------------------------------------------------------------

    def arrived(self, number: int, body: Any, fds: list[int], redelivered: bool) -> bool:
        """An item; False if its get is unknown, or was given up."""
        with self._state.lock:
            if self._state.arrived(number, (body, fds, redelivered)):
                return True
            get = self._gets.pop(number, None)  # a caller has just taken it
        if get is not None:
            get.deliver(body, fds, False, redelivered)
        return get is not None

    def large(self, key: bytes, nbytes: int) -> None:
        """An item that came for a caller has memory of its own."""
        with self._state.lock:
            self._state.large(key, nbytes)

    def ended(self, number: int) -> Get[Any] | None:
        """Nothing will come of it; the caller's that it is, if it is one's."""
        with self._state.lock:
            return None if self._state.ended(number) else self._gets.pop(number, None)

    def called_back(self, key: bytes) -> None:
        """Another process asks for something under this key."""
        with self._state.lock:
            self._state.back_off(key, clock.monotonic())
            self._give_back(key)

    # -- back ---------------------------------------------------------------------------------------------------

    def cancel(self, key: bytes, number: int) -> None:
        """A caller gives its get up; prefetched gets come after that one, and go back with it."""
        if self._client.closed is None:
            with self._state.lock:
                if key in self._state.open:
                    self._give_back(key, [number])
                    return
        self._sender.tell("cancel", [number])

    def cancel_later(self, key: bytes, number: int) -> None:
        """The same, from a finalizer: without locks."""
        if self._client.closed is not None:
            return  # in a forked child, for one: the item is the parent's
        self._forgotten.append((key, number))
        try:
            self._client.loop.call_soon_threadsafe(self._cancel_forgotten)
        except RuntimeError:
            pass  # that loop is closed, and with it this process's connection: the daemon takes back everything

    def _cancel_forgotten(self) -> None:
        while self._forgotten:
            self.cancel(*self._forgotten.popleft())

    def _give_back(self, key: bytes, also: Sequence[int] = ()) -> None:
        numbers, arrived = self._state.give_back(key)
        _close(arrived)
        self._sender.send_held()
        self._sender.tell("gave_back", [key, [*also, *numbers]])

    def _look(self) -> None:
        if self._client.closed is not None:
            return
        with self._state.lock:
            for key in self._state.stale(clock.monotonic()):
                self._give_back(key)
            self._watching = bool(self._state.open)
            if self._watching:
                self._client.later(IDLE_S, self._look)

    def end(self) -> None:
        """There is no such queue any more."""
        with self._state.lock:
            for key in list(self._state.open):
                _close(self._state.give_back(key)[1])


def _close(arrived: list[Delivery]) -> None:
    for _, fds, _ in arrived:
        close_fds(fds)

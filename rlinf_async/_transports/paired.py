"""``PairedLink``, the base of the Gloo, NCCL and staged links: the protocol for pair set-up, transfers and errors.

The two sides first agree on every transfer. A pair of process groups lives until its first error; then both sides drop
it and begin the next *generation*. Every message names its generation, so that a message for an old pair is never
mistaken for one for the new pair::

    receiver                                               sender
    receive(7): "open" ──────────────────────────────────► makes its half of the pair, in a thread
    "store" … ◄── keys that torch's rendezvous sets ────── "store" …
    memory is ready: "ready", 7 ─────────────────────────► enters the group: send(7)
    enters the group ◄──────────────────────────────────── "coming", 7
    everything arrived: "received", 7 ───────────────────► send(7) is done
    either: discard, an error: "broken" ─────────────────► abandoned transfers fail on both sides
                                                           the others continue with the next pair
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Generic

from rlinf_async._core.error_copy import copy_of
from rlinf_async._transports.lazy_thread import DeferredActions
from rlinf_async._transports.link import Post
from rlinf_async._transports.open_transfers import OpenTransfers, TransferRequest
from rlinf_async._transports.pair import Pair
from rlinf_async._transports.tcp_connections import Address
from rlinf_async._transports.transfer import Buffer, ReceiveTransfer, SendTransfer, Transfer
from rlinf_async.errors import TransferFailed
from rlinf_async.work import Work

_MAX_ATTEMPTS: Final = 4
"""Number of consecutive connection failures after which the waiting transfers fail."""

_MAX_ERROR_CHARS: Final = 500


class PairedLink(ABC, Generic[Buffer]):
    """A link that uses pairs; subclasses define the pairs and the buffers.

    A transfer fails with ``TransferFailed`` if the peer abandoned it, or if no connection could be established or kept.
    An abandoned transfer ends the pair, but the other transfers continue with the next pair.

    Args:
        post: sends facts to the peer's link: tuples of strings, integers, bytes and lists of integers. It must not
            raise and may be called from any thread.
    """

    def __init__(self, post: Post, first: bool, address: str) -> None:
        self._post = post
        self._first = first
        self._address = address
        self._deferred = DeferredActions()
        self._generation = 0
        self._pair: Pair | None = None
        self._attempts = 0
        self._open_transfers: OpenTransfers[Buffer] = OpenTransfers()

    def __repr__(self) -> str:
        state = "open" if self._pair else "closed"
        return f"<{type(self).__name__} generation {self._generation}, {state} {self._open_transfers!r}>"

    @abstractmethod
    def _make_pair(self) -> Pair: ...

    @abstractmethod
    def _make_sending(self, number: int, buffers: Sequence[Buffer]) -> SendTransfer: ...

    @abstractmethod
    def _make_receiving(self, number: int, sizes: Sequence[int]) -> ReceiveTransfer[Buffer]: ...

    def send(self, transfer: int, buffers: Sequence[Buffer]) -> Work[None]:
        try:
            sending = self._make_sending(transfer, buffers)
        except Exception as failure:
            return self._refuse(transfer, failure)
        if not sending.nbytes:
            sending.finish(None)
            return sending
        with self._deferred.locked():
            match self._open_transfers.offer(sending):
                case TransferRequest() as request:
                    self._begin(sending, request)
                case TransferFailed() as error:
                    self._deferred.add(functools.partial(sending.fail, error))
        return sending

    def _refuse(self, number: int, error: Exception) -> Work[None]:
        """Fail a transfer that cannot be sent, and notify the waiting peer."""
        refused: Transfer[None] = Transfer(number, [])
        with self._deferred.locked():
            self._open_transfers.refuse(number)
            self._deferred.add(functools.partial(refused.fail, error))
            self._post_facts("broken", self._generation - 1, [], [number], _error_text(error))
        return refused

    def receive(self, transfer: int, sizes: Sequence[int]) -> Work[list[Buffer]]:
        return self._receive(self._make_receiving(transfer, sizes))

    def _receive(self, receiving: ReceiveTransfer[Buffer]) -> Work[list[Buffer]]:
        if not receiving.nbytes:
            receiving.allocate()
            receiving.complete()
            return receiving
        with self._deferred.locked():
            error = self._open_transfers.request(receiving)
            if error is not None:
                self._deferred.add(functools.partial(receiving.fail, error))
            elif self._pair is None:
                self._open()
            else:
                self._pair.receive(receiving)
        return receiving

    def discard(self, error: Exception, transfer: int | None = None) -> None:
        with self._deferred.locked():
            if transfer is not None:
                if transfer in self._open_transfers.sendings:
                    self._break(error, sendings=[transfer])
            elif self._pair is not None or self._open_transfers.receivings or self._open_transfers.sendings:
                self._break(error, *self._all())

    def on_control(self, facts: Any) -> None:
        kind, generation, *rest = facts
        with self._deferred.locked():
            if kind == "broken":
                self._on_broken(generation, *rest)
                return
            if kind == "received":  # the report is valid even after the pair has ended
                self._on_received(*rest)
                return
            if generation < self._generation:
                # The peer sent this message before our "broken" arrived, or "broken" was lost with a connection.
                self._post_facts("broken", self._generation - 1, [], [], "a new pair has begun")
                return
            if generation > self._generation:
                self._generation = generation - 1
                self._break(TransferFailed("the peer has begun a new pair"))
            if self._pair is None and generation == self._generation:
                self._open()
            if generation == self._generation:  # otherwise, there is no pair, for want of a thread
                self._on_facts(kind, *rest)

    # -- decisions, under the lock ----------------------------------------------------------------------------------

    def _post_facts(self, kind: str, generation: int, *rest: Any) -> None:
        self._deferred.add(lambda: self._post((kind, generation, *rest)))

    def _all(self) -> tuple[list[int], list[int]]:
        return list(self._open_transfers.receivings), list(self._open_transfers.sendings)

    def _open(self) -> None:
        assert self._pair is None
        try:
            self._pair = self._make_pair()
        except RuntimeError as error:  # no thread can start for now
            self._break(error, *self._all())
            return
        self._post_facts("open", self._generation)
        for receiving in self._open_transfers.receivings.values():
            self._pair.receive(receiving)

    def _begin(self, sending: SendTransfer, request: TransferRequest) -> None:
        pair = self._pair
        assert pair is not None
        if request.nbytes != sending.nbytes:
            own_bytes, peer_bytes = sending.nbytes, request.nbytes
            text = f"transfer {sending.number} has {own_bytes} bytes here and {peer_bytes} where it is received"
            self._break(TransferFailed(text), sendings=[sending.number])
            return
        sending.tries = 1 if request.start > sending.start else sending.tries + 1
        sending.start = request.start
        self._deferred.add(lambda: pair.send(sending, request.tag, request.start))

    def _break(
        self,
        error: Exception,
        receivings: Collection[int] = (),
        sendings: Collection[int] = (),
        withdrawn: Collection[int] = (),
    ) -> None:
        """End this generation: the given transfers fail, and the others continue in the next generation."""
        pair, self._pair = self._pair, None
        # Close the pair before any sender may reuse its memory.
        if pair is not None:
            self._deferred.add(functools.partial(pair.close, copy_of(error)))
        self._open_transfers.forget_requests()
        received, sent = self._abandon(error, receivings, sendings)
        exhausted = self._open_transfers.exhausted()
        if any(exhausted):
            error = TransferFailed(f"one connection after the other broke, the last with {_error_text(error)}")
            more = self._abandon(error, *exhausted)
            received, sent = received + more[0], sent + more[1]
        self._post_facts("broken", self._generation, [*received, *withdrawn], sent, _error_text(error))
        self._generation += 1
        if self._open_transfers.receivings:
            self._open()

    def _abandon(
        self, error: Exception, receivings: Collection[int], sendings: Collection[int]
    ) -> tuple[list[int], list[int]]:
        """Fail the given transfers that are still open. Return their numbers."""
        received, sent = self._open_transfers.abandon(receivings, sendings)
        for transfer in (*received, *sent):
            # A raised error keeps its transfer's buffers alive. A pair that is still connecting keeps its error until
            # Gloo gives up, up to 15 s later, and would keep the buffers alive as long. So give each transfer a copy of
            # the error. tests/_transports/test_paired.py::
            # test_the_error_of_a_transfer_is_its_own_and_keeps_no_buffers_of_another
            self._deferred.add(functools.partial(transfer.fail, copy_of(error)))
        return [receiving.number for receiving in received], [sending.number for sending in sent]

    # -- messages of the peer, under the lock -----------------------------------------------------------------------

    def _on_facts(self, kind: str, *rest: Any) -> None:
        pair = self._pair
        assert pair is not None
        match kind, *rest:
            case ("open",):
                pass  # the pair is open already
            case "store", key, value:
                self._deferred.add(lambda: pair.on_set(key, value))
            case "connected", host, port:
                self._deferred.add(lambda: pair.admit((host, port)))
            case "ready", number, tag, nbytes, start:
                self._on_ready(number, TransferRequest(tag, nbytes, start))
            case "coming", number:
                self._deferred.add(lambda: pair.expect(number))
            case _:
                raise ValueError(f"a link does not know what to do with {kind!r} {rest!r}")

    def _on_ready(self, number: int, request: TransferRequest) -> None:
        sending = self._open_transfers.find(number, request)
        if sending is not None:
            self._begin(sending, request)
        elif self._open_transfers.is_abandoned(number):
            # The peer's half of the pair waits for a transfer that will never come, and so blocks all later transfers.
            error = TransferFailed(f"transfer {number} had been given up")
            self._post_facts("broken", self._generation, [], [number], _error_text(error))
            self._break(error)

    def _on_received(self, number: int) -> None:
        sending = self._open_transfers.sent(number)
        if sending is not None:
            if self._pair is not None:
                self._deferred.add(functools.partial(self._pair.forget, number))
            self._deferred.add(functools.partial(sending.finish, None))

    def _on_broken(self, generation: int, received: Sequence[int], sent: Sequence[int], text: str) -> None:
        error = TransferFailed(f"the peer gave it up: {text}")
        withdrawn = self._open_transfers.note_abandoned(received, sent, error)
        if generation >= self._generation:
            self._generation = generation
            self._break(error, sent, received, withdrawn)
        else:
            failed = [*self._abandon(error, sent, received)[0], *withdrawn]
            if failed:
                self._post_facts("broken", self._generation - 1, failed, [], text)
        self._open_transfers.peer_knows(received)

    # -- the pair's reports, on its threads ------------------------------------------------------------------------

    def set_key(self, pair: Pair, key: str, value: bytes) -> None:
        with self._about(pair) as is_current:
            if is_current:
                self._post_facts("store", self._generation, key, value)

    def connected(self, pair: Pair, address: Address) -> None:
        with self._about(pair) as is_current:
            if is_current:
                self._post_facts("connected", self._generation, *address)

    def begins(self, pair: Pair, receiving: ReceiveTransfer[Any]) -> int | None:
        with self._about(pair) as is_current:
            if not is_current or receiving.number not in self._open_transfers.receivings:
                return None
            # Count first, because an allocation may fail at every attempt.
            receiving.tries += 1
            if not receiving.chunks:
                receiving.allocate()
            return receiving.arrived

    def ready(self, pair: Pair, receiving: ReceiveTransfer[Any], tag: int, start: int) -> None:
        with self._about(pair) as is_current:
            if is_current:
                self._post_facts("ready", self._generation, receiving.number, tag, receiving.nbytes, start)

    def sends(self, pair: Pair, sending: SendTransfer) -> None:
        with self._about(pair) as is_current:
            if is_current:
                self._post_facts("coming", self._generation, sending.number)

    def arrived(self, pair: Pair, receiving: ReceiveTransfer[Any]) -> None:
        with self._about(pair) as is_current:
            if not is_current:
                return
            receiving.tries = 0
            receiving.arrived += 1
            if receiving.arrived == len(receiving.chunks):
                del self._open_transfers.receivings[receiving.number]
                self._post_facts("received", self._generation, receiving.number)
                self._deferred.add(receiving.complete)

    def refuses(self, pair: Pair, receiving: ReceiveTransfer[Any], error: Exception) -> None:
        with self._about(pair) as is_current:
            if is_current and self._abandon(error, [receiving.number], []) != ([], []):
                self._post_facts("broken", self._generation - 1, [receiving.number], [], _error_text(error))

    def broke(self, pair: Pair, error: Exception) -> None:
        with self._about(pair) as is_current:
            if not is_current:
                return
            self._attempts = 0 if pair.is_connected else self._attempts + 1
            if self._attempts < _MAX_ATTEMPTS:
                self._break(error)
            else:
                self._attempts = 0
                self._break(error, *self._all())

    @contextlib.contextmanager
    def _about(self, pair: Pair) -> Iterator[bool]:
        """Context manager: holds the lock while a pair reports. Yields True if the pair is current."""
        with self._deferred.locked():
            yield pair is self._pair


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS]

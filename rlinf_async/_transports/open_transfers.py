"""A table of a link's unfinished transfers, and of the peer's early requests and refusals.

Either side may be ahead of the other: a transfer may be requested before it is offered, and abandoned before either.
The table is plain state; its owner's lock guards it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from rlinf_async._core.error_copy import copy_of
from rlinf_async._transports.transfer import Buffer, ReceiveTransfer, SendTransfer, Transfer
from rlinf_async.errors import TransferFailed

_MAX_TRIES: Final = 5
"""Number of connections that may break during one transfer without any progress."""

_SomeTransfer = TypeVar("_SomeTransfer", bound=Transfer[Any])


class TransferRequest(NamedTuple):
    """The peer's message that it is ready to receive: tag, size in bytes, first chunk."""

    tag: int
    nbytes: int
    start: int


class OpenTransfers(Generic[Buffer]):
    """The requested but unfinished transfers of a link by number; each direction has its own numbers."""

    def __init__(self) -> None:
        self.sendings: dict[int, SendTransfer] = {}
        self.receivings: dict[int, ReceiveTransfer[Buffer]] = {}
        self._newest = -1
        # Transfers that the peer has already requested or refused, although this side has not offered them yet.
        self._requests: dict[int, TransferRequest] = {}
        self._unwanted: dict[int, TransferFailed] = {}
        # Transfers that the peer abandoned before this side requested them.
        self._withdrawn: dict[int, TransferFailed] = {}
        # Transfers that this side has abandoned; the peer has not confirmed this yet, and may still request them.
        self._abandoned: set[int] = set()

    def __repr__(self) -> str:
        return f"<OpenTransfers {len(self.sendings)} to send, {len(self.receivings)} to receive>"

    def offer(self, sending: SendTransfer) -> TransferRequest | TransferFailed | None:
        """Add a transfer to send. Return an earlier request or refusal. Raise ValueError if its number is in use."""
        number = sending.number
        if number in self.sendings:
            raise ValueError(f"transfer {number} is being sent already")
        if number in self._unwanted:
            return self._unwanted.pop(number)
        self.sendings[number] = sending
        return self._requests.pop(number, None)

    def refuse(self, number: int) -> None:
        """Record that a transfer will not be sent; until the peer knows, it may request the transfer."""
        self._abandoned.add(number)

    def request(self, receiving: ReceiveTransfer[Buffer]) -> TransferFailed | None:
        """Add a transfer to receive. Return an earlier withdrawal. Raise ValueError if its number is in use."""
        number = receiving.number
        if number in self.receivings:
            raise ValueError(f"transfer {number} is being received already")
        self._newest = max(self._newest, number)
        withdrawn = self._withdrawn.pop(number, None)
        if self._withdrawn:  # earlier ones are requested no more, because their messages were withdrawn, too
            self._withdrawn = {each: error for each, error in self._withdrawn.items() if each > number}
        if withdrawn is None:
            self.receivings[number] = receiving
        return withdrawn

    def find(self, number: int, request: TransferRequest) -> SendTransfer | None:
        """Return the transfer that the peer requests; keep the request if the transfer has not been offered yet."""
        sending = self.sendings.get(number)
        if sending is None and number not in self._abandoned:
            self._requests[number] = request
        return sending

    def is_abandoned(self, number: int) -> bool:
        return number in self._abandoned

    def forget_requests(self) -> None:
        self._requests.clear()

    def sent(self, number: int) -> SendTransfer | None:
        self._abandoned.discard(number)
        return self.sendings.pop(number, None)

    def abandon(self, receivings: Collection[int], sendings: Collection[int]) -> tuple[list[Any], list[Any]]:
        """Remove and return the given transfers that are still open; the caller must notify the peer."""
        received, sent = _take(self.receivings, receivings), _take(self.sendings, sendings)
        self._abandoned.update(sending.number for sending in sent)
        return received, sent

    def exhausted(self) -> tuple[list[int], list[int]]:
        return _exhausted(self.receivings), _exhausted(self.sendings)

    def note_abandoned(self, received: Collection[int], sent: Collection[int], error: TransferFailed) -> list[int]:
        """Record that the peer has abandoned transfers that it was receiving and sending.

        Returns:
            The peer's sends that this side has not requested; reliable only for numbers above the newest one.
        """
        for number in received:
            if number not in self.sendings and number not in self._abandoned:
                self._unwanted[number] = copy_of(error)
        withdrawn = [number for number in sent if number > self._newest]
        self._withdrawn.update((number, copy_of(error)) for number in withdrawn)
        return withdrawn

    def peer_knows(self, sent: Collection[int]) -> None:
        self._abandoned.difference_update(sent)


def _take(table: dict[int, _SomeTransfer], numbers: Collection[int]) -> list[_SomeTransfer]:
    return [table.pop(number) for number in numbers if number in table]


def _exhausted(table: Mapping[int, Transfer[Any]]) -> list[int]:
    return [number for number, transfer in table.items() if transfer.tries >= _MAX_TRIES]

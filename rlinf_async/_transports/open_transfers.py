"""Table of a link's unfinished transfers, and of the peer's requests and refusals that came before them.

Each side may be ahead of the other: a transfer can be asked for before it is offered, and given up before either.
Plain state; its owner's lock guards it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from rlinf_async._core.error_copy import copy_of
from rlinf_async._transports.transfer import Buffer, Receiving, Sending, Transfer
from rlinf_async.errors import TransferFailed

_MAX_TRIES: Final = 5
"""Connections that may break under one transfer with nothing arriving."""

_SomeTransfer = TypeVar("_SomeTransfer", bound=Transfer[Any])


class Request(NamedTuple):
    """The peer is ready to receive: under which tag, how many bytes in all, from which chunk on."""

    tag: int
    nbytes: int
    start: int


class OpenTransfers(Generic[Buffer]):
    """The open transfers of a link, by number, which is per direction.

    Attributes:
        sendings, receivings: what was asked for and is not done.
    """

    def __init__(self) -> None:
        self.sendings: dict[int, Sending] = {}
        self.receivings: dict[int, Receiving[Buffer]] = {}
        self._newest = -1
        # Of what is yet to be sent: the peer has asked for it, or does not want it any more.
        self._requests: dict[int, Request] = {}
        self._unwanted: dict[int, TransferFailed] = {}
        # Of what is yet to be received: the peer has given it up.
        self._withdrawn: dict[int, TransferFailed] = {}
        # What is not sent any more, of which the peer has not said that it has failed there too: it may still ask.
        self._given_up: set[int] = set()

    def __repr__(self) -> str:
        return f"<OpenTransfers {len(self.sendings)} to send, {len(self.receivings)} to receive>"

    def offer(self, sending: Sending) -> Request | TransferFailed | None:
        """A new one to send; returns what the peer has said of it already.

        Raises:
            ValueError: its number is in use.
        """
        number = sending.number
        if number in self.sendings:
            raise ValueError(f"transfer {number} is being sent already")
        if number in self._unwanted:
            return self._unwanted.pop(number)
        self.sendings[number] = sending
        return self._requests.pop(number, None)

    def refuse(self, number: int) -> None:
        """It will not be sent; the peer may ask for it until it knows."""
        self._given_up.add(number)

    def ask(self, receiving: Receiving[Buffer]) -> TransferFailed | None:
        """A new one to receive; returns what the peer has said of it already.

        Raises:
            ValueError: its number is in use.
        """
        number = receiving.number
        if number in self.receivings:
            raise ValueError(f"transfer {number} is being received already")
        self._newest = max(self._newest, number)
        if number in self._withdrawn:
            return self._withdrawn.pop(number)
        self.receivings[number] = receiving
        return None

    def find(self, number: int, request: Request) -> Sending | None:
        """What the peer asks for; the request is kept where it has not been offered yet."""
        sending = self.sendings.get(number)
        if sending is None and number not in self._given_up:
            self._requests[number] = request
        return sending

    def is_given_up(self, number: int) -> bool:
        return number in self._given_up

    def forget_requests(self) -> None:
        """They were made of a pair that is no more."""
        self._requests.clear()

    def sent(self, number: int) -> Sending | None:
        """The peer has received it."""
        self._given_up.discard(number)
        return self.sendings.pop(number, None)

    def give_up(self, receivings: Collection[int], sendings: Collection[int]) -> tuple[list[Any], list[Any]]:
        """Those of them that are open, not open any more; the peer has to be told."""
        received, sent = _take(self.receivings, receivings), _take(self.sendings, sendings)
        self._given_up.update(sending.number for sending in sent)
        return received, sent

    def exhausted(self) -> tuple[list[int], list[int]]:
        """The numbers of those under which too many connections broke."""
        return _exhausted(self.receivings), _exhausted(self.sendings)

    def note_given_up(self, received: Collection[int], sent: Collection[int], error: TransferFailed) -> list[int]:
        """The peer has given up receiving some and sending others.

        Returns:
            Those of the latter that were not asked for here, which only numbers yet to come certainly were not.
        """
        for number in received:
            if number not in self.sendings and number not in self._given_up:
                self._unwanted[number] = copy_of(error)
        withdrawn = [number for number in sent if number > self._newest]
        self._withdrawn.update((number, copy_of(error)) for number in withdrawn)
        return withdrawn

    def peer_knows(self, sent: Collection[int]) -> None:
        """That these are not sent any more."""
        self._given_up.difference_update(sent)


def _take(table: dict[int, _SomeTransfer], numbers: Collection[int]) -> list[_SomeTransfer]:
    return [table.pop(number) for number in numbers if number in table]


def _exhausted(table: Mapping[int, Transfer[Any]]) -> list[int]:
    return [number for number, transfer in table.items() if transfer.tries >= _MAX_TRIES]

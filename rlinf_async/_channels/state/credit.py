"""Credit-based flow control of puts: bytes of a queue granted to producers ahead, and recalled; both sides.

A producer that holds credit puts without waiting for an answer: items on its socket come in, even if it dies.  The
queue sets the bytes aside, so that it can keep its word, and may ask for them back::

    queue ── GRANT bytes ──► producer ── items, as long as it can pay ──► queue
    queue ── RECALL ───────► producer ── the rest, returned ────────────► queue      or forfeited, after a while

Every byte that was granted comes back, as an item or returned, in whatever order the two arrive: once nothing is
outstanding, everything that was put with credit has come in.  Plain state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rlinf_async._core.frames import MAX_INLINE_BYTES

ITEM_OVERHEAD_BYTES: Final = 256
"""Bytes that an item takes beside its body, about."""

MAX_CREDIT_BYTES: Final = 16 << 20
_SHARE: Final = 64
"""Bytes, or the part of ``max_bytes``, that one producer is promised at most."""

_MIN_CREDIT_BYTES: Final = 64 << 10
"""Bytes; where a window would be smaller, nothing is promised."""

_DESCRIPTOR_BYTES: Final = 256 << 10
"""Bytes that an item of sealed memory costs at least: descriptors on their way are few, and shared by all processes."""


def cost(nbytes: int) -> int:
    """The price of an item with a body of so many bytes."""
    return (
        nbytes + ITEM_OVERHEAD_BYTES
        if nbytes <= MAX_INLINE_BYTES
        else max(nbytes + ITEM_OVERHEAD_BYTES, _DESCRIPTOR_BYTES)
    )


class CreditBalance:
    """The producer's side; from any thread."""

    def __init__(self) -> None:
        self._left = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<CreditBalance [{self._left} bytes]>"

    def add(self, amount: int) -> None:
        with self._lock:
            self._left += amount

    def pay(self, amount: int) -> bool:
        """False, and nothing is paid, if there is not enough."""
        if self._left < amount:
            return False
        with self._lock:
            if self._left < amount:
                return False
            self._left -= amount
            return True

    def empty(self) -> int:
        """Takes everything out."""
        with self._lock:
            left, self._left = self._left, 0
            return left


@dataclass(frozen=True)
class Grant:
    """So many bytes more for a client."""

    client: int
    amount: int


@dataclass(frozen=True)
class Recall:
    """A client shall return what it has; ``turn`` tells one recall from the next."""

    client: int
    turn: int


@dataclass(slots=True)
class _Account:
    outstanding: int = 0
    forfeited: int = 0
    """Bytes that it may yet use without having them any more."""
    recalled: bool = False
    answered: bool = False
    turn: int = 0

    def settle(self) -> None:
        """A recall is over when it has been answered, and what was under way has come in."""
        if self.recalled and self.answered and not self.outstanding:
            self.recalled = False


class Ledger:
    """The queue's side: how much each client has been promised.

    Args:
        max_bytes: of the queue.
        lends_to: whether a client may have credit; None where none may.
    """

    def __init__(self, max_bytes: int, lends_to: Callable[[int], bool] | None = None) -> None:
        window = min(max_bytes // _SHARE, MAX_CREDIT_BYTES)
        self.window = window if lends_to is not None and window >= _MIN_CREDIT_BYTES else 0
        self.outstanding = 0
        """Bytes that are set aside, of all clients."""
        self._lends_to = lends_to
        self._most = max_bytes // 8
        self._full = max_bytes - max_bytes // 4
        self._accounts: dict[int, _Account] = {}
        self._idle: dict[int, _Account] = {}
        """Of clients that hold credit and were not asked for it."""

    def __repr__(self) -> str:
        return f"<Ledger [{self.outstanding} bytes outstanding, {len(self._accounts)} accounts]>"

    def holders(self) -> list[int]:
        """Clients that may have sent items which have not come in."""
        return [client for client, account in self._accounts.items() if account.outstanding or account.forfeited]

    def lend(self, client: int, held: int) -> int:
        """Bytes that a client is granted, once half of its window is used up; 0 where there are not enough.

        Args:
            held: bytes of the queue's items, and of those that wait for room.
        """
        account = self._accounts.get(client)
        if account is None:
            if not self.window or self._lends_to is None or not self._lends_to(client):
                return 0
            account = self._accounts[client] = _Account()
        amount = self.window - account.outstanding
        if account.recalled or amount * 2 < self.window:
            return 0
        outstanding = self.outstanding + amount
        if outstanding > self._most or held + outstanding > self._full:
            return 0
        account.outstanding += amount
        self.outstanding = outstanding
        self._idle[client] = account
        return amount

    def spend(self, client: int, amount: int) -> bool:
        """An item has come that was paid for; False if its room had been forfeited.

        Raises:
            ValueError: the client never had so much.
        """
        account = self._accounts.get(client)
        if account is not None and amount <= account.outstanding:
            account.outstanding -= amount
            self.outstanding -= amount
            account.settle()
            return True
        if account is not None and amount <= account.forfeited:
            account.forfeited -= amount
            return False
        raise ValueError(f"client {client} pays {amount} bytes of credit that it does not have")

    def returned(self, client: int, amount: int, *, answers: bool) -> None:
        """A client has so much that it will not use.

        Args:
            answers: it is all that it has, and was asked for.
        """
        account = self._accounts.get(client)
        if account is None:
            return
        back = min(amount, account.outstanding)
        account.outstanding -= back
        self.outstanding -= back
        account.forfeited = max(0, account.forfeited - (amount - back))
        if answers:
            account.answered = True
        account.settle()

    def recall(self) -> list[Recall]:
        """Asks every client that has not been asked yet."""
        if not self._idle:
            return []
        idle, self._idle = self._idle, {}
        return [self._recall(client, account) for client, account in idle.items() if account.outstanding]

    def recall_all(self) -> list[Recall]:
        """Asks every client, also those that were asked and have not answered."""
        self._idle.clear()
        return [self._recall(client, account) for client, account in self._accounts.items() if account.outstanding]

    def _recall(self, client: int, account: _Account) -> Recall:
        account.recalled, account.answered = True, False
        account.turn += 1
        return Recall(client, account.turn)

    def forfeit(self, recall: Recall) -> bool:
        """Credit that was recalled and has not come back is lost to the client; False if all had come back."""
        account = self._accounts.get(recall.client)
        if account is None or not account.recalled or account.turn != recall.turn or not account.outstanding:
            return False
        self.outstanding -= account.outstanding
        account.forfeited += account.outstanding
        account.outstanding = 0
        account.settle()
        return True

    def drop(self, client: int) -> None:
        """It is dead."""
        account = self._accounts.pop(client, None)
        self._idle.pop(client, None)
        if account is not None:
            self.outstanding -= account.outstanding

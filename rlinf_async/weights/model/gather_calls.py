"""The calls to which shards belong, the header of each message, and the handling of messages from ended calls.

Shards are matched by the order in which they are sent, so a call that was refused or failed on only one rank would
leave the ranks out of step forever. Each rank therefore counts each sender's calls, including refused ones, and the
gathering rank discards shards of calls that it has ended.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

from rlinf_async.errors import TransferFailed

GATHERING_RANK: Final = 0

_lock: Final = threading.Lock()
_senders: Final[list[weakref.ref[GatherCalls]]] = []
"""Senders of sharded weights in the order of their first gathering, which is the same on every rank."""


class GatherCalls:
    """One sender's calls. Every rank makes the same calls in the same order, and counts each before refusing it."""

    def __init__(self) -> None:
        self.count = 0
        self._place = -1

    def next(self) -> GatherCall:
        with _lock:
            self.count += 1
            return GatherCall(self, self.count)

    @property
    def place(self) -> int:
        """Position among the senders of sharded weights, the same on every rank."""
        with _lock:
            if self._place < 0:
                self._place = len(_senders)
                _senders.append(weakref.ref(self))
            return self._place


class GatherCall:
    """One call of a sender, which gathers once, in one or more parts.

    Attributes:
        number: number among the sender's calls.
    """

    def __init__(self, calls: GatherCalls, number: int) -> None:
        self.number = number
        self._calls = calls
        self._buckets = itertools.count()

    def found_sharded(self) -> None:
        """Record that the sender's weights are sharded; do this before any check that may fail on this rank only."""
        _ = self._calls.place

    def header(self, *, awaits: bool) -> Header:
        """Return the next bucket's header."""
        return Header(self._calls.place, self.number, next(self._buckets), 0, int(awaits))


class Header(NamedTuple):
    """The message that precedes one rank's shards in one bucket.

    Attributes:
        sender, call, bucket: numbers of the sender, its call and the call's bucket, the same on every rank.
        nbytes: size of the shards.
        awaits: 1 if the rank waits for permission before it joins a collective of all ranks, or skips the bucket.
    """

    sender: int
    call: int
    bucket: int
    nbytes: int
    awaits: int

    def is_over(self, header: Header) -> bool:
        """True if ``header``, which arrived instead of this one, belongs to a call that was refused, failed or was
        abandoned."""
        if header.sender == self.sender:
            return (header.call, header.bucket) < (self.call, self.bucket)
        with _lock:
            if header.sender >= len(_senders):
                return False
            calls = _senders[header.sender]()
        return calls is None or header.call <= calls.count

    def check(self, found: Header, rank: int) -> None:
        """Check that a received header equals this header.

        Raises:
            TransferFailed: the headers differ.
        """
        if found == self:
            return
        if found[:3] == self[:3]:
            raise TransferFailed(
                f"rank {rank} has {found.nbytes} bytes of shards where rank {dist.get_rank()} expects {self.nbytes}: "
                "every rank sends the same weights; nothing was sent to anyone"
            )
        raise TransferFailed(
            f"rank {rank} takes no part in call {self.call} of this sender of sharded weights: what came is of "
            f"{f'call {found.call}' if found.sender == self.sender else 'another sender'}.  It was refused that call, "
            "or has failed in it, or has not made it; nothing was sent to anyone"
        )


_arrived: Final[weakref.WeakKeyDictionary[Any, dict[tuple[int, str], Header]]] = weakref.WeakKeyDictionary()
"""Maps each group, rank and kind of device to the header whose shards have not been received yet."""


def announce(header: Header, device: torch.device) -> bool:
    """Announce shards to the gathering rank. Return False if they must not be sent."""
    dist.send(torch.tensor(header, device=device), GATHERING_RANK)
    if not header.awaits:
        return True
    answer = torch.empty(1, dtype=torch.int64, device=device)
    dist.recv(answer, GATHERING_RANK)
    return bool(answer.item())


def await_headers(expected: dict[int, tuple[Header, torch.device]]) -> None:
    """Wait until each of these ranks has reached this call and bucket, so that its shards come next.

    Raises:
        TransferFailed: a rank is ahead, or has other weights. Its announcement is kept for the call that it names.
    """
    for rank, (header, device) in expected.items():
        while header.is_over(found := _header_of(rank, device)):
            _drop(found, rank, device)
        header.check(found, rank)
    for rank, (header, device) in expected.items():
        if header.awaits:
            _answer(rank, device, goes_on=True)
            _headers()[rank, device.type] = header._replace(awaits=0)


def received(rank: int, device: torch.device) -> None:
    """Record that a rank's shards have been received."""
    _headers().pop((rank, device.type), None)


def _header_of(rank: int, device: torch.device) -> Header:
    key, headers = (rank, device.type), _headers()
    if key not in headers:
        flat = torch.empty(len(Header._fields), dtype=torch.int64, device=device)
        dist.recv(flat, rank)
        headers[key] = Header(*flat.tolist())
    return headers[key]


def _drop(header: Header, rank: int, device: torch.device) -> None:
    if header.awaits:
        _answer(rank, device, goes_on=False)
    elif header.nbytes:
        dist.recv(torch.empty(header.nbytes, dtype=torch.uint8, device=device), rank)
    received(rank, device)


def _answer(rank: int, device: torch.device, *, goes_on: bool) -> None:
    dist.send(torch.tensor([int(goes_on)], device=device), rank)


def _headers() -> dict[tuple[int, str], Header]:
    return _arrived.setdefault(dist.group.WORLD, {})

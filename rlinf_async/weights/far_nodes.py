"""Receivers on other machines: one of each machine receives a version, and the others read it there.

sender ── HOST ──► the first receiver of a machine   it makes memory for all of that machine
sender ── BRING ──► it ── ROOM ──► sender            it waits for the memory, in pieces, straight into a slot
sender ── pieces, as soon as they are packed ──► it
sender ── WHOLE ──► it ── LANDED ──► sender          once the version is published and everything has arrived
sender ── PUBLISH ──► everybody there
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import torch

from rlinf_async.errors import PeerLost, TransferFailed
from rlinf_async.weights import words as say
from rlinf_async.weights.delta import Delta
from rlinf_async.weights.slab import SlotWriter
from rlinf_async.weights.store import Store
from rlinf_async.work import Work

if TYPE_CHECKING:
    from rlinf_async.weights.outlets import Outlet

FIRST_PIECE: Final = 16 << 20
"""Bytes that travel as one tensor, at first: so much is packed soon.  Each is twice as large as the one before."""

LARGEST_PIECE: Final = 256 << 20
"""A piece costs as much time as a megabyte or more."""

Landed = Callable[[Iterable[Any], int, Any, Exception | None], None]


class _Outgoing:
    """A version in this machine's memory.

    Attributes:
        packed: bytes from its beginning that will not change any more.
        facts: its extra and its checksum, once it is published.
    """

    def __init__(self, version: int, store: Store, writer: SlotWriter) -> None:
        self.version = version
        self.store = store
        self.writer = writer
        self.packed = 0
        self.facts: tuple[bytes, int] | None = None

    def publish(self) -> None:
        self.packed = self.writer.leaves.nbytes
        self.facts = self.writer.extra, self.writer.checksum


class _Coming:
    """A version on its way to one machine.

    Args:
        delta: what travels instead of everything.

    Attributes:
        sizes: of the pieces, in bytes.
        waiting: who is to hear of it.
        has_room: pieces are expected there.
        is_told: it was said that there is no more.
        sent: pieces that have left.
    """

    def __init__(self, outgoing: _Outgoing, waiting: list[Outlet], delta: Delta | None) -> None:
        self.outgoing = outgoing
        self.waiting = waiting
        self.has_room = False
        self.is_told = False
        self.sent: list[Work[None]] = []
        self._whole = outgoing.writer.leaves if delta is None else delta.body
        self._is_there = delta is not None
        self.sizes = piece_sizes(len(self._whole))
        outgoing.store.hold(outgoing.writer)  # until ``end``: no other version comes into that memory

    def next_piece(self) -> torch.Tensor | None:
        """None where there is no more, or it is not packed yet."""
        if len(self.sent) == len(self.sizes):
            return None
        start = sum(self.sizes[: len(self.sent)])
        end = start + self.sizes[len(self.sent)]
        return self._whole[start:end] if self._is_there or end <= self.outgoing.packed else None

    def end(self, *, given_up: bool = False) -> None:
        """It has landed, or is not wanted any more; what has left is let go of piece by piece."""
        self.outgoing.store.let_go(self.outgoing.writer)
        for work in self.sent if given_up else ():
            if not work.done():
                work._lose_interest()


def piece_sizes(nbytes: int) -> list[int]:
    """The pieces that so many bytes travel in."""
    sizes: list[int] = []
    while nbytes:
        sizes.append(min(nbytes, FIRST_PIECE << min(len(sizes), 16), LARGEST_PIECE))
        nbytes -= sizes[-1]
    return sizes


class _FarNode:
    """One machine.

    Attributes:
        outlets: the receivers there; the first receives for all, the *host*.
        is_hosted: the first knows that it is the host.
        line: on which it gets its tensors.
        memory, version: what has landed there last.
        coming: what is on its way.
        attempts: hosts to which it could not be sent.
        is_doubted: the host was late.
        needs_all, has_failed: what has changed is not enough for it; that was tried with the version under way.
    """

    def __init__(self) -> None:
        self.outlets: list[Outlet] = []
        self.is_hosted = False
        self.line = 0
        self.memory: Any = None
        self.version = 0
        self.coming: _Coming | None = None
        self.attempts = 0
        self.is_doubted = False
        self.needs_all = False
        self.has_failed = False

    def expects(self, version: int) -> bool:
        """Whether that one is on its way."""
        return self.coming is not None and self.coming.outgoing.version == version


class FarNodes:
    """All other machines.

    Args:
        landed: called with receivers, a version, the memory where it is, or why it is nowhere.
        lock: held by the owner around every call.
    """

    def __init__(self, landed: Landed, lock: threading.RLock) -> None:
        self._landed = landed
        self._lock = lock
        self._nodes: dict[int, _FarNode] = {}
        self._store: Store | None = None
        self._outgoing: _Outgoing | None = None
        """What is being packed, or was published last."""
        self._delta: tuple[int, int, Delta] | None = None
        """The version, its base, and how it differs from that."""

    def greet(self, outlet: Outlet, store: Store) -> None:
        """A receiver on another machine is told what comes."""
        assert outlet.link.node is not None
        self._store = store
        node = self._nodes.setdefault(outlet.link.node, _FarNode())
        node.outlets.append(outlet)
        if node.is_hosted:
            outlet.say(say.HELLO, store.manifest.to_bytes(), store.extra, store.slots, node.memory, node.version)
        else:
            self._appoint(node, store)
        self._catch_up(node, [outlet], store)

    def _catch_up(self, node: _FarNode, waiting: list[Outlet], store: Store) -> None:
        """They get what was published last, if it is not there."""
        latest = store.latest
        if latest is None or node.version >= latest.version:
            return
        if node.coming is not None and node.coming.outgoing.version >= latest.version:
            node.coming.waiting += waiting
            return
        outgoing = _Outgoing(latest.version, store, latest)
        outgoing.publish()
        self._bring(node, outgoing, waiting)

    def _appoint(self, node: _FarNode, store: Store) -> None:
        """The first receiver of this machine receives for all, into memory that it makes now."""
        self._give_up(node)
        node.memory, node.version, node.is_doubted = None, 0, False
        node.line += 1
        node.is_hosted = bool(node.outlets)
        if node.is_hosted:
            facts = (store.manifest.to_bytes(), store.extra, store.slots, None, 0, node.line)
            node.outlets[0].say(say.HOST, *facts)

    def _next_host(self, node: _FarNode, store: Store) -> None:
        """It is another receiver's turn; who was the host gives its memory back."""
        before = node.outlets.pop(0)
        node.outlets.append(before)
        self._appoint(node, store)
        if node.outlets[0] is not before:
            before.say(say.HELLO, store.manifest.to_bytes(), store.extra, store.slots, None, 0)

    def _give_up(self, node: _FarNode) -> None:
        """What is on its way is not wanted any more."""
        coming, node.coming = node.coming, None
        if coming is not None:
            coming.end(given_up=True)

    # -- what is packed and published ---------------------------------------------------------------------------

    def begin(self, version: int, outlets: Iterable[Outlet], store: Store, writer: SlotWriter) -> bool:
        """A version for these receivers is being packed: what is packed leaves at once.  False if for none of them."""
        self._outgoing, self._delta = outgoing, _ = _Outgoing(version, store, writer), None
        numbers = dict.fromkeys(outlet.link.node for outlet in outlets)
        nodes = [self._nodes[number] for number in numbers if number in self._nodes]
        for node in nodes:
            if node.is_hosted and node.coming is None and not node.is_doubted:
                node.attempts = 0
                self._bring(node, outgoing, [])
        return any(node.expects(version) for node in nodes)

    def packed(self, version: int, nbytes: int) -> None:
        """So many bytes of a version that was begun will not change any more."""
        outgoing = self._outgoing
        if outgoing is not None and outgoing.version == version:
            outgoing.packed = nbytes
            for node in list(self._nodes.values()):
                if node.expects(version):
                    self._go_on(node)

    def abandon(self, version: int) -> None:
        """A version that was begun is not published."""
        outgoing = self._outgoing
        if outgoing is not None and outgoing.version == version and outgoing.facts is None:
            self._outgoing = None
            for node in list(self._nodes.values()):
                if node.coming is not None and node.expects(version):
                    waiting = node.coming.waiting
                    self._appoint(node, outgoing.store)
                    if waiting:
                        self._catch_up(node, waiting, outgoing.store)

    def bring(
        self,
        version: int,
        outlets: Iterable[Outlet],
        store: Store,
        writer: SlotWriter,
        delta: tuple[int, Delta] | None = None,
    ) -> None:
        """Sends a version that is published to the machines of these receivers, once to each.

        Args:
            delta: what has changed, and since which version: it is enough where that one is.
        """
        outgoing = self._outgoing
        if outgoing is None or outgoing.version != version or outgoing.writer is not writer:
            outgoing = self._outgoing = _Outgoing(version, store, writer)
        outgoing.publish()
        self._delta = (version, *delta) if delta is not None else None
        by_node: dict[int, list[Outlet]] = {}
        for outlet in outlets:
            assert outlet.link.node is not None
            by_node.setdefault(outlet.link.node, []).append(outlet)
        for number, waiting in by_node.items():
            node = self._nodes[number]
            if node.coming is not None and node.coming.outgoing.version == version:
                # Begun when it was packed, or a receiver that has just come has asked for it.
                node.coming.waiting += [outlet for outlet in waiting if outlet not in node.coming.waiting]
                self._go_on(node)
                continue
            if node.coming is not None or node.is_doubted:  # the host is stopped, perhaps: somebody else's turn
                self._next_host(node, store)
            node.attempts = 0
            self._bring(node, outgoing, waiting)

    # -- to one machine -----------------------------------------------------------------------------------------

    def _bring(self, node: _FarNode, outgoing: _Outgoing, waiting: list[Outlet]) -> None:
        version = outgoing.version
        if not node.outlets:
            self._landed(waiting, version, None, PeerLost("nobody is left on that machine to receive"))
            return
        if outgoing.facts is not None and outgoing.store.latest is not outgoing.writer:
            self._landed(waiting, version, None, TransferFailed(f"version {version} is followed by others already"))
            return
        base, delta = 0, None
        if self._delta is not None and self._delta[:2] == (version, node.version) and not node.needs_all:
            base, delta = self._delta[1:]
        node.needs_all = False
        node.coming = coming = _Coming(outgoing, waiting, delta)
        node.outlets[0].say(say.BRING, version, coming.sizes, base, b"" if delta is None else delta.head)

    def room(self, outlet: Outlet, version: int) -> None:
        """The host of a machine expects the pieces of a version."""
        node = self._of(outlet)
        if node is not None and node.outlets[0] is outlet and node.coming is not None and node.expects(version):
            node.coming.has_room = True
            self._go_on(node)

    def _go_on(self, node: _FarNode) -> None:
        """Sends what can be sent now."""
        coming, line = node.coming, node.line
        if coming is None or not coming.has_room:
            return
        outgoing, host = coming.outgoing, node.outlets[0]
        while node.coming is coming and (piece := coming.next_piece()) is not None:
            outgoing.store.hold(outgoing.writer)
            work = host.link.send_tensor(piece, line)
            coming.sent.append(work)
            work._follow(functools.partial(self._sent, node, coming, line, work))
        if node.coming is coming and outgoing.facts is not None and not coming.is_told:
            coming.is_told = True
            host.say(say.WHOLE, outgoing.version, *outgoing.facts)

    def _sent(self, node: _FarNode, coming: _Coming, line: int, work: Work[None]) -> None:
        outgoing = coming.outgoing
        with self._lock:
            outgoing.store.let_go(outgoing.writer)
            try:
                work._result()
            except Exception as error:
                if node.coming is not coming or node.line != line:
                    return
                self._next_host(node, outgoing.store)
                node.attempts += 1
                if node.attempts < len(node.outlets):
                    self._bring(node, outgoing, coming.waiting)
                else:
                    self._landed(coming.waiting, outgoing.version, None, error)

    def landed(self, outlet: Outlet, version: int, failure: bytes | None, memory: Any) -> None:
        """The host of a machine has a version, or has not."""
        node = self._of(outlet)
        if node is None or node.outlets[0] is not outlet or node.coming is None or not node.expects(version):
            return
        coming, node.coming = node.coming, None
        coming.end()
        if failure is not None and self._delta is not None and self._delta[0] == version and not node.has_failed:
            node.has_failed = node.needs_all = True  # whatever was wrong with what has changed: now everything
            self._bring(node, coming.outgoing, coming.waiting)
            return
        node.has_failed = False
        if failure is None:
            node.memory, node.version, node.is_doubted = memory, version, False
        self._landed(coming.waiting, version, memory, None if failure is None else say.unpack_error(failure))

    # -- who receives -------------------------------------------------------------------------------------------

    def doubt(self, outlet: Outlet) -> None:
        """It was late: if it is the host of its machine, another one takes its place with the next version."""
        node = self._of(outlet)
        if node is not None and node.outlets[0] is outlet:
            node.is_doubted = True

    def forget(self, outlet: Outlet) -> None:
        """A receiver is gone; if it was the host, another one is, and what was coming comes once more."""
        node = self._of(outlet)
        if node is None:
            return
        was_host, coming = node.outlets[0] is outlet, node.coming
        node.outlets.remove(outlet)
        if coming is not None:
            coming.waiting = [other for other in coming.waiting if other is not outlet]
        if was_host and self._store is not None:
            self._appoint(node, self._store)
            if coming is not None and coming.waiting:
                self._bring(node, coming.outgoing, coming.waiting)

    def _of(self, outlet: Outlet) -> _FarNode | None:
        node = None if outlet.link.node is None else self._nodes.get(outlet.link.node)
        return node if node is not None and outlet in node.outlets else None

    def close(self) -> None:
        for node in self._nodes.values():
            self._give_up(node)
        self._nodes.clear()
        self._store = self._outgoing = self._delta = None

"""Receivers on other machines: one of each machine receives a version, and the others read it there.

sender ── HOST ──► the first receiver of a machine   it makes memory for all of that machine
sender ── BRING, then the memory in pieces ──► it    straight into a slot
it ── LANDED ──► sender ── PUBLISH ──► everybody there
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from rlinf_async.errors import PeerLost
from rlinf_async.weights import words as say
from rlinf_async.weights.delta import Delta
from rlinf_async.weights.slab import SlotWriter
from rlinf_async.weights.store import Store
from rlinf_async.work import Work

if TYPE_CHECKING:
    from rlinf_async.weights.outlets import Outlet

PIECE: Final = 16 << 20
"""Bytes that travel as one tensor."""

Landed = Callable[[Iterable[Any], int, Any, Exception | None], None]


class _FarNode:
    """One machine.

    Attributes:
        outlets: the receivers there; the first receives for all, the *host*.
        is_hosted: the first knows that it is the host.
        line: on which it gets its tensors.
        memory, version: what has landed there last.
        coming, waiting: the version that is on its way, or 0, and who is to hear of it.
        sending: its tensors.
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
        self.coming = 0
        self.waiting: list[Outlet] = []
        self.sending: list[Work[None]] = []
        self.attempts = 0
        self.is_doubted = False
        self.needs_all = False
        self.has_failed = False


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
        self._source: tuple[Store, SlotWriter] | None = None
        """What was published last."""
        self._delta: tuple[int, int, Delta] | None = None
        """The version, its base, and how it differs from that."""

    def greet(self, outlet: Outlet, store: Store) -> None:
        """A receiver on another machine is told what comes."""
        assert outlet.link.node is not None
        node = self._nodes.setdefault(outlet.link.node, _FarNode())
        node.outlets.append(outlet)
        if node.is_hosted:
            outlet.say(say.HELLO, store.manifest.to_bytes(), store.extra, store.slots, node.memory, node.version)
        else:
            self._appoint(node, store)
        latest = store.latest
        if latest is None or node.version >= latest.version:
            return
        if node.coming == latest.version:
            node.waiting.append(outlet)
        else:
            self._source = (store, latest)
            self._bring(node, latest.version, [outlet])

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
        sending, node.sending, node.coming = node.sending, [], 0
        for work in sending:
            if not work.done():
                work._lose_interest()

    def bring(
        self,
        version: int,
        outlets: Iterable[Outlet],
        store: Store,
        writer: SlotWriter,
        delta: tuple[int, Delta] | None = None,
    ) -> None:
        """Sends a version to the machines of these receivers, once to each.

        Args:
            delta: what has changed, and since which version: it is enough where that one is.
        """
        self._source = (store, writer)
        self._delta = (version, *delta) if delta is not None else None
        by_node: dict[int, list[Outlet]] = {}
        for outlet in outlets:
            assert outlet.link.node is not None
            by_node.setdefault(outlet.link.node, []).append(outlet)
        for number, waiting in by_node.items():
            node = self._nodes[number]
            if node.coming == version:  # a receiver that has just come has asked for it
                node.waiting += [outlet for outlet in waiting if outlet not in node.waiting]
                continue
            if node.coming or node.is_doubted:  # the host is stopped, perhaps: somebody else's turn
                self._next_host(node, store)
            node.attempts = 0
            self._bring(node, version, waiting)

    def _bring(self, node: _FarNode, version: int, waiting: list[Outlet]) -> None:
        if not node.outlets or self._source is None:
            self._landed(waiting, version, None, PeerLost("nobody is left on that machine to receive"))
            return
        store, writer = self._source
        host, line = node.outlets[0], node.line
        node.coming, node.waiting = version, waiting
        memory, base, head = writer.leaves, 0, b""
        if self._delta is not None and self._delta[:2] == (version, node.version) and not node.needs_all:
            base, delta = self._delta[1:]
            memory, head = delta.body, delta.head
        node.needs_all = False
        pieces = [memory[start : start + PIECE] for start in range(0, len(memory), PIECE)]
        host.say(say.BRING, version, writer.extra, writer.checksum, [len(piece) for piece in pieces], base, head)
        node.sending = []
        for piece in pieces:
            store.hold(writer)
            work = host.link.send_tensor(piece, line)
            node.sending.append(work)
            work._follow(functools.partial(self._sent, node, line, version, store, writer, work))

    def _sent(
        self, node: _FarNode, line: int, version: int, store: Store, writer: SlotWriter, work: Work[None]
    ) -> None:
        store.let_go(writer)
        try:
            work._result()
        except Exception as error:
            with self._lock:
                if (node.line, node.coming) != (line, version):
                    return
                self._next_host(node, store)
                node.attempts += 1
                if node.attempts < len(node.outlets):
                    self._bring(node, version, node.waiting)
                else:
                    waiting, node.waiting = node.waiting, []
                    self._landed(waiting, version, None, error)

    def landed(self, outlet: Outlet, version: int, failure: bytes | None, memory: Any) -> None:
        """The host of a machine has a version, or has not."""
        node = self._of(outlet)
        if node is None or node.outlets[0] is not outlet or version != node.coming:
            return
        waiting, node.waiting, node.coming, node.sending = node.waiting, [], 0, []
        if failure is not None and self._delta is not None and self._delta[0] == version and not node.has_failed:
            node.has_failed = node.needs_all = True  # whatever was wrong with what has changed: now everything
            self._bring(node, version, waiting)
            return
        node.has_failed = False
        if failure is None:
            node.memory, node.version, node.is_doubted = memory, version, False
        self._landed(waiting, version, memory, None if failure is None else say.unpack_error(failure))

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
        was_host = node.outlets[0] is outlet
        node.outlets.remove(outlet)
        node.waiting = [other for other in node.waiting if other is not outlet]
        if was_host and self._source is not None:
            coming, waiting = node.coming, node.waiting
            self._appoint(node, self._source[0])
            if coming and waiting:
                self._bring(node, coming, waiting)

    def _of(self, outlet: Outlet) -> _FarNode | None:
        node = None if outlet.link.node is None else self._nodes.get(outlet.link.node)
        return node if node is not None and outlet in node.outlets else None

    def close(self) -> None:
        for node in self._nodes.values():
            self._give_up(node)
        self._nodes.clear()
        self._source = self._delta = None

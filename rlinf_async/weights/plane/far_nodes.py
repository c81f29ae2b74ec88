"""Receivers on other machines: one of each machine receives a version, and the others read it there.

sender ── HOST ──► the first receiver of a machine   it makes memory for all of that machine
sender ── BRING ──► it ── ROOM ──► sender            it waits for the memory, in pieces, straight into a slot
sender ── pieces, as soon as they are packed ──► it
sender ── WHOLE ──► it ── LANDED ──► sender          once the version is published and everything has arrived
sender ── PUBLISH ──► everybody there

Where two or more machines get all of a large version, they make a chain (``chain``), and the sender's network carries
it once.  The hosts of two neighbours exchange tensors and no words; who passes what on to whom, the sender says::

    sender ── BRING, from the first ──► the second ── ROOM ──► sender
    sender ── PASS, to the second ──► the first
    the first ── every piece, as soon as it has arrived ──► the second

No slot is used again while it is sent from: here nor there.  Late receivers, what has changed (a delta), and a machine
whose host was late get it from the sender.  When something breaks, whoever was behind it in the chain begins again on a
line of its own, with all that there is:

* A host dies, or cannot receive.  Those behind it follow the one before it, or the sender.
* STUCK: a host cannot pass it on.  LANDED with an error: nothing has come for a part of the time that there is; whoever
  should have sent it is stopped, perhaps, or there is no way between the two.  The one that lacks it, and those behind
  it, get it from the sender, with a warning; the two are not neighbours again for a while.
"""

from __future__ import annotations

import functools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rlinf_async.errors import PeerLost, TransferFailed, WorkerDied
from rlinf_async.weights.memory.slot import SlotWriter
from rlinf_async.weights.memory.store import Store
from rlinf_async.weights.model.delta import Delta
from rlinf_async.weights.plane.outgoing import Coming, FarNode, Outgoing
from rlinf_async.weights.state import words as say
from rlinf_async._messaging.state.chain import CHAIN_FROM, DISTRUST, Chain, chain_sizes
from rlinf_async.work import Work

if TYPE_CHECKING:
    from rlinf_async.weights.plane.outlet import Outlet

logger = logging.getLogger(__name__)

Landed = Callable[[Iterable[Any], int, Any, Exception | None], None]


class FarNodes:
    """All other machines.

    Args:
        landed: called with receivers, a version, the memory where it is, or why it is nowhere.
        lock: held by the owner around every call.
    """

    def __init__(self, landed: Landed, lock: threading.RLock) -> None:
        self._landed = landed
        self._lock = lock
        self._nodes: dict[int, FarNode] = {}
        self._lines = secrets.randbits(48)
        """The last that was given out.  Machines know their neighbours by it, whoever else sends to them."""
        self._chain = Chain()
        """Of what is being packed, or was published last."""
        self._store: Store | None = None
        self._outgoing: Outgoing | None = None
        """What is being packed, or was published last."""
        self._delta: tuple[int, int, Delta] | None = None
        """The version, its base, and how it differs from that."""

    def greet(self, outlet: Outlet, store: Store, latest: SlotWriter | None) -> None:
        """A receiver on another machine is told what comes.

        Args:
            latest: what was published last; the store may have the next version already.
        """
        assert outlet.link.node is not None
        self._store = store
        node = self._nodes.setdefault(outlet.link.node, FarNode(outlet.link.node))
        node.outlets.append(outlet)
        if node.is_hosted:
            outlet.say(say.HELLO, store.manifest.to_bytes(), store.extra, store.slots, node.memory, node.version)
        else:
            self._appoint(node, store)
        self._catch_up(node, [outlet], store, latest)

    def catch_up(self, outlet: Outlet, store: Store, latest: SlotWriter | None) -> None:
        """A receiver that has refused what comes takes it now; as ``greet``."""
        node = self._of(outlet)
        if node is None or latest is None:
            return
        if node.version >= latest.version:
            self._landed([outlet], node.version, node.memory, None)
        self._catch_up(node, [outlet], store, latest)

    def _catch_up(self, node: FarNode, waiting: list[Outlet], store: Store, latest: SlotWriter | None) -> None:
        """They get what was published last, if it is not there."""
        if latest is None or node.version >= latest.version:
            return
        if node.coming is not None and node.coming.outgoing.version >= latest.version:
            node.coming.waiting += waiting
            return
        outgoing = Outgoing(latest.version, store, latest, 0.0)
        outgoing.publish()
        self._bring(node, outgoing, waiting)

    def _appoint(self, node: FarNode, store: Store) -> None:
        """The first receiver of this machine receives for all, into memory that it makes now."""
        self._give_up(node)
        node.memory, node.version, node.is_doubted = None, 0, False
        self._lines += 1
        node.line = self._lines
        node.is_hosted = bool(node.outlets)
        if node.is_hosted:
            facts = (store.manifest.to_bytes(), store.extra, store.slots, None, 0, node.line)
            node.outlets[0].say(say.HOST, *facts)

    def _next_host(self, node: FarNode, store: Store) -> None:
        """It is another receiver's turn, if there is one; who was the host gives its memory back."""
        before = node.outlets.pop(0)
        node.outlets.append(before)
        self._appoint(node, store)
        if before in node.outlets[1:]:  # nobody is left where it was alone, and is found to be gone when it is told
            before.say(say.HELLO, store.manifest.to_bytes(), store.extra, store.slots, None, 0)

    def _give_up(self, node: FarNode) -> None:
        """What is on its way is not wanted any more."""
        coming, node.coming = node.coming, None
        if coming is not None:
            coming.end(given_up=True)
            if coming.source is not None and coming.is_asked and coming.source.link.error is None:
                coming.source.say(say.KEEP, node.line)

    # -- what is packed and published ---------------------------------------------------------------------------

    def begin(
        self, version: int, outlets: Iterable[Outlet], store: Store, writer: SlotWriter, seconds: float = 60.0
    ) -> bool:
        """A version for these receivers is being packed: what is packed leaves at once.  False if for none of them.

        Args:
            seconds: that they have, once it is published.
        """
        self._outgoing, self._delta = outgoing, _ = Outgoing(version, store, writer, seconds), None
        numbers = dict.fromkeys(outlet.link.node for outlet in outlets)
        nodes = [self._nodes[number] for number in numbers if number in self._nodes]
        for node in self._plan(nodes, outgoing):
            node.attempts = 0
            self._bring(node, outgoing, [])
        return any(node.expects(version) for node in nodes)

    def _plan(self, nodes: Iterable[FarNode], outgoing: Outgoing) -> list[FarNode]:
        """Those that can get all of it now, and how."""
        able = [node for node in nodes if node.is_hosted and node.coming is None and not node.is_doubted]
        chained = [node.number for node in able if node.outlets[0].link.address is not None]
        if outgoing.nbytes < CHAIN_FROM or len(chained) < 2:
            chained = []
        else:
            outgoing.sizes = chain_sizes(outgoing.nbytes)
        self._chain.plan(chained, time.monotonic())
        return able

    def packed(self, version: int, nbytes: int) -> None:
        """So many bytes of a version that was begun will not change any more."""
        outgoing = self._outgoing
        if outgoing is not None and outgoing.version == version:
            outgoing.packed = nbytes
            for node in list(self._nodes.values()):
                if node.expects(version):
                    self._go_on(node)

    def abandon(self, version: int) -> None:
        """A version that was begun is not published, and is in the store no more."""
        outgoing = self._outgoing
        if outgoing is not None and outgoing.version == version and outgoing.facts is None:
            self._outgoing = None
            for node in list(self._nodes.values()):
                if node.coming is not None and node.expects(version):
                    waiting = node.coming.waiting
                    self._appoint(node, outgoing.store)
                    if waiting:
                        self._catch_up(node, waiting, outgoing.store, outgoing.store.latest)

    def bring(
        self,
        version: int,
        outlets: Iterable[Outlet],
        store: Store,
        writer: SlotWriter,
        delta: tuple[int, Delta] | None = None,
        seconds: float = 60.0,
    ) -> None:
        """Sends a version that is published to the machines of these receivers.

        Args:
            delta: what has changed, and since which version: it is enough where that one is.
            seconds: that the receivers have.
        """
        by_node: dict[int, list[Outlet]] = {}
        for outlet in outlets:
            assert outlet.link.node is not None
            by_node.setdefault(outlet.link.node, []).append(outlet)
        outgoing = self._outgoing
        if outgoing is None or outgoing.version != version or outgoing.writer is not writer:
            outgoing = self._outgoing = Outgoing(version, store, writer, seconds)
            self._plan([self._nodes[number] for number in by_node] if delta is None else (), outgoing)
        outgoing.publish()
        self._delta = (version, *delta) if delta is not None else None
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

    def _bring(self, node: FarNode, outgoing: Outgoing, waiting: list[Outlet]) -> None:
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
        number = self._chain.source(node.number) if outgoing is self._outgoing else None
        source = None if number is None else self._nodes[number].outlets[0]
        node.coming = coming = Coming(outgoing, waiting, delta, source)
        facts = (version, coming.sizes, base, b"" if delta is None else delta.head)
        if source is None:
            node.outlets[0].say(say.BRING, *facts)
        else:
            patience = self._chain.patience(node.number, outgoing.seconds)
            node.outlets[0].say(say.BRING, *facts, source.link.address, patience)
            self._go_on(node)

    def room(self, outlet: Outlet, version: int, line: int) -> None:
        """The host of a machine expects the pieces of a version."""
        node = self._of(outlet)
        if node is not None and node.line == line and node.coming is not None and node.expects(version):
            node.coming.has_room = True
            self._go_on(node)

    def _go_on(self, node: FarNode) -> None:
        """Sends, or has sent, what can be sent now."""
        coming, line = node.coming, node.line
        if coming is None or not (coming.has_room or coming.source):
            return
        outgoing, host = coming.outgoing, node.outlets[0]
        if coming.source is not None and coming.has_room and not coming.is_asked:
            coming.is_asked = True
            coming.source.say(say.PASS, outgoing.version, host.link.address, line)
        while coming.source is None and node.coming is coming and (piece := coming.next_piece()) is not None:
            outgoing.store.hold(outgoing.writer)
            work = host.link.send_tensor(piece, line)
            coming.sent.append(work)
            work._follow(functools.partial(self._sent, node, coming, line, work))
        if node.coming is coming and outgoing.facts is not None and not coming.is_told:
            coming.is_told = True
            host.say(say.WHOLE, outgoing.version, *outgoing.facts)

    def _sent(self, node: FarNode, coming: Coming, line: int, work: Work[None]) -> None:
        outgoing = coming.outgoing
        with self._lock:
            outgoing.store.let_go(outgoing.writer)
            try:
                work._result()
            except Exception as error:
                if node.coming is not coming or node.line != line:
                    return
                behind = self._chain.leave(node.number)
                self._next_host(node, outgoing.store)
                node.attempts += 1
                if node.attempts < len(node.outlets):
                    self._bring(node, outgoing, coming.waiting)
                else:
                    self._landed(coming.waiting, outgoing.version, None, error)
                self._begin_again(behind, outgoing)

    def landed(self, outlet: Outlet, version: int, failure: bytes | None, memory: Any, line: int) -> None:
        """The host of a machine has a version, or has not."""
        node = self._of(outlet)
        if node is None or node.line != line or node.coming is None or not node.expects(version):
            return
        if failure is not None and node.coming.source is not None:
            self._cut(node, node.coming, say.unpack_error(failure))
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
            self._chain.landed(node.number)
            self._landed(coming.waiting, version, memory, None)
        else:
            behind = self._chain.leave(node.number)
            self._landed(coming.waiting, version, None, say.unpack_error(failure))
            self._begin_again(behind, coming.outgoing)

    # -- along the chain ----------------------------------------------------------------------------------------

    def stuck(self, outlet: Outlet, line: int, failure: bytes) -> None:
        """A host cannot pass on what it was told to."""
        for node in list(self._nodes.values()):
            if node.line == line and node.coming is not None and node.coming.source is outlet:
                self._cut(node, node.coming, say.unpack_error(failure))

    def _cut(self, node: FarNode, coming: Coming, error: Exception) -> None:
        """Nothing comes from its source any more."""
        if isinstance(error, WorkerDied):
            return  # one of the two, which is heard here too
        assert coming.source is not None
        logger.warning(
            "version %d could not come to %s from %s, and comes from here; the two are kept apart for %.0f s: %s",
            *(coming.outgoing.version, node.outlets[0].link.label, coming.source.link.label, DISTRUST, error),
        )
        self._begin_again(self._chain.cut(node.number, time.monotonic()), coming.outgoing)

    def _begin_again(self, numbers: Iterable[int], outgoing: Outgoing) -> None:
        """These get all of it once more, each from its source."""
        for number in numbers:
            node = self._nodes[number]
            if node.coming is not None and node.coming.outgoing is outgoing:
                waiting = node.coming.waiting
                self._appoint(node, outgoing.store)
                node.attempts = 0
                self._bring(node, outgoing, waiting)

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
            behind = self._chain.leave(node.number)
            self._appoint(node, self._store)
            if coming is not None and coming.waiting:
                self._bring(node, coming.outgoing, coming.waiting)
            if self._outgoing is not None:
                self._begin_again(behind, self._outgoing)

    def _of(self, outlet: Outlet) -> FarNode | None:
        node = None if outlet.link.node is None else self._nodes.get(outlet.link.node)
        return node if node is not None and outlet in node.outlets else None

    def close(self) -> None:
        for node in self._nodes.values():
            self._give_up(node)
        self._nodes.clear()
        self._store = self._outgoing = self._delta = None

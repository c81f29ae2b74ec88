"""Links, threads and timers of weights within one process, each step of which somebody else chooses.

A step is a word that arrives, a piece that comes through, a job of a thread: so every order that may happen happens.
"""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from typing import Any

from rlinf_async.errors import ClosedError, PeerLost, TransferFailed, WorkerDied
from rlinf_async.weights.waiting.aside import outlast
from rlinf_async.work import Work
from tests._support.weight_parts import Link

Step = Callable[[], object]


class Network:
    """All that may happen next.

    Attributes:
        queues: by whom they belong to, steps of which only the first may happen.
        timers: what happens after some seconds.
        meanwhile: called where a thread is in the middle of a job.
        faults: what never should.
    """

    def __init__(self) -> None:
        self.queues: dict[Hashable, deque[Step]] = defaultdict(deque)
        self.timers: list[Step] = []
        self.meanwhile: Step = lambda: None
        self.faults: list[str] = []
        self._pieces: list[Piece] = []
        """Sides of transfers that have not ended, in their order."""
        self._dead: set[Any] = set()
        self._busy: list[Hashable] = []

    def enabled(self) -> list[Hashable]:
        return [key for key, queue in self.queues.items() if queue and key not in self._busy]

    def run(self, key: Hashable) -> None:
        self._busy.append(key)
        try:
            self.queues[key].popleft()()
        finally:
            self._busy.pop()

    def add(self, piece: Piece) -> None:
        """Has it come through, once both sides are there."""
        if dead := self._dead.intersection(piece.ends):
            piece._settle(error=WorkerDied(f"receiver {dead.pop()} was killed"))
            return
        others = [each for each in self._pieces if each.ends == piece.ends and each.line == piece.line]
        met = next((each for each in others if each.is_sent != piece.is_sent and each.partner is None), None)
        self._pieces.append(piece)
        if met is not None:
            met.partner, piece.partner = piece, met
            sent, awaited = (piece, met) if piece.is_sent else (met, piece)
            self.queues["line", *piece.ends, piece.line].append(functools.partial(self._move, sent, awaited))

    def _move(self, sent: Piece, awaited: Piece) -> None:
        if sent.done() or awaited.done():
            return
        if sent.memory.nbytes != awaited.memory.nbytes:
            self.faults.append(f"{sent.memory.nbytes} bytes met {awaited.memory.nbytes} on line {sent.line}")
        awaited.memory.copy_(sent.memory)
        for piece in (awaited, sent):
            self._pieces.remove(piece)
            piece._settle()

    def give_up(self, piece: Piece, error: Exception) -> None:
        if piece in self._pieces:
            self._pieces.remove(piece)
            piece._settle(error=error)
            if piece.partner is not None:  # its other side hears so, as of a message that is withdrawn half way
                self.give_up(piece.partner, TransferFailed("the other side gave it up"))

    def leave(self, process: Any, peer: Any) -> None:
        """A link is closed: its pieces are given up."""
        for piece in reversed(self._pieces.copy()):
            if piece.ends in ((process, peer), (peer, process)) and piece.is_sent == (piece.ends[0] == process):
                self.give_up(piece, ClosedError("the link is closed"))

    def die(self, process: Any) -> None:
        """Whoever exchanges pieces with a process hears that it is dead."""
        self._dead.add(process)
        for piece in self._pieces.copy():
            if process in piece.ends:
                self.give_up(piece, WorkerDied(f"receiver {process} was killed"))


class Piece(Work[None]):
    """One side of a transfer from the first of its ends to the second."""

    def __init__(self, network: Network, ends: tuple[Any, Any], line: int, memory: Any, *, is_sent: bool) -> None:
        super().__init__()
        self.ends, self.line, self.memory, self.is_sent = ends, line, memory, is_sent
        self.partner: Piece | None = None
        self._network = network
        network.add(self)

    def _abandon(self) -> None:
        self._network.give_up(self, TransferFailed("it was given up"))


class SimulatedLink(Link):
    """One end; what it says arrives when that step is chosen."""

    def __init__(self, network: Network, me: Any, other: Any, node: int | None) -> None:
        super().__init__(f"receiver {other}" if me == 0 else "the sender")
        self.network, self.me, self.other = network, me, other
        self.node = node
        """None on the sender's machine."""
        self.address = other if node is not None else None
        self.far_end: SimulatedLink | None = None
        self.opened._settle()

    @classmethod
    def pair(cls, network: Network, receiver: int, node: int) -> tuple[SimulatedLink, SimulatedLink]:
        """The sender's end and the receiver's; the sender is process 0 on node 0."""
        ends = cls(network, 0, receiver, node or None), cls(network, receiver, 0, 0 if node else None)
        ends[0].far_end, ends[1].far_end = ends[1], ends[0]
        return ends

    def _queue(self) -> deque[Step]:
        return self.network.queues["link", self.me, self.other]

    def _send(self, words: Any) -> None:
        far, words = self.far_end, list(words)
        if far is not None:  # or it is dead, and nobody here has heard so
            self._queue().append(lambda: far._arrive(words))

    def _close(self) -> None:
        far, self.far_end = self.far_end, None
        self.network.leave(self.me, self.other)
        if far is not None:
            self._queue().append(lambda: far._end(ClosedError(f"{far.label} has closed its end of the link")))

    def cut(self, error: PeerLost) -> None:
        """The process at the other end is dead; what it has said before is heard yet."""
        self.far_end = None
        self.network.queues["link", self.other, self.me].append(lambda: self._end(error))

    def send_tensor(self, tensor: Any, line: int, receiver: Any = None) -> Work[None]:
        ends = (self.me, self.other if receiver is None else receiver)
        return Piece(self.network, ends, line, tensor, is_sent=True)

    def receive_tensor(self, tensor: Any, line: int, sender: Any = None) -> Work[None]:
        ends = (self.other if sender is None else sender, self.me)
        return Piece(self.network, ends, line, tensor, is_sent=False)

    def later(self, seconds: float, callback: Step) -> None:
        self.network.timers.append(callback)


class SimulatedThread:
    """In the place of ``LazyThread``."""

    network: Network

    def __init__(self, name: str) -> None:
        self._key = ("thread", name, id(self))

    def submit(self, job: Step) -> None:
        self.network.queues[self._key].append(job)


class SimulatedAside:
    """In the place of ``Aside``."""

    network: Network

    def __init__(self, label: str) -> None:
        self.label = label
        self._is_closed = False

    @property
    def _jobs(self) -> deque[Step]:
        return self.network.queues["aside", self.label, id(self)]

    async def do(self, function: Callable[..., Any], *args: Any, nbytes: int | None) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def job() -> None:
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)

        self._jobs.append(job)
        return await outlast(future)

    async def wait(self) -> None:
        await self.do(lambda: None, nbytes=None)

    def start(self, function: Callable[..., None], *args: Any, nbytes: int | None) -> None:
        if not self._is_closed:
            self._jobs.append(lambda: function(*args))

    async def end(self) -> None:
        await self.wait()
        self.close()

    def close(self) -> None:
        self._is_closed = True
        while self._jobs:
            self._jobs.popleft()()

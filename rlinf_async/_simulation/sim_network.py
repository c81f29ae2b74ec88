"""``SimNetwork``: links between simulated daemons, over streams with delays, partitions and broken connections."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from rlinf_async import settings
from rlinf_async._core import clock
from rlinf_async._simulation.scheduler import Scheduler, SimulationError
from rlinf_async._simulation.sim_process import SimProcess
from rlinf_async._wire.daemon_link import Broken, LinkEnded, PeerLink, Received, Wire
from rlinf_async.errors import AuthError, NodeLost

_DELAY_S: Final = (0.0001, 0.002)
_CALM_S: Final = 60.0
"""Seconds from the last disturbance until heartbeats stop; longer than any lease."""
_MAX_IN_FLIGHT: Final = 64
"""Number of messages in transit beyond which a sender waits, like the windows of TCP and gRPC."""
_MINUTE_S: Final = 60.0
_MAX_CONNECTIONS: Final = 100
"""Maximum number of connections between two daemons per minute; above it, a daemon must keep breaking them."""


class SimStream:
    def __init__(self, cable: Cable, node: int, peer: int) -> None:
        self.cable = cable
        self.node = node
        self._peer_node = peer
        self._inbox: deque[bytes] = deque()
        self._readable = asyncio.Event()
        self._room = asyncio.Event()
        self._in_flight: deque[bytes] = deque()
        self._last_arrival = 0.0
        self.broken = ""
        self.other: SimStream

    async def read(self) -> bytes:
        while not self._inbox:
            if self.broken:
                raise Broken(self.broken)
            self._readable.clear()
            await self._readable.wait()
        return self._inbox.popleft()

    async def write(self, data: bytes) -> None:
        while not self.broken and len(self._in_flight) >= _MAX_IN_FLIGHT:
            self._room.clear()
            await self._room.wait()
        if self.broken:
            raise Broken(self.broken)
        self._in_flight.append(data)
        fabric = self.cable.fabric
        scheduler = fabric.scheduler
        arrival = max(self._last_arrival, scheduler.now + scheduler.random.uniform(*_DELAY_S))
        self._last_arrival = arrival
        scheduler.at(arrival, self._arrive)

    def _arrive(self) -> None:
        """Deliver the next message, or hold it until the network is restored."""
        if self.broken or not self._in_flight:
            return
        fabric = self.cable.fabric
        if fabric.is_cut(self.node, self._peer_node):
            fabric.held.append((self.node, self._peer_node, self._arrive))
            return
        if (until := self.cable.waits_until.get(self.node, 0.0)) > fabric.scheduler.now:
            fabric.scheduler.at(until, self._arrive)
            return
        other = self.other
        other._inbox.append(self._in_flight.popleft())
        fabric.wake(other.node, other._readable)
        fabric.wake(self.node, self._room)

    def end(self, reason: str) -> None:
        if not self.broken:
            self.broken = reason
            self.cable.fabric.wake(self.node, self._readable)
            self.cable.fabric.wake(self.node, self._room)


class Cable:
    """A connection between two daemons, with two streams."""

    def __init__(self, fabric: Fabric, near: int, far: int) -> None:
        self.fabric = fabric
        self.nodes = (near, far)
        self.made_at = fabric.scheduler.now
        self.waits_until: dict[int, float] = {}
        """Maps each node to the time until which its data is delayed after a cut, as by TCP's backoff."""
        self._ends: dict[int, tuple[SimStream, SimStream]] = {}
        for node, peer in ((near, far), (far, near)):
            self._ends[node] = (SimStream(self, node, peer), SimStream(self, node, peer))
        for near_stream, far_stream in zip(self._ends[near], self._ends[far], strict=True):
            near_stream.other, far_stream.other = far_stream, near_stream

    def wire(self, node: int) -> Wire:
        async def hang_up(in_order: bool) -> None:
            self.end("the other side has hung up", but=node)

        control, bulk = self._ends[node]
        return Wire(control, bulk, hang_up)

    def end(self, reason: str, but: int = -1) -> None:
        """Break the connection; both nodes notice this unless the network is cut."""
        scheduler = self.fabric.scheduler
        for node in self.nodes:
            if node == but:
                for stream in self._ends[node]:
                    stream.end("this side has hung up")
                continue

            def deliver_end(node: int = node) -> None:
                other = self.nodes[0] + self.nodes[1] - node
                if self.fabric.is_cut(other, node):
                    self.fabric.held.append((other, node, deliver_end))
                    return
                for stream in self._ends[node]:
                    stream.end(reason)

            scheduler.after(scheduler.random.uniform(*_DELAY_S) + _DELAY_S[1], deliver_end)


class SimPeerLink(PeerLink):
    """A link that sends no heartbeats while the network is intact, because they would change nothing."""

    network: SimNetwork
    _sleeps = False

    def _on_beat(self) -> None:
        if self.network.fabric.is_whole and self._present is not None and self._listening.is_set():
            self._sleeps = True
        else:
            super()._on_beat()

    def wake_up(self) -> None:
        if self._sleeps and not self._has_ended:
            self._sleeps = False
            self._last_arrival = self._last_beat = clock.monotonic()
            super()._on_beat()

    @property
    def seconds_down(self) -> float:
        return 0.0 if self._sleeps else super().seconds_down


class Fabric:
    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.networks: dict[int, SimNetwork] = {}
        self.held: list[tuple[int, int, Callable[[], None]]] = []
        """Callbacks that wait for the path between two nodes, each with its source and target node."""
        self.cables: list[Cable] = []
        self.is_whole = True
        self._cuts: dict[tuple[int, int], float] = {}
        self._silent_until = 0.0

    def disturb(self) -> None:
        """Mark the network as possibly faulty, which resumes all links' heartbeats."""
        if self.is_whole:
            self.is_whole = False
            for network in self.networks.values():
                if not network.process.has_ended:
                    network.loop.call_soon(network.wake_links)

    def calm(self) -> None:
        if not any(until > self.scheduler.now for until in (self._silent_until, *self._cuts.values())):
            self.is_whole = True

    def expect_silence(self, seconds: float) -> None:
        """Announce that a daemon will be stopped for some seconds."""
        self.disturb()
        self._silent_until = max(self._silent_until, self.scheduler.now + seconds)
        self.scheduler.after(seconds + _CALM_S, self.calm)

    def is_cut(self, source: int, target: int) -> bool:
        return self._cuts.get((source, target), 0.0) > self.scheduler.now

    def cut(self, source: int, target: int, seconds: float) -> None:
        self.disturb()
        until = self.scheduler.now + seconds
        self._cuts[source, target] = max(until, self._cuts.get((source, target), 0.0))
        self.scheduler.at(until, self._release)
        for cable in self.cables:
            if {source, target} == set(cable.nodes):
                cable.waits_until[source] = until + self.scheduler.random.uniform(0, seconds)

    def connect(self, near: int, far: int) -> Cable:
        cable = Cable(self, near, far)
        self.cables.append(cable)
        recent = self.made_since(self.scheduler.now - _MINUTE_S)
        if sum(set(each.nodes) == {near, far} for each in recent) > _MAX_CONNECTIONS:

            def end() -> None:
                raise SimulationError(f"nodes {near} and {far} break each of their connections as soon as it is made")

            self.scheduler.after(0, end)
        return cable

    @property
    def recovers_at(self) -> float:
        """Time by which TCP has resent everything delayed by earlier faults."""
        waits = [until for cable in self.cables for until in cable.waits_until.values()]
        return max([self._silent_until, *self._cuts.values(), *waits])

    def made_since(self, moment: float) -> list[Cable]:
        return list(itertools.takewhile(lambda cable: cable.made_at >= moment, reversed(self.cables)))

    def _release(self) -> None:
        self.scheduler.after(_CALM_S, self.calm)
        held, self.held = self.held, []
        for source, target, callback in held:
            if self.is_cut(source, target):
                self.held.append((source, target, callback))
            else:
                callback()

    def wake(self, node: int, event: asyncio.Event) -> None:
        network = self.networks[node]
        if not network.process.has_ended:
            network.loop.call_soon(event.set)

    def end_node(self, node: int) -> None:
        """Break all connections of an ended daemon."""
        self.disturb()
        self.scheduler.after(_CALM_S, self.calm)
        for cable in self.cables:
            if node in cable.nodes:
                cable.end("the connection was reset", but=node)


class SimNetwork:
    def __init__(self, fabric: Fabric, node: int, process: SimProcess, loop: asyncio.AbstractEventLoop) -> None:
        self.fabric = fabric
        self.node = node
        self.process = process
        self.loop = loop
        self._on_link: Callable[[PeerLink], None] | None = None
        self._accepted: dict[int, PeerLink] = {}
        self._links: list[SimPeerLink] = []
        self._tasks: set[asyncio.Task[None]] = set()
        fabric.networks[node] = self

    async def serve(self, on_link: Callable[[PeerLink], None]) -> str | None:
        self._on_link = on_link
        return f"node{self.node}"

    async def stop(self) -> None:
        self._on_link = None

    async def dial(self, peer: int, address: str) -> PeerLink:
        cable, _ = await self._connect(peer, None, settings.NODE_LINK_TIMEOUT_S())
        return self._link(peer, cable.wire(self.node), lambda got, timeout: self._redial(peer, got, timeout))

    def _link(
        self,
        peer: int,
        wire: Wire,
        redial: Callable[[Received, float], Awaitable[tuple[Wire, Received]]] | None = None,
    ) -> PeerLink:
        link = SimPeerLink(
            peer, wire, lease=settings.LEASE_S(), address=f"node{peer}", accepts=self._accepts, redial=redial
        )
        link.network = self
        self._links.append(link)
        return link

    def wake_links(self) -> None:
        for link in self._links:
            link.wake_up()

    async def _accepts(self, address: str, timeout: float) -> bool | None:
        """True if the peer's daemon is alive, False if it has ended, None if the path to it is cut."""
        peer = int(address.removeprefix("node"))
        await self._pause()
        if self.fabric.is_cut(self.node, peer) or self.fabric.is_cut(peer, self.node):
            await _wait(timeout)
            return None
        return not self.fabric.networks[peer].process.has_ended

    async def _redial(self, peer: int, received: Received, timeout: float) -> tuple[Wire, Received]:
        cable, peer_received = await self._connect(peer, received, timeout)
        return cable.wire(self.node), peer_received

    async def _connect(self, peer: int, received: Received | None, timeout: float) -> tuple[Cable, Received]:
        """Open a connection to another daemon; return it with the peer's received counts.

        Raises:
            NodeLost: the peer does not answer or refuses.
            AuthError: the peer refuses to continue the link.
        """
        fabric = self.fabric
        await self._pause()
        far = fabric.networks[peer]
        if fabric.is_cut(self.node, peer) or fabric.is_cut(peer, self.node):
            await _wait(timeout)
            raise NodeLost(f"node {peer} does not answer")
        if far.process.has_ended or far._on_link is None:
            raise NodeLost(f"node {peer} refuses connections")
        cable = fabric.connect(self.node, peer)
        answer: asyncio.Future[Received] = self.loop.create_future()
        far.loop.call_soon(far._accept, self, cable, received, answer)
        try:
            async with asyncio.timeout(timeout):
                return cable, await answer
        except TimeoutError:
            raise NodeLost(f"node {peer} does not answer") from None

    def _accept(
        self, dialler: SimNetwork, cable: Cable, received: Received | None, answer: asyncio.Future[Received]
    ) -> None:
        task = self.loop.create_task(self._greet(dialler, cable, received, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greet(
        self, dialler: SimNetwork, cable: Cable, received: Received | None, answer: asyncio.Future[Received]
    ) -> None:

        def send_answer(result: Received | Exception) -> None:
            def settle() -> None:
                if answer.done():
                    return
                if isinstance(result, Exception):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)

            if not dialler.process.has_ended:
                dialler.loop.call_soon(settle)

        if self._on_link is None:
            send_answer(NodeLost(f"node {self.node} is ending"))
            return
        if received is None:
            link = self._accepted[dialler.node] = self._link(dialler.node, cable.wire(self.node))
            self._on_link(link)
            send_answer((0, 0))
            return
        link = self._accepted[dialler.node]
        try:
            own_received = await link.suspend()
        except LinkEnded as error:
            send_answer(AuthError(str(error)))
            return
        link.resume(cable.wire(self.node), received)
        send_answer(own_received)

    async def _pause(self) -> None:
        await _wait(self.fabric.scheduler.random.uniform(*_DELAY_S))


async def _wait(seconds: float) -> None:
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)

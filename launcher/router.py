"""Who is attached to this node, and how a frame reaches the one that it is meant for.

The router reads headers and never bodies.  An *endpoint* is a local process with a socket (a driver or a worker); a
*neighbour* is another node's daemon.  A frame's source is taken from the connection that it came on, never from what
it says of itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from rlinf_async.core import frames
from rlinf_async.core.calls import Debts
from rlinf_async.core.frames import Status
from rlinf_async.core.segment import close_fds
from rlinf_async.wire.unix import Connection

from .gathering import PATIENCE, Answer, Gathering
from .neighbour import Neighbour
from .processes import WorkerProcess

logger = logging.getLogger(__name__)

class Endpoint:
    """A process attached to this node.

    Attributes:
        number: its id on this node.
        process: the worker process behind it; None for a driver.
        debts: calls that it has accepted and not yet answered.
        obituary: once it is dead, the body of the answers to its calls.
    """

    def __init__(self, node: int, number: int, role: str) -> None:
        self.id = frames.endpoint(node, number)
        self.number = number
        self.role = role
        self.process: WorkerProcess | None = None
        self.debts = Debts()
        self.obituary: bytes | None = None
        self.connection: Connection | None = None
        self.pidfd = -1

    def __repr__(self) -> str:
        return f"<Endpoint {self.role} {self.number} [{len(self.debts)} calls open]>"

    def send(self, frame: frames.Frame, fds: Sequence[int] = ()) -> None:
        if self.connection is None:
            close_fds(fds)
        else:
            self.connection.send(frame, fds)


class Router:
    """The tables of one node and the rules by which frames move between them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, node: int, on_ask: Callable[[int, int, str, Any], None]
    ) -> None:
        self.node = node
        self._loop = loop
        self._gathering = Gathering()
        self._release_timer: asyncio.TimerHandle | None = None
        self.endpoints: dict[int, Endpoint] = {}
        self.neighbours: dict[int, Neighbour] = {}
        self._on_ask = on_ask
        self._numbers = 0

    def __repr__(self) -> str:
        return f"<Router node {self.node} [{len(self.endpoints)} endpoints, {len(self.neighbours)} neighbours]>"

    def new_endpoint(self, role: str) -> Endpoint:
        self._numbers += 1
        endpoint = Endpoint(self.node, self._numbers, role)
        self.endpoints[endpoint.number] = endpoint
        return endpoint

    # -- frames from local processes ------------------------------------------------------------------------------

    def from_endpoint(self, source: Endpoint, frame: list[Any], fds: list[int]) -> None:
        kind = frame[0]
        frame[2] = source.id
        if kind == frames.CALL:
            self._route_call(frame, fds)
        elif kind == frames.REPLY:
            if frame[6] in frames.FINAL:
                source.debts.pay(frame[3], frame[4])
                self._gather(frame, fds)
            else:
                self.deliver(frame, fds)
        elif kind in (frames.CANCEL, frames.CREDIT):
            self._route_signal(frame)
        elif kind == frames.ASK:
            close_fds(fds)
            if frame[3] == self.node:
                self._on_ask(source.id, frame[4], frame[5], frame[6])
            else:
                self._to_neighbour(frame[3], frame, ())
        else:
            close_fds(fds)
            if kind != frames.HELLO:
                logger.warning("%r sent a frame of kind %d, which is not its to send", source, kind)

    # -- frames from other nodes --------------------------------------------------------------------------------

    def from_neighbour(self, neighbour: Neighbour, frame: list[Any], fds: list[int]) -> None:
        if frames.node_of(frame[2]) != neighbour.node:
            close_fds(fds)
            logger.error("node %d sent a frame in the name of node %d", neighbour.node, frames.node_of(frame[2]))
            return
        kind = frame[0]
        if kind == frames.CALL:
            self._route_call(frame, fds)
        elif kind in (frames.REPLY, frames.ANSWER, frames.EVENT):
            self.deliver(frame, fds)
        elif kind in (frames.CANCEL, frames.CREDIT):
            self._route_signal(frame)
        elif kind == frames.ASK:
            self._on_ask(frame[2], frame[4], frame[5], frame[6])
        else:
            close_fds(fds)

    # -- moving -------------------------------------------------------------------------------------------------

    def deliver(self, frame: frames.Frame, fds: Sequence[int] = ()) -> None:
        """Sends a frame to the one endpoint that its fourth field names."""
        target = frame[3]
        node = frames.node_of(target)
        if node != self.node:
            self._to_neighbour(node, frame, fds)
            return
        endpoint = self.endpoints.get(frames.number_of(target))
        if endpoint is None:
            close_fds(fds)
        else:
            endpoint.send(frame, fds)

    def _gather(self, frame: list[Any], fds: list[int]) -> None:
        answers = self._gathering.answer(frame, fds)
        if answers:
            self._deliver_together(answers)
        elif self._release_timer is None:
            self._release_timer = self._loop.call_later(PATIENCE, self._release)

    def _release(self) -> None:
        self._release_timer = None
        for frame, fds in self._gathering.release():
            self.deliver(frame, fds)

    def _deliver_together(self, answers: list[Answer]) -> None:
        """The answers to one call, in one write."""
        target = answers[0][0][3]
        endpoint = self.endpoints.get(frames.number_of(target)) if frames.node_of(target) == self.node else None
        if len(answers) == 1 or endpoint is None or endpoint.connection is None:
            for frame, fds in answers:
                self.deliver(frame, fds)
        else:
            endpoint.connection.send_all(answers)

    def _to_neighbour(self, node: int, frame: frames.Frame, fds: Sequence[int]) -> None:
        neighbour = self.neighbours.get(node)
        if neighbour is None:
            close_fds(fds)
            if frame[0] == frames.ASK:
                error = ["LaunchError", f"there is no node {node} in this run"]
                self.deliver((frames.ANSWER, 0, frames.endpoint(self.node, 0), frame[2], frame[4], False, error))
            return
        neighbour.send(frame, fds)

    def _route_call(self, frame: list[Any], fds: list[int]) -> None:
        kind, count, source, route, call, method, credit, body = frame
        now = time.monotonic()
        mine: list[tuple[Endpoint, int]] = []
        elsewhere: list[list[Any]] = []
        for hop in route:
            node, targets = hop
            if node != self.node:
                elsewhere.append(hop)
                continue
            for index in range(0, len(targets), 2):
                number, slot = targets[index], targets[index + 1]
                endpoint = self.endpoints.get(number)
                if endpoint is None or endpoint.process is None or endpoint.obituary is not None:
                    self._refuse(source, call, slot, endpoint)
                else:
                    mine.append((endpoint, slot))
        if len(mine) > 1 and not credit:
            self._gathering.expect(source, call, len(mine))
        copies = _duplicate(fds, len(mine) + len(elsewhere))
        for endpoint, slot in mine:
            endpoint.debts.owe(source, call, slot, method, now)
            endpoint.send((kind, count, source, slot, call, method, credit, body), copies.pop() if count else ())
        for hop in elsewhere:
            fds_of_hop = copies.pop() if count else ()
            self._to_neighbour(hop[0], [kind, count, source, [hop], call, method, credit, body], fds_of_hop)

    def _refuse(self, source: int, call: int, slot: int, endpoint: Endpoint | None) -> None:
        if endpoint is not None and endpoint.obituary is not None:
            status, body = Status.DIED, endpoint.obituary
        else:
            status, body = Status.UNKNOWN, frames.pack("the worker is gone: its group was closed")
        me = frames.endpoint(self.node, 0)
        self.deliver((frames.REPLY, 0, me, source, call, slot, int(status), body))

    def _route_signal(self, frame: list[Any]) -> None:
        """A CANCEL or CREDIT: to every target of its route."""
        kind, _, source, route, *rest = frame
        for hop in route:
            node, targets = hop
            if node != self.node:
                self._to_neighbour(node, [kind, 0, source, [hop], *rest], ())
                continue
            for index in range(0, len(targets), 2):
                endpoint = self.endpoints.get(targets[index])
                if endpoint is not None:
                    endpoint.send((kind, 0, source, targets[index + 1], *rest))

    # -- ends ---------------------------------------------------------------------------------------------------

    def bury(self, endpoint: Endpoint, story: Any, *, expected: bool) -> None:
        """A worker is dead: everybody who waits for an answer of it learns the story.

        Args:
            expected: its group is being closed; then the story is only that.
        """
        endpoint.obituary = frames.pack(story)
        me = frames.endpoint(self.node, 0)
        status, body = Status.DIED, endpoint.obituary
        if expected:
            status, body = Status.UNKNOWN, frames.pack("its group was closed")
        for source, call, slot in endpoint.debts.default():
            for frame, fds in self._gathering.forget(source, call):
                self.deliver(frame, fds)
            self.deliver((frames.REPLY, 0, me, source, call, slot, int(status), body))
        if endpoint.connection is not None:
            endpoint.connection.close()

    def cancel_calls_of(self, source: int) -> None:
        """A caller is gone: nobody waits for what its calls would return."""
        for endpoint in self.endpoints.values():
            for call in endpoint.debts.of_source(source):
                endpoint.send((frames.CANCEL, 0, source, 0, call))

    def callers_on(self, node: int) -> set[int]:
        """Endpoints of a node that have calls open on workers of this one."""
        return {
            source
            for endpoint in self.endpoints.values()
            for source, _ in endpoint.debts
            if frames.node_of(source) == node
        }

    def tell(self, target: int, what: str, facts: Any) -> None:
        """Sends an event to one endpoint, wherever it lives."""
        self.deliver((frames.EVENT, 0, frames.endpoint(self.node, 0), target, what, facts))

    def tell_all(self, what: str, facts: Any) -> None:
        """Sends an event to every process of this node."""
        for endpoint in self.endpoints.values():
            if endpoint.obituary is None:
                self.tell(endpoint.id, what, facts)

    def broadcast(self, frame: frames.Frame) -> None:
        """Sends a frame to every other daemon."""
        for neighbour in self.neighbours.values():
            neighbour.send(frame)


def _duplicate(fds: list[int], copies: int) -> list[list[int]]:
    """One set of descriptors per receiver; the originals are used up."""
    if not fds:
        return []
    if not copies:
        close_fds(fds)
        return []
    sets = [[os.dup(fd) for fd in fds] for _ in range(copies - 1)]
    return [*sets, fds]


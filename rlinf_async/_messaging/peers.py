"""Table of a worker's peers: introductions, frames to peers, links, GPU negotiation (``Devices``), notices of death."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rlinf_async._client.client import NodeClient
from rlinf_async._client.requests import DaemonRequest
from rlinf_async._core import frames, operations
from rlinf_async._core.descriptors import limit_met
from rlinf_async._core.error_copy import copy_of
from rlinf_async._core.own_logger import own_logger
from rlinf_async._messaging.peer import Peer
from rlinf_async._messaging.state import message_facts
from rlinf_async._transports.devices.gpu_link_choice import GPU_LINKS, Gpu, gpu_link_between
from rlinf_async._transports.link import Post
from rlinf_async._transports.transport_choice import make_link
from rlinf_async.errors import ClosedError, ConfigError, NodeLost, PeerLost, WorkerDied

if TYPE_CHECKING:
    from rlinf_async._transports.devices.device_link import DeviceLink
    from rlinf_async._transports.devices.own_gpu import OwnGpu

logger = own_logger(__name__)

SWITCH: Final = "RLINF_GPU_LINKS"
"""Environment variable of a worker; ``0`` makes all its tensors go through CPU memory."""


def label_of(group: str, rank: int, node: str, pid: int) -> str:
    return f"rank {rank} of group '{group}' on {node} (pid {pid})"


class Peers:
    """All workers with which this worker has exchanged messages, including itself.

    Args:
        on_end: called with each peer that has ended, and once more when its rank has been restarted.
        on_facts: called with the facts and body of each frame that this worker posts to itself.
    """

    def __init__(
        self,
        client: NodeClient,
        introduction: tuple[str, int, str, int],
        address: str,
        on_end: Callable[[Peer], None],
        on_facts: Callable[[int, Any, Any, list[int]], None],
    ) -> None:
        self._client = client
        self._introduction = introduction
        self._address = address
        self._on_end = on_end
        self._on_facts = on_facts
        self._lock = threading.Lock()
        self._peers: dict[int, Peer] = {}
        self._named: dict[tuple[str, int], Peer] = {}
        self.introduction_callbacks: list[Callable[[str, int], None]] = []
        self.devices = Devices(self._send_gpu)

    @property
    def me(self) -> int:
        return self._client.endpoint

    # -- identities ---------------------------------------------------------------------------------------------

    def at(self, endpoint: int) -> Peer:
        peer = self._peers.get(endpoint)
        if peer is None:
            with self._lock:
                peer = self._peers.setdefault(endpoint, Peer(endpoint))
                if endpoint == self.me:
                    peer.is_watched = peer.is_met = True
        return peer

    def note_names(self, endpoint: int, group: str, rank: int, node: str, pid: int) -> None:
        peer = self.at(endpoint)
        peer.group, peer.rank, peer.label = group, rank, label_of(group, rank, node, pid)
        # A roster requested before a rank's return still lists the dead process. tests/_messaging/test_moments.py::
        # test_a_roster_from_before_a_return_takes_no_name_from_the_rank_that_is_back
        before = self._named.get((group, rank))
        if before is None or before.error is not None or peer.error is None:
            self._named[group, rank] = peer
            if before is not None and before is not peer and before.error is not None:
                # Call back once more: messages from the dead process can no longer be received.
                self._on_end(before)

    def named(self, group: str, rank: int) -> Peer | None:
        return self._named.get((group, rank))

    @property
    def members(self) -> list[tuple[str, int]]:
        return list(self._named)

    def on_introduction(self, endpoint: int, group: str, rank: int, node: str, pid: int) -> None:
        """Handle the introduction of a peer, whose daemon will report its end without being asked."""
        self.note_names(endpoint, group, rank, node, pid)
        self.at(endpoint).is_watched = True
        for callback in list(self.introduction_callbacks):
            callback(group, rank)

    # -- sending ------------------------------------------------------------------------------------------------

    def post(self, peers: Sequence[Peer], facts: Sequence[Any], body: Any = b"", fds: Sequence[int] = ()) -> None:
        """Send a frame to one or several peers; a frame to this worker itself must have no other receivers."""
        if len(peers) > 1:
            self._introduce(peers)
            self._send_to_all(peers, facts, body, fds)
            return
        (peer,) = peers
        if peer.endpoint == self._client.endpoint:
            # Deliver the frame through the loop, as if it came from another peer, because the caller may hold a lock
            # that the handler takes.
            self._client.loop.call_soon_threadsafe(self._on_facts, self.me, facts, body, list(fds))
            return
        if not peer.is_met:
            self._introduce(peers)
        self._send_to(peer, facts, body, fds)

    def _introduce(self, peers: Sequence[Peer]) -> None:
        strangers = [peer for peer in peers if not peer.is_met]
        for peer in strangers:
            peer.is_met = True
        if strangers:
            endpoints = [peer.endpoint for peer in strangers]
            self._client.request(operations.WatchedBy(endpoints), what="this worker's end told to others")
        for peer in strangers:
            self._send_to(peer, (message_facts.INTRODUCE, *self._introduction))

    def _send_to(self, peer: Peer, facts: Sequence[Any], body: Any = b"", fds: Sequence[int] = ()) -> None:
        # Send all frames to one peer on the same connection, so that none overtakes another.
        connection = self._client.direct_connection(peer.endpoint) or self._client
        connection.send((frames.MESSAGE, len(fds), self._client.endpoint, peer.route, facts, body), fds)

    def _send_to_all(self, peers: Sequence[Peer], facts: Sequence[Any], body: Any, fds: Sequence[int]) -> None:
        near = [peer for peer in peers if self._client.direct_connection(peer.endpoint) is not None]
        far = [peer.endpoint for peer in peers if peer not in near]
        for peer in near if far else near[:-1]:
            try:
                copies = [os.dup(fd) for fd in fds]
            except OSError as error:
                self._send_to(peer, facts, f"the sender has no descriptors left: {error}{limit_met(error)}")
            else:
                self._send_to(peer, facts, body, copies)
        if far:
            self._client.send((frames.MESSAGE, len(fds), self.me, frames.route_to(far), facts, body), fds)
        else:
            self._send_to(near[-1], facts, body, fds)

    def _send_gpu(self, peer: Peer, facts: Sequence[Any]) -> None:
        self.post((peer,), (message_facts.GPU, *facts))

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._client.later(seconds, callback)

    def link(self, peer: Peer, name: str) -> Any:
        """Return the link called ``name`` to a peer, created on first use; a ``DeviceLink`` for ``GPU_LINKS``."""
        link = peer.links.get(name)
        if link is None:
            with self._lock:
                link = peer.links.get(name)
                if link is None:
                    make = self.devices.make_link if name in GPU_LINKS else make_link
                    link = peer.links[name] = make(
                        name,
                        lambda facts: self.post((peer,), (message_facts.LINK, name, facts)),
                        self.me < peer.endpoint,
                        self._address,
                    )
        return link

    # -- ends of peers ------------------------------------------------------------------------------------------

    def watch(self, peers: Iterable[Peer]) -> None:
        nodes: dict[int, list[Peer]] = {}
        for peer in peers:
            if not peer.is_watched:
                peer.is_watched = True
                nodes.setdefault(peer.node, []).append(peer)
        for node, watched in nodes.items():
            numbers = [frames.number_of(peer.endpoint) for peer in watched]
            request = self._client.request(operations.Watch(numbers), node=node, what="an eye on other workers")
            request._follow(functools.partial(self._watching, request, watched))

    def _watching(self, request: DaemonRequest[None], watched: list[Peer]) -> None:
        try:
            request._result()
        except NodeLost as lost:
            for peer in watched:
                if peer.node in self._client.lost_nodes:
                    self._lose(peer, lost)
                else:  # this machine's own daemon has exited
                    self._end(peer, lost)
        except Exception as error:
            for peer in watched:
                self._end(peer, error)

    def on_ended(self, facts: dict[str, Any]) -> None:
        self._client.drain_direct(facts["endpoint"])
        peer = self._peers.get(facts["endpoint"])
        if peer is not None:
            report = facts["report"]
            if report:
                self._end(peer, WorkerDied.from_exit_report(report), returns=report.get("returns", False))
            else:
                self._end(peer, ClosedError(f"{peer.label}: its group was closed"))

    def on_returned(self, facts: dict[str, Any]) -> None:
        """Handle the report that a dead rank has been restarted at another endpoint, or will not return."""
        entry, report, peer = facts["entry"], facts["report"], self._peers.get(facts["was"])
        # The report of the process's death takes another path and may arrive later.
        if peer is not None and peer.error is None:
            self._end(peer, WorkerDied.from_exit_report(report), returns=True)
        if entry is not None:
            node, pid = entry["info"]["node_name"], entry["pid"]
            self.note_names(entry["endpoint"], facts["group"], facts["rank"], node, pid)
            self.at(entry["endpoint"]).is_supervised = True
        elif peer is not None:
            self.mark_lost(peer, report["reason"])

    def mark_lost(self, peer: Peer, reason: str = "") -> None:
        """Record that a peer that was expected to return will not."""
        assert peer.error is not None
        peer.returns = False
        if isinstance(peer.error, WorkerDied):  # the error's text still says that the rank is being restarted
            peer.error = WorkerDied.from_exit_report({**vars(peer.error), "returns": False, "reason": reason})
            return
        peer.error = copy_of(peer.error)
        if isinstance(peer.error, PeerLost):
            peer.error.returns = False
        if reason:
            peer.error.add_note(reason)

    def on_node_lost(self, facts: dict[str, Any]) -> None:
        """Handle the loss of a node. Node 0 is asked whether a lost rank will be restarted once that rank is needed."""
        for peer in list(self._peers.values()):
            if peer.node == facts["node"]:
                self._lose(peer, self._client.lost_nodes[facts["node"]])

    def _lose(self, peer: Peer, lost: NodeLost) -> None:
        error = copy_of(lost)
        error.returns = peer.is_supervised
        self._end(peer, error, returns=bool(peer.group))

    def _end(self, peer: Peer, error: Exception, *, returns: bool = False) -> None:
        if peer.error is not None:
            return
        peer.returns = returns
        peer.error = error
        links = list(peer.links.values())
        for link in links:
            link.discard(copy_of(error))  # a copy, because a raised error would keep open transfers alive
        self._on_end(peer)


class Devices:
    """This worker's GPU, and the links from it to each peer's GPU.

    Two workers announce their GPUs to each other when one of them first sends the other a large tensor. Tensors go
    through CPU memory until the answer arrives. Only a user thread knows its current GPU, and CUDA is never initialised
    just to find out. A worker that learns of another's GPU therefore announces its own with the next message that it
    sends or receives while CUDA is in use.

    Raises:
        ConfigError: the environment's ``RLINF_GPU_LINKS`` is neither 0 nor 1.

    Attributes:
        own: GPU of this worker; None if unknown or absent.
        is_awaited: True if a peer waits for the announcement of this GPU; a user thread must then call ``detect_gpu``.
    """

    def __init__(self, send_gpu: Callable[[Peer, Sequence[Any]], None]) -> None:
        self._send_gpu = send_gpu
        self._lock = threading.Lock()
        self._waiting: list[Peer] = []
        self._is_out_of_order = _is_switched_off()
        self.own: OwnGpu | None = None
        self.is_awaited = False

    def detect_gpu(self) -> None:
        if self.own is not None or self._is_out_of_order:
            return
        try:
            own = _find_own_gpu()
        except Exception as error:  # the driver may be too old, or unloaded
            logger.info("tensors of this worker's GPU go by way of the CPU: %s", error)
            self._is_out_of_order, self.is_awaited = True, False
            return
        if own is None:
            return
        with self._lock:
            self.own = self.own or own
            waiting, self._waiting = self._waiting, []
            self.is_awaited = False
        for peer in waiting:
            self._introduce(peer)

    def on_gpu(self, peer: Peer, machine: str, uuid: str, model: str, reachable: Sequence[str]) -> None:
        peer.gpu, peer.reachable = Gpu(machine, uuid, model), frozenset(reachable)
        with self._lock:
            if self.own is None:
                self._waiting.append(peer)
                self.is_awaited = not self._is_out_of_order
                return
        self._introduce(peer)

    def link_to(self, peer: Peer) -> str | None:
        if self.own is None or not peer.gpu_link.is_good:
            return None
        if peer.gpu is None:
            self._introduce(peer)
            return None
        # The peer's GPU is the first argument because the receiver opens the sender's memory.
        return gpu_link_between(peer.gpu, self.own.gpu, peer.reachable)

    def make_link(self, name: str, post: Post, first: bool, address: str) -> DeviceLink:
        """Create the link, like ``OwnGpu.make_link``; also raise ValueError if this worker has announced no GPU."""
        if self.own is None:
            raise ValueError(f"a peer wants a link {name!r}, and this worker has no GPU")
        return self.own.make_link(name, post, first, address)

    def _introduce(self, peer: Peer) -> None:
        with self._lock:
            if self.own is None or peer.knows_gpu:
                return
            peer.knows_gpu = True
        gpu = self.own.gpu
        self._send_gpu(peer, (gpu.machine, gpu.uuid, gpu.model, sorted(self.own.reachable)))


def _is_switched_off() -> bool:
    switch = os.environ.get(SWITCH) or "1"
    if switch not in ("0", "1"):
        raise ConfigError(f"{SWITCH}={switch!r} in a worker's environment: 0 switches links between GPUs off, 1 is on")
    return switch == "0"


def _find_own_gpu() -> OwnGpu | None:
    """Return this thread's GPU, or None if CUDA is not in use. Neither imports torch nor initialises CUDA."""
    is_in_use = getattr(sys.modules.get("torch.cuda"), "is_initialized", None)
    if is_in_use is None or not is_in_use():
        return None
    from rlinf_async._transports.devices.own_gpu import find_own_gpu

    return find_own_gpu()

"""Table of a worker's peers: introduction, frames to them, links, GPU negotiation (``Devices``), notices of death."""

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
"""Environment variable of a worker; ``0`` sends all tensors to and from it through CPU memory."""


def label_of(group: str, rank: int, node: str, pid: int) -> str:
    return f"rank {rank} of group '{group}' on {node} (pid {pid})"


class Peers:
    """All workers with which this one has exchanged messages, itself included.

    Args:
        on_end: called with every peer that has ended, and again when its rank is back.
        on_facts: receives facts and body that this worker posts to itself.
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
        # A roster that was requested before a rank returned still lists the dead process.
        # tests/_messaging/test_moments.py::
        # test_a_roster_from_before_a_return_takes_no_name_from_the_rank_that_is_back
        before = self._named.get((group, rank))
        if before is None or before.error is not None or peer.error is None:
            self._named[group, rank] = peer
            if before is not None and before is not peer and before.error is not None:
                # Call back again: messages of the dead process cannot be received any more.
                self._on_end(before)

    def named(self, group: str, rank: int) -> Peer | None:
        return self._named.get((group, rank))

    @property
    def members(self) -> list[tuple[str, int]]:
        return list(self._named)

    def on_introduction(self, endpoint: int, group: str, rank: int, node: str, pid: int) -> None:
        """Handle the introduction of a peer; its daemon reports its end without another request."""
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
            # Deliver through the loop, as from other peers: the caller may hold a lock that the handler takes.
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
        """Return the link of that name to a peer, made at first use: a ``DeviceLink`` for ``GPU_LINKS``."""
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
        """Handle the report that a dead rank is back under another endpoint, or does not return."""
        entry, report, peer = facts["entry"], facts["report"], self._peers.get(facts["was"])
        # The report of the dead process's end takes another path, and arrives later.
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
        if isinstance(peer.error, WorkerDied):  # the error's text says that the rank is being restarted
            peer.error = WorkerDied.from_exit_report({**vars(peer.error), "returns": False, "reason": reason})
            return
        peer.error = copy_of(peer.error)
        if isinstance(peer.error, PeerLost):
            peer.error.returns = False
        if reason:
            peer.error.add_note(reason)

    def on_node_lost(self, facts: dict[str, Any]) -> None:
        """Handle the loss of a node. Node 0, asked when a rank is needed, knows whether the rank is restarted."""
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
            link.discard(copy_of(error))  # a raised error would keep the open transfers alive, so the link gets a copy
        self._on_end(peer)


class Devices:
    """This worker's GPU, and the links from it to each peer's GPU.

    Two workers announce their GPUs to each other when the first large tensor is sent between them. That tensor, and
    further ones until the answer arrives, go through CPU memory. Only a user thread can tell which GPU it works on, and
    CUDA is never initialised for this purpose. A worker that learns of another's GPU therefore announces its own with
    the next message that it sends or receives while CUDA is in use.

    Raises:
        ConfigError: the environment's ``RLINF_GPU_LINKS`` is neither 0 nor 1.

    Attributes:
        own: GPU of this worker; None before it is known, or if there is none.
        is_awaited: True if a peer waits for the announcement of this GPU: call ``detect_gpu`` from a user thread.
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
        # The arguments are in this order because the receiver opens the sender's memory.
        return gpu_link_between(peer.gpu, self.own.gpu, peer.reachable)

    def make_link(self, name: str, post: Post, first: bool, address: str) -> DeviceLink:
        """Make the link, as ``OwnGpu.make_link`` does. Raise ValueError also if this worker has announced no GPU."""
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
    """Return the GPU of this thread, None if CUDA is not in use. This neither imports torch nor initialises CUDA."""
    is_in_use = getattr(sys.modules.get("torch.cuda"), "is_initialized", None)
    if is_in_use is None or not is_in_use():
        return None
    from rlinf_async._transports.devices.own_gpu import find_own_gpu

    return find_own_gpu()

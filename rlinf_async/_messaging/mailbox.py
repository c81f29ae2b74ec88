"""The messaging endpoint of a worker: dispatches incoming MESSAGE frames to its inbox, outbox and links.

    outbox.send (user's thread) ──► MESSAGE frame ──► daemons ──► on_frame (where the socket is read) ──► inbox
    inbox.receive (user's thread): takes a message that has arrived; otherwise the reading thread settles the Work

No operation has its own task or thread: frames are handled where the socket is read.
"""

from __future__ import annotations

from typing import Any

from rlinf_async._client.client import NodeClient
from rlinf_async._core import frames
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.segment import close_fds
from rlinf_async._messaging.group_rosters import GroupRosters
from rlinf_async._messaging.inbox import Inbox
from rlinf_async._messaging.outbox import Outbox
from rlinf_async._messaging.peer import Peer
from rlinf_async._messaging.peers import Peers
from rlinf_async._messaging.relayed_broadcast import BroadcastHosts
from rlinf_async._messaging.state import message_facts
from rlinf_async._messaging.state.relay_plan import FROM_HOSTS

logger = own_logger(__name__)


class Mailbox:
    """The inbox, outbox, peers and group names of one worker, which introduces itself by group, rank, node and pid."""

    def __init__(self, client: NodeClient, introduction: tuple[str, int, str, int], address: str) -> None:
        self.names = GroupRosters(client)
        self.peers = Peers(client, introduction, address, self._on_end, self._on_facts)
        self.outbox = Outbox(self.peers)
        self.inbox = Inbox(self.peers)
        self.broadcast_hosts = BroadcastHosts(self.peers, self.outbox, self.inbox)
        client.receivers[frames.MESSAGE] = self
        client.listen("ended", self.peers.on_ended)
        client.listen("node_lost", self.peers.on_node_lost)
        client.listen("rank_returned", self.peers.on_returned)

    def __repr__(self) -> str:
        return f"<Mailbox {self.outbox!r} {self.inbox!r}>"

    def on_frame(self, frame: list[Any], fds: list[int]) -> None:
        """Dispatch a MESSAGE frame and take ownership of its descriptors."""
        _, _, source, _, facts, body = frame
        self._on_facts(source, facts, body, fds)

    def _on_facts(self, source: int, facts: Any, body: Any, fds: list[int]) -> None:
        peer = self.peers.at(source)
        kind, *rest = facts
        if kind == message_facts.DATA:
            self.inbox.on_data(peer, body, fds, *rest)
        elif kind == message_facts.CONTENT:
            self.inbox.on_content(peer, body, fds, *rest)
        else:
            close_fds(fds)
            self._dispatch(peer, kind, rest)

    def _dispatch(self, peer: Peer, kind: int, facts: list[Any]) -> None:
        if kind == message_facts.LINK:
            name, message = facts
            self.peers.link(peer, name).on_control(message)
        elif kind == message_facts.GPU:
            self.peers.devices.on_gpu(peer, *facts)
        elif kind == message_facts.INTRODUCE:
            self.peers.on_introduction(peer.endpoint, *facts)
        elif kind == message_facts.ANNOUNCE:
            self.inbox.on_announce(peer, *facts)
        elif kind == message_facts.WITHDRAW:
            self.inbox.on_withdraw(peer, *facts)
        elif kind == message_facts.GRANT:
            self.outbox.on_grant(peer, *facts)
        elif kind == message_facts.ROOM:
            self.outbox.on_room(peer, *facts)
        elif kind == message_facts.TAKEN:
            self.outbox.on_taken(peer, *facts)
        elif kind == message_facts.LOST:
            self.outbox.on_lost(peer, *facts)
        elif kind == message_facts.REFUSED:
            self.outbox.on_refused(peer, *facts)
        elif kind == message_facts.RELAY:
            (self.outbox.on_relay if facts[2] in FROM_HOSTS else self.broadcast_hosts.on_message)(peer, *facts)
        else:
            logger.error("%s has sent a message of a kind %r that is not known here", peer.label, kind)

    def _on_end(self, peer: Peer) -> None:
        self.names.forget(peer.group)
        self.outbox.fail(peer)
        self.inbox.fail(peer, is_back=self.peers.named(peer.group, peer.rank) is not peer)
        self.broadcast_hosts.fail(peer)

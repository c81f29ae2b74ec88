"""The receiving side of messaging: matches messages with posted receives, fetches content, answers senders."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

from rlinf_async._core.error_copy import copy_of
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.segment import close_fds
from rlinf_async._messaging.device_content import DeviceContent
from rlinf_async._messaging.message_content import Content, content_of
from rlinf_async._messaging.operation import ReceiveWork
from rlinf_async._messaging.peer import Peer
from rlinf_async._messaging.peers import Peers
from rlinf_async._messaging.relayed_broadcast import RELAY, open_landed
from rlinf_async._messaging.state import message_facts
from rlinf_async._messaging.state.matching import Action, ActionKind, Arrivals, Message
from rlinf_async._messaging.state.message_facts import POINT_TO_POINT, TENSOR
from rlinf_async._transports.devices.gpu_link_choice import GPU_LINKS
from rlinf_async._transports.transport_choice import TRANSPORTS
from rlinf_async.errors import ClosedError, SerializationError, TransferFailed

logger = own_logger(__name__)


class _ReceiveStream:
    """The receiving side of a message stream. The death of a peer in ``others`` also fails the stream."""

    __slots__ = ("arrivals", "id", "others", "source")

    def __init__(self, source: Peer, stream_id: Any) -> None:
        self.source = source
        self.id = stream_id
        self.arrivals = Arrivals(lambda receiving, message: receiving.acceptor.refuses(message))
        self.others: set[Peer] = set()


class Inbox:
    """The receiving sides of this worker's streams. Any thread may ``receive``; the reading thread calls ``on_…``."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._lock = threading.Lock()
        self._streams: dict[tuple[int, Any], _ReceiveStream] = {}
        self.wait_for_return: Callable[[ReceiveWork[Any], Peer], None]
        """Callback that reposts a receive from a dead peer for the rank's next process."""

    def __repr__(self) -> str:
        return f"<Inbox {len(self._streams)} streams>"

    def _stream(self, source: Peer, stream_id: Any, *, receives: bool = False) -> _ReceiveStream:
        stream = self._streams.get((source.endpoint, stream_id))
        if stream is None:
            if isinstance(stream_id, str) and not receives:
                # A relay sends nothing on a stream before its receive is posted. So this message is late: its receiver
                # has forgotten the stream, and a new entry would stay in the table forever.
                # tests/_messaging/test_mailbox.py::test_what_comes_on_a_line_that_is_forgotten_is_not_kept
                stream = _ReceiveStream(source, stream_id)
                stream.arrivals.fail(ClosedError(f"{stream_id} is not received any more"))
                return stream
            with self._lock:
                stream = self._streams.setdefault((source.endpoint, stream_id), _ReceiveStream(source, stream_id))
        return stream

    def has_message(self, source: Peer, stream_id: Any) -> bool:
        stream = self._streams.get((source.endpoint, stream_id))
        with self._lock:
            return stream is not None and stream.arrivals.has_message

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, receiving: ReceiveWork[Any], source: Peer, stream_id: Any, others: Iterable[Peer] = ()) -> None:
        """Post a receive of the next message, which fails if a peer in ``others`` dies."""
        stream = self._stream(source, stream_id, receives=True)
        arrivals = stream.arrivals
        receiving.withdraw = lambda error: self._act(stream, arrivals.cancel, receiving)
        receiving.back = functools.partial(self._give_back, stream)
        if others:
            with self._lock:
                stream.others.update(others)
        self._act(stream, arrivals.post, receiving)
        if receiving.done():  # another thread abandoned it before it was posted
            self._act(stream, arrivals.cancel, receiving)
            receiving.withdraw = None
        # Check after posting, because the end of a peer fails only receives that are already in the table.
        gone = next((peer for peer in stream.others if peer.error is not None), None) if stream.others else None
        if source.error is not None:
            gone = source
        if gone is not None:
            self._fail(stream, gone)

    def _give_back(self, stream: _ReceiveStream, message: Message) -> None:
        # If the peer has ended in the meantime, its empty stream was removed from the table, so put the stream back.
        # tests/_messaging/test_moments.py::test_the_last_words_of_a_dead_peer_go_back_when_their_receive_is_cancelled
        source = stream.source
        if self._peers.named(source.group, source.rank) is source:
            self._streams[source.endpoint, stream.id] = stream
        self._act(stream, stream.arrivals.give_back, message)

    def _act(self, stream: _ReceiveStream, decide: Callable[..., list[Action]], *facts: Any) -> None:
        with self._lock:
            actions = decide(*facts)
            total = stream.arrivals.due()
        try:
            while actions:
                more: list[Action] = []
                for action in actions:
                    more += self._carry_out(stream, action)
                actions = more
        finally:  # a signal handler may raise while a large content is copied
            if total is not None:
                self._peers.post((stream.source,), (message_facts.ROOM, stream.id, total))

    def _carry_out(self, stream: _ReceiveStream, action: Action) -> list[Action]:
        receive, message = action.receive, action.message
        if action.kind is ActionKind.FAIL:
            if stream.source.returns and stream.id == POINT_TO_POINT:
                receive.withdraw = None
                self.wait_for_return(receive, stream.source)
            else:
                # A raised error keeps the frames that it passes through alive, so each receive gets a copy.
                receive.fail(copy_of(action.why))
            return []
        assert message is not None
        if action.kind is ActionKind.GRANT:
            self._reply(stream, message_facts.GRANT, message.number)
        elif action.kind is ActionKind.REFUSE:
            error = (
                action.why if isinstance(action.why, Exception) else ValueError(f"{receive._describe()}: {action.why}")
            )
            receive.fail(error)
            self._reply(stream, message_facts.REFUSED, message.number, str(action.why))
        else:
            return self._deliver(stream, receive, message)
        return []

    def _deliver(self, stream: _ReceiveStream, receive: ReceiveWork[Any], message: Message) -> list[Action]:
        try:
            taken = receive.deliver(message)
        except Exception as error:
            self._reply(stream, message_facts.REFUSED, message.number, f"{type(error).__name__}: {error}")
            return []
        except BaseException as interruption:
            receive.fail(interruption)
            self._act(stream, stream.arrivals.give_back, message)
            raise
        if not taken:
            with self._lock:
                return stream.arrivals.give_back(message)
        if message.kind == TENSOR:
            self._reply(stream, message_facts.TAKEN, message.number)
        return []

    def _reply(self, stream: _ReceiveStream, what: int, *facts: Any) -> None:
        self._peers.post((stream.source,), (what, stream.id, *facts))

    # -- messages from senders ----------------------------------------------------------------------------------

    def on_data(
        self,
        source: Peer,
        body: Any,
        fds: list[int],
        stream_id: Any,
        number: int,
        kind: int,
        about: Any,
        charge: int,
        via: Any,
    ) -> None:
        stream = self._stream(source, stream_id)
        arrivals = stream.arrivals
        if via is not None:
            self._act(stream, arrivals.data, number, kind, about, charge)
            self._fetch(stream, number, kind, via, body, fds)
            return
        try:
            content = _content(body, fds)
        except Exception as error:
            self._act(stream, arrivals.data, number, kind, about, charge)
            self._act(stream, arrivals.fail_content, number, error)
        else:
            self._act(stream, arrivals.data, number, kind, about, charge, content)

    def on_announce(self, source: Peer, stream_id: Any, number: int, kind: int, about: Any) -> None:
        stream = self._stream(source, stream_id)
        self._act(stream, stream.arrivals.announce, number, kind, about)

    def on_content(
        self, source: Peer, body: Any, fds: list[int], stream_id: Any, number: int, charge: int, via: Any
    ) -> None:
        stream = self._stream(source, stream_id)
        arrivals = stream.arrivals
        if via is not None:
            with self._lock:
                message = arrivals.expect(number, charge)
            if message is None:  # the message is a duplicate or was withdrawn
                close_fds(fds)
                self._reply(stream, message_facts.TAKEN, number)
                self._act(stream, list)
            else:
                self._fetch(stream, number, message.kind, via, body, fds)
            return
        try:
            content = _content(body, fds)
        except Exception as error:
            self._act(stream, arrivals.fail_content, number, error)
        else:
            self._act(stream, arrivals.content, number, charge, content)

    def on_withdraw(self, source: Peer, stream_id: Any, number: int) -> None:
        stream = self._stream(source, stream_id)
        self._act(stream, stream.arrivals.withdraw, number)

    def _fetch(self, stream: _ReceiveStream, number: int, kind: int, via: Any, body: Any, fds: list[int]) -> None:
        name, transfer, sizes, *places = via
        if name == RELAY:
            try:
                landed = open_landed(transfer, sizes, body)
            except Exception as error:
                self._lost(stream, number, error)
            else:
                self._complete(stream, number, kind, landed)
            return
        content: Content | Exception = Content(body)
        if name in GPU_LINKS:
            try:
                content = _content(body, fds)
            except Exception as error:
                content = error
        if name in TRANSPORTS and not TRANSPORTS[name].is_authenticated and kind != TENSOR and not body:
            text = f"{stream.source.label} wanted to send a pickle by a connection that is not authenticated"
            self._act(stream, stream.arrivals.fail_content, number, SerializationError(text))
            return
        with self._lock:
            wanted = stream.arrivals.wanted_by(number)
        place = None if wanted is None else wanted.acceptor.place()
        try:
            link = self._peers.link(stream.source, name)
            work = link.receive(transfer, sizes) if place is None else link.receive_in(transfer, sizes, place)
        except Exception as error:
            self._lost(stream, number, error)
            return
        work._follow(lambda: self._fetched(stream, number, kind, content, places, work))

    def _fetched(
        self,
        stream: _ReceiveStream,
        number: int,
        kind: int,
        rest: Content | Exception,
        places: list[list[int]],
        work: Any,
    ) -> None:
        """Deliver a message whose buffers a link has fetched.

        Args:
            rest: content of the frame, or the error that reading it raised.
            places: for a GPU link, one list with the indices of the fetched buffers; otherwise empty.
        """
        try:
            buffers = work._result()
        except Exception as error:
            if isinstance(error, MemoryError) and not places:
                self._act(stream, stream.arrivals.fail_content, number, error)
            else:
                self._lost(stream, number, error)
            return
        if isinstance(rest, Exception):
            self._act(stream, stream.arrivals.fail_content, number, rest)
            return
        content = DeviceContent(rest, places[0], buffers) if places else Content(rest.body, buffers)
        self._complete(stream, number, kind, content)

    def _complete(self, stream: _ReceiveStream, number: int, kind: int, content: Content) -> None:
        if kind != TENSOR:
            self._reply(stream, message_facts.TAKEN, number)
        self._act(stream, stream.arrivals.content, number, 0, content)

    def _lost(self, stream: _ReceiveStream, number: int, error: Exception) -> None:
        logger.info("a message from %s has not come through: %s", stream.source.label, error)
        self._reply(stream, message_facts.LOST, number)

    # -- ended peers --------------------------------------------------------------------------------------------

    def forget(self, source: Peer, stream_id: Any) -> None:
        self._streams.pop((source.endpoint, stream_id), None)

    def fail(self, peer: Peer, *, is_back: bool) -> None:
        """Fail the receives that depend on an ended peer. If its name already refers to another process (``is_back``),
        also drop the peer's queued messages, because no receive can get them."""
        for key, stream in list(self._streams.copy().items()):
            if stream.source is peer or peer in stream.others:
                self._fail(stream, peer)
                with self._lock:
                    if is_back or (stream.arrivals.is_idle and stream.source is peer):
                        self._streams.pop(key, None)

    def _fail(self, stream: _ReceiveStream, peer: Peer) -> None:
        error = peer.error
        assert error is not None
        self._act(stream, functools.partial(stream.arrivals.fail, parts=peer is not stream.source), error)


def _content(body: Any, fds: list[int]) -> Content:
    if isinstance(body, str):
        raise TransferFailed(body)
    return content_of(body, fds)

"""``Channels``: the queues that this daemon hosts. It handles PUT, GET and QUEUE frames, and closes ownerless queues.

The router calls these handlers synchronously, so a frame and all its consequences are processed before the next frame
is read.  The daemon holds the queued items, as bytes or descriptors of sealed memory, so they outlive their producers.

A channel is identified by its number (``name_service.py``); a request for an unknown number is answered with "gone".

Within a node, a put into an unbounded channel is complete once its frame is on the socket.  The producer may then
notify another process, whose question about the queue can arrive before the put.  So the daemon reads the producers'
sockets before it answers a question about an unbounded queue, and before it closes such a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterator, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from rlinf_async._channels.state.actions import ACCEPTED, DELIVER, QueueAction, Step
from rlinf_async._channels.state.put_window import ITEM_OVERHEAD_BYTES
from rlinf_async._channels.state.queue import Queue
from rlinf_async._channels.state.queue_client import Item
from rlinf_async._channels.state.refusals import lease_lost, refusal
from rlinf_async._core import frames, operations
from rlinf_async._core.descriptors import limit_met
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.segment import close_fds
from rlinf_async._inspection.state.run_report import QueueReport
from rlinf_async.errors import ClosedError

from .channel_replies import ChannelReplies, HostedChannel, LeaseTimer, SegmentFile
from .cleanup import run_all
from .handlers import Requester
from .router import Router

logger = own_logger(__name__)

_DISCARDED_FOR_S: Final = 2.0
"""Seconds after a discarding close during which late items count as discarded, not lost."""


class Channels:
    """The queues hosted by one daemon.

    The class has more than 30 methods, one for each kind of request, because all of them use the same table of queues.

    Args:
        gone: endpoints that have ended.
        budget: default ``max_bytes`` of a channel.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, router: Router, gone: Container[int], budget: int) -> None:
        self._loop = loop
        self._router = router
        self._gone = gone
        self._budget = budget
        self._me = frames.endpoint(router.node, 0)
        self._hosted: dict[int, HostedChannel] = {}
        self._replies = ChannelReplies(loop, router)
        self._questions: list[list[Any]] = []  # frames that wait until producers' sockets have been read
        self._closing: list[tuple[HostedChannel, asyncio.Future[None]]] = []
        """Queues whose close waits until producers' sockets have been read."""
        self._discarded: set[int] = set()  # numbers of channels discarded within the last _DISCARDED_FOR_S
        router.on_channel = self.on_frame

    def __repr__(self) -> str:
        return f"<Channels [{len(self._hosted)} queues here]>"

    # -- frames of clients --------------------------------------------------------------------------------------

    def on_frame(self, frame: list[Any], fds: list[int]) -> None:
        kind, source, number = frame[0], frame[2], frame[4]
        hosted = self._hosted.get(number)
        if hosted is None:
            close_fds(fds)
            lost = _count_sent(frame)
            if lost and number not in self._discarded:
                self._replies.send(source, number, "lost", lost)
            if kind != frames.QUEUE or frame[5] in ("size", "peek", "confirm", "requests", "cancel"):
                self._replies.send(source, number, "gone", "")
        elif not hosted.is_bounded and _is_question(frame) and self._producers(hosted, source):
            self._drain_soon()
            self._questions.append(frame)
        else:
            self._handle(hosted, frame, fds)

    def _handle(self, hosted: HostedChannel, frame: list[Any], fds: list[int]) -> None:
        kind, source = frame[0], frame[2]
        if kind == frames.PUT:
            _, _, _, _, _, put, key, weight, mode, body = frame
            carried: Any = SegmentFile(fds[0], body) if fds else body
            self._put(hosted, source, put, key, weight, mode, carried)
        elif kind == frames.GET:
            _, _, _, _, _, get, key, target, taken = frame
            if taken:
                self._taken(hosted, source, taken)
            self._get(hosted, source, get, key, target)
        else:
            close_fds(fds)
            self._on_queue_frame(hosted, source, frame[5], frame[6])

    def _put(
        self, hosted: HostedChannel, source: int, number: int, key: bytes, weight: int, mode: int, body: Any
    ) -> None:
        if type(body) is str:
            self._refuse_lost(hosted, source, number, body, is_sent=mode == frames.SENT)
            return
        size = len(body) if type(body) is bytes else body.size if type(body) is SegmentFile else -1
        if type(key) is not bytes or type(weight) is not int or weight < 0 or size < 0:
            self._turn_down(hosted, source, number, f"a put with key {key!r}, weight {weight!r} and {size} bytes")
        steps = hosted.queue.put(
            source, number, key, weight, size + ITEM_OVERHEAD_BYTES, body, mode == frames.NOWAIT, mode == frames.SENT
        )
        if steps:
            self._follow(hosted, steps)

    def _get(self, hosted: HostedChannel, source: int, number: int, key: bytes, target: Any) -> None:
        if type(key) is not bytes:
            self._turn_down(hosted, source, number, f"a get with key {key!r}")
        if target is None:
            steps = hosted.queue.get(source, number, key)
        else:
            try:
                demand = frames.demand_of(target)
            except TypeError as error:
                self._turn_down(hosted, source, number, str(error))
            steps = hosted.queue.get(source, number, key, **demand)
        if steps:
            self._follow(hosted, steps)

    def _turn_down(self, hosted: HostedChannel, source: int, number: int, problem: str) -> NoReturn:
        """Answer a malformed request with an error and skip its number, so that later requests do not wait for it."""
        self._follow(hosted, hosted.queue.skip(source, number))
        text = f"{hosted.noun} '{hosted.name}' can make nothing of {problem}"
        self._replies.send(source, hosted.number, "failed", [number, "ValueError", text])
        raise TypeError(text)

    def _refuse_lost(self, hosted: HostedChannel, source: int, number: int, why: str, *, is_sent: bool) -> None:
        """Refuse a put whose body was lost in transit because no descriptor was free."""
        self._follow(hosted, hosted.queue.skip(source, number))
        if is_sent:
            logger.warning("an item of %s '%s' is lost: %s", hosted.noun, hosted.name, why)
            self._replies.send(source, hosted.number, "lost", 1)
        else:
            self._replies.send(source, hosted.number, "failed", [number, "OSError", why])

    def _taken(self, hosted: HostedChannel, source: int, taken: Sequence[Sequence[int]]) -> None:
        for each in taken:  # validate all before applying any
            if len(each) != 2 or type(each[0]) is not int or type(each[1]) is not int:
                raise TypeError(f"a get and how many of its items are taken were expected, got {each!r}")
        steps = hosted.queue.taken(source, taken)
        if steps or hosted.queue.closed:
            self._follow(hosted, steps)

    def _on_queue_frame(self, hosted: HostedChannel, source: int, kind: str, facts: Any) -> None:
        queue = hosted.queue
        if kind == "requests":
            puts, gets, taken = facts
            nonsense: TypeError | None = None
            for ask, requests in ((self._put, puts), (self._get, gets)):
                for request in requests:
                    try:
                        ask(hosted, source, *request)
                    except TypeError as error:
                        nonsense = nonsense or error  # the frame's other requests are still processed
            if taken:
                self._taken(hosted, source, taken)
            if nonsense is not None:
                raise nonsense
        elif kind == "taken":
            self._taken(hosted, source, facts)
        elif kind == "cancel":
            (number,) = _numbers(facts)
            self._follow(hosted, queue.cancel(source, number))
            self._replies.flush(hosted, source)  # a put accepted before the cancel must be reported first
            self._replies.send(source, hosted.number, "cancelled", facts)
        elif kind == "skip":
            (number,) = _numbers(facts)
            self._follow(hosted, queue.skip(source, number))
        elif kind == "confirm":
            question, number, count = _numbers(facts)
            steps: list[Step] = []
            if queue.confirm(source, number, count, steps):
                self._replies.send(source, hosted.number, "confirmed", [question])
            else:
                self._replies.send(source, hosted.number, "failed", [-question, "LeaseLost", lease_lost(hosted.name)])
            self._follow(hosted, steps)
        elif kind in ("size", "peek"):
            question, key = facts
            _numbers([question]), _key(key)
            queue.client(source)  # a registered client learns of the queue's end even before the answer
            self._answer(hosted, source, kind, question, key)

    def _answer(self, hosted: HostedChannel, source: int, kind: str, question: int, key: bytes) -> None:
        queue = hosted.queue
        if kind == "size":
            self._replies.send(source, hosted.number, "size", [question, queue.size(key), queue.full(key)])
        else:
            try:
                self._replies.give(hosted, source, -question, queue.peek(key))
            except OSError as error:
                text = self._cannot_give(hosted, error, queue.size(key))
                self._replies.send(source, hosted.number, "failed", [-question, *text])
            else:
                self._replies.send(source, hosted.number, "peeked", [question])

    def _cannot_give(self, hosted: HostedChannel, error: OSError, count: int) -> tuple[str, str]:
        items, verb, consequence = "an item", "hand it over", f"the item stays in the {hosted.noun}"
        if count > 1:
            items, verb = f"{count} items", "hand them over at once"
            consequence = f"they stay in the {hosted.noun}, take {hosted.fewer}"
        return "OSError", (
            f"the daemon of node {self._router.node} has {items} of {hosted.noun} '{hosted.name}' and cannot {verb}: "
            f"{error.strerror}{limit_met(error)}; {consequence}"
        )

    # -- questions ----------------------------------------------------------------------------------------------

    def _producers(self, hosted: HostedChannel, source: int) -> list[Any]:
        """Return the connections of the other local processes that have put items into this queue."""
        connections = []
        for client_id, client in hosted.queue.clients.items():
            if client.has_put and client_id != source and frames.node_of(client_id) == self._router.node:
                endpoint = self._router.endpoints.get(frames.number_of(client_id))
                if endpoint is not None and endpoint.connection is not None:
                    connections.append(endpoint.connection)
        return connections

    def _drain_soon(self) -> None:
        if not self._questions and not self._closing:
            self._loop.call_soon(self._drain_producers)

    def _drain_producers(self) -> None:
        """Read what producers have sent so far, then answer waiting questions and closes."""
        # A producer may have told another process about its put, and that process's question may be read first.  So the
        # daemon reads the producers' sockets before it answers, once for all questions of one turn of the loop.
        # tests/launcher/daemon/test_channels.py::test_a_question_is_answered_after_producers_sockets_are_read
        # Questions that this reads are answered in the next turn; otherwise, processes that ask without a pause would
        # keep the daemon here for ever.
        questions, self._questions = self._questions, []
        closing, self._closing = self._closing, []
        asked = {frame[4]: self._hosted[frame[4]] for frame in questions if frame[4] in self._hosted}
        asked |= {hosted.number: hosted for hosted, _ in closing}
        for connection in {each for hosted in asked.values() for each in self._producers(hosted, 0)}:
            connection.read_available()
        for _, drained in closing:
            if not drained.done():
                drained.set_result(None)
        for frame in questions:
            hosted = self._hosted.get(frame[4])
            if hosted is None:
                self._replies.send(frame[2], frame[4], "gone", "")
                continue
            try:
                self._handle(hosted, frame, [])
            except Exception:
                logger.exception("a frame of kind %d could not be handled", frame[0])

    # -- what follows -------------------------------------------------------------------------------------------

    def follow(self, hosted: HostedChannel, steps: list[Step]) -> None:
        """Carry out queue actions not caused by a request, for example after an expired deadline."""
        self._follow(hosted, steps)

    def _follow(self, hosted: HostedChannel, steps: list[Step]) -> None:
        for action, subject in steps:
            if action == ACCEPTED:
                self._replies.pending(hosted, subject.producer).accepted.append(subject.number)
            elif action == DELIVER:
                try:
                    self._replies.deliver(hosted, subject)
                except OSError as full:
                    text = self._cannot_give(hosted, full, len(subject.items))
                    self._replies.send(subject.consumer, hosted.number, "failed", [subject.number, *text])
                    # This loop processes the added steps, too.
                    steps += hosted.queue.cancel(subject.consumer, subject.number)
                else:
                    if subject.lease_s:
                        # The timer holds the queue's number and not the queue; otherwise a closed queue and its items
                        # would stay in memory until the lease expires.
                        # tests/launcher/daemon/test_experiences.py::test_nothing_keeps_an_experience_that_has_ended
                        timer = self._loop.call_later(
                            subject.lease_s, self._end_lease, hosted.number, subject.consumer, subject.number
                        )
                        subject.timer = LeaseTimer(timer)
            elif action == QueueAction.FREED:
                client, freed = subject
                self._replies.pending(hosted, client).freed += freed
            elif action == QueueAction.SHARED:
                self._replies.send(subject, hosted.number, "shared", None)
            elif action == QueueAction.FAILED:
                client_id, *failure = subject
                self._replies.send(client_id, hosted.number, "failed", failure)
            elif action == QueueAction.CLOSED and subject.sent:
                self._replies.send(subject.producer, hosted.number, "lost", 1)
            else:
                client_id = subject.producer if type(subject) is Item else subject.consumer
                error = refusal(action, subject, hosted.name, hosted.queue.budget.max_bytes)
                self._replies.send(client_id, hosted.number, "failed", [subject.number, *error])
        if hosted.queue.finished:
            self._end(hosted, "")

    def _end_lease(self, channel: int, holder: int, number: int) -> None:
        hosted = self._hosted.get(channel)
        client = None if hosted is None else hosted.queue.clients.get(holder)
        if hosted is not None and client is not None and number in client.gets:
            self._replies.send(holder, hosted.number, "lease_lost", [number])
            self._follow(hosted, hosted.queue.cancel(holder, number))

    # -- operations ---------------------------------------------------------------------------------------------

    def host(self, hosted: HostedChannel) -> None:
        """Start hosting a queue.  Raises ValueError if its number is already in use."""
        if hosted.number in self._hosted:
            raise ValueError(f"a new channel has a number that no other one has, got {hosted.number}")
        self._hosted[hosted.number] = hosted

    def hosted(self, number: int) -> HostedChannel | None:
        return self._hosted.get(number)

    def all_hosted(self) -> list[HostedChannel]:
        return list(self._hosted.values())

    async def host_channel(self, requester: Requester, op: operations.HostChannel) -> None:
        max_bytes = op.max_bytes or self._budget
        queue = Queue(op.maxsize, max_bytes, self._gone)
        is_bounded = bool(op.maxsize or op.max_bytes)
        self.host(HostedChannel(op.number, op.name, requester.endpoint, queue, is_bounded))

    async def close_channel(self, requester: Requester, op: operations.CloseChannel) -> bool:
        """Refuse further puts; the queue ends once all its items are taken.  Return False for an unknown queue.

        Puts that completed before the close stay in the queue.  With ``discard`` the queue ends immediately.
        """
        hosted = self._hosted.get(op.number)
        if hosted is None:
            return False
        if op.discard:
            self._discarded.add(hosted.number)
            self._loop.call_later(_DISCARDED_FOR_S, self._discarded.discard, hosted.number)
        elif not hosted.is_bounded and self._producers(hosted, 0):
            drained = self._loop.create_future()
            self._drain_soon()
            self._closing.append((hosted, drained))
            await drained
        if not (hosted.is_bounded or hosted.queue.closed or op.discard):
            # From now on, these producers wait for the answer to each put, so that a producer that learns of the close
            # late loses no item. The flush registers producers whose first put was accepted in this turn of the loop.
            # tests/launcher/daemon/test_channels.py::
            # test_a_put_accepted_in_the_turn_of_close_is_told
            self._replies.flush_all()
            for client_id, client in hosted.queue.clients.items():
                if client.has_put:
                    self._replies.send(client_id, hosted.number, "answer_puts", None)
        self._follow(hosted, hosted.queue.close(discard=op.discard))
        await hosted.written()
        return True

    async def count_items(self, requester: Requester, op: operations.CountItems) -> list[Any]:
        """Return the counts of items put, taken and lost.  Raises ClosedError if the queue is closed and empty."""
        hosted = self._hosted.get(op.number)
        if hosted is None:
            raise ClosedError("it is closed, and everything in it has been taken")
        return hosted.queue.counts().to_data()

    # -- ends ---------------------------------------------------------------------------------------------------

    def drop_client(self, gone: int) -> None:
        """Return a dead process's leased items to the queue and cancel its gets; items that it put stay."""
        # A delivered item is leased until its consumer confirms it, and a consumer passes an item on only after
        # confirming it. So a dead consumer's leased item returns to the queue, in its old place, so that the order
        # survives the death.
        # tests/channel/test_ends.py::test_what_a_killed_consumer_had_not_taken_goes_to_the_next_at_its_place
        # tests/channel/test_ends.py::test_what_was_accepted_outlives_its_producer_and_what_waited_does_not
        run_all(f"endpoint {gone}", [partial(self._drop_from, hosted, gone) for hosted in list(self._hosted.values())])

    def _drop_from(self, hosted: HostedChannel, gone: int) -> None:
        client, endpoint = hosted.queue.clients.get(gone), self._router.endpoints.get(frames.number_of(gone))
        if client is not None and client.has_put and frames.node_of(gone) == self._router.node and endpoint is not None:
            hosted.note_gone(endpoint)
        node_link = self._router.node_links.get(frames.node_of(gone))
        is_lost = node_link is not None and node_link.lost is not None
        self._follow(hosted, hosted.queue.drop(gone, is_lost=is_lost))

    def drop_owner(self, gone: int) -> None:
        """Close the channels of a driver that has ended, or of a worker whose group is closed."""
        why = "the process that had created it is gone, or its group is closed"
        owned = [hosted for hosted in self._hosted.values() if hosted.owner == gone]
        run_all(f"endpoint {gone}", (partial(self._end, hosted, why) for hosted in owned))

    def clients_and_owners(self) -> set[int]:
        """Return the endpoints that own a queue here or have state in one."""
        known: set[int] = set()
        for hosted in self._hosted.values():
            known |= {hosted.owner, *hosted.queue.clients}
        return known

    def _end(self, hosted: HostedChannel, why: str) -> None:
        if self._hosted.pop(hosted.number, None) is None:
            return
        self._replies.flush_all()
        for client in hosted.queue.clients:
            self._replies.send(client, hosted.number, "gone", why)
        self._router.request(0, operations.QueueEnded(hosted.number))
        hosted.ended()

    def describe(self, number: int, key: bytes) -> str:
        hosted = self._hosted.get(number)
        return "not there" if hosted is None else hosted.describe(key)

    def reports(self) -> list[QueueReport]:
        return [self._report(hosted) for hosted in self._hosted.values()]

    def _report(self, hosted: HostedChannel) -> QueueReport:
        queue = hosted.queue
        clients = queue.clients
        return QueueReport(
            number=hosted.number,
            name=hosted.name,
            node=self._router.node,
            items=sum(map(queue.size, queue.used)),
            nbytes=queue.budget.used,
            maxsize=queue.maxsize,
            full=any(client.puts for client in clients.values()),
            producers=sorted(client_id for client_id, client in clients.items() if client.has_put or client.puts),
            consumers=sorted(client_id for client_id, client in clients.items() if client.has_got or client.gets),
            clients=sorted(clients),
            gone={group: sorted(ranks) for group, ranks in hosted.gone_producers.items()},
            ledger=hosted.ledger(),
        )

    def measures(self) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
        """Yield each channel's name with the counts of its items, their bytes, waiting puts and waiting gets."""
        for hosted in self._hosted.values():
            queue = hosted.queue
            puts, gets = map(sum, zip(*map(queue.waiting, queue.used), strict=True)) if queue.used else (0, 0)
            yield hosted.name, (sum(map(queue.size, queue.used)), queue.budget.used, puts, gets)

    def status(self) -> dict[str, Any]:
        """Map each queue's name to its status; if a name was reused, the older queue's key includes its number."""
        found: dict[str, Any] = {}
        for hosted in reversed(self._hosted.values()):
            clients = hosted.queue.clients.values()
            found[f"{hosted.name} (number {hosted.number})" if hosted.name in found else hosted.name] = {
                "number": hosted.number,
                "keys": len(hosted.queue.used),
                "bytes": hosted.queue.budget.used,
                "waiting_bytes": sum(put.nbytes for client in clients for put in client.puts.values()),
                "clients": len(hosted.queue.clients),
            }
        return found


def _numbers(facts: Any) -> list[int]:
    if type(facts) is list and all(type(number) is int and number >= 0 for number in facts):
        return facts
    raise TypeError(f"a list of numbers was expected, got {facts!r}")


def _key(key: Any) -> bytes:
    if type(key) is bytes:
        return key
    raise TypeError(f"a key is bytes, got {key!r}")


def _is_question(frame: list[Any]) -> bool:
    """True if the answer depends on the items now in the queue."""
    if frame[0] == frames.GET:
        return frames.is_for_now(frame[7])
    return frame[0] == frames.QUEUE and frame[5] in ("size", "peek")


def _count_sent(frame: list[Any]) -> int:
    """Return the number of completed puts into unbounded channels in a frame."""
    if frame[0] == frames.PUT:
        return int(frame[8] == frames.SENT)
    if frame[0] == frames.QUEUE and frame[5] == "requests":
        return sum(put[3] == frames.SENT for put in frame[6][0])
    return 0

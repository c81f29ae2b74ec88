"""Queues of the channels that this daemon hosts: handles PUT, GET and QUEUE frames, and closes with their owners.

Plain calls from the router, no task and no wait: a frame is handled, and all that follows from it sent, before the next
frame is read.  The items that a queue holds are held here, bytes or descriptors of sealed memory, so that they
outlive their producers.

A channel is its number (``channel_names.py``): requests to one that is not here are answered with "gone".

Processes of this node put with credit (``_channels/state/credit.py``): such a put is done for them as soon as it is on
their socket.  So a question about a queue is answered when those sockets have been read: it may follow a put of
which its client was told by the producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

from rlinf_async import settings
from rlinf_async._channels.state.actions import ACCEPTED, DELIVER, Act, Step
from rlinf_async._channels.state.credit import ITEM_OVERHEAD_BYTES, Recall, cost
from rlinf_async._channels.state.prefetch import CallBack, Question
from rlinf_async._channels.state.queue import Queue
from rlinf_async._channels.state.queue_client import Item
from rlinf_async._channels.state.refusals import refusal
from rlinf_async._core import frames, operations
from rlinf_async._core.descriptors import limit_met
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.segment import close_fds
from rlinf_async._inspection.state.run_report import QueueReport
from rlinf_async.errors import ClosedError

from .channel_replies import ChannelReplies
from .cleanup import run_all
from .handlers import LATER, Requester
from .hosted_channel import HostedChannel, Segment
from .router import Router

logger = own_logger(__name__)


class Channels:
    """The queues of one daemon."""

    def __init__(self, loop: asyncio.AbstractEventLoop, router: Router, gone: Container[int], budget: int) -> None:
        """``gone`` are the endpoints that are no more; ``budget`` is ``max_bytes`` where none is given."""
        self._loop = loop
        self._router = router
        self._gone = gone
        self._budget = budget
        self._me = frames.endpoint(router.node, 0)
        self._hosted: dict[int, HostedChannel] = {}
        self._replies = ChannelReplies(loop, router)
        self._questions: list[list[Any]] = []
        """Frames with questions about a queue, which wait until the sockets of producers have been read."""
        self._discarded: set[int] = set()
        """Channels that were thrown away a moment ago: items on their way to them with credit are no loss."""
        router.on_channel = self.on_frame

    def __repr__(self) -> str:
        return f"<Channels [{len(self._hosted)} queues here]>"

    # -- frames of clients --------------------------------------------------------------------------------------

    def on_frame(self, frame: list[Any], fds: list[int]) -> None:
        """A PUT, GET or QUEUE for a queue of this daemon."""
        kind, source, number = frame[0], frame[2], frame[4]
        hosted = self._hosted.get(number)
        if hosted is None:
            close_fds(fds)
            lost = _count_credited(frame)
            if lost and number not in self._discarded:
                self._replies.send(source, number, "lost", lost)
            if kind != frames.QUEUE or frame[5] in ("size", "peek", "requests"):
                self._replies.send(source, number, "gone", "")
        elif hosted.queue.ledger.outstanding and _is_question(frame) and self._must_drain(hosted, source):
            if not self._questions:
                self._loop.call_soon(self._drain_producers)
            self._questions.append(frame)
        else:
            self._handle(hosted, frame, fds)

    def _handle(self, hosted: HostedChannel, frame: list[Any], fds: list[int]) -> None:
        kind, source = frame[0], frame[2]
        if kind == frames.PUT:
            _, _, _, _, _, put, key, weight, mode, body = frame
            carried: Any = Segment(fds[0], body) if fds else body
            self._put(hosted, source, put, key, weight, mode, carried)
        elif kind == frames.GET:
            _, _, _, _, _, get, key, target, taken = frame
            self._get(hosted, source, get, key, target)
            if taken:
                self._taken(hosted, source, taken)
        else:
            close_fds(fds)
            self._on_queue_frame(hosted, source, frame[5], frame[6])

    def _put(
        self, hosted: HostedChannel, source: int, number: int, key: bytes, weight: int, mode: int, body: Any
    ) -> None:
        carried: bytes | Segment | None
        if type(body) is bytes:
            carried, size = body, len(body)
        elif type(body) is Segment:
            carried, size = body, body.size
        else:
            carried, size = None, body if type(body) is int else -1  # announced
        if type(key) is not bytes or type(weight) is not int or weight < 0 or size < 0:
            paid = cost(size) if mode == frames.CREDITED and size >= 0 else 0
            what = f"a put with key {key!r}, weight {weight!r} and {size} bytes"
            self._turn_down(hosted, source, number, what, paid)
        queue = hosted.queue
        if mode == frames.SUPPLY:
            steps = queue.supply(source, number, carried)
        elif mode == frames.CREDITED:
            steps = queue.put(source, number, key, weight, size + ITEM_OVERHEAD_BYTES, carried, paid=cost(size))
        else:
            steps = queue.put(source, number, key, weight, size + ITEM_OVERHEAD_BYTES, carried, mode == frames.NOWAIT)
        if steps:
            self._follow(hosted, steps)

    def _get(self, hosted: HostedChannel, source: int, number: int, key: bytes, target: Any) -> None:
        if type(key) is not bytes:
            self._turn_down(hosted, source, number, f"a get with key {key!r}")
        if target is None:
            steps = hosted.queue.get(source, number, key)
        elif target == frames.AHEAD:
            steps = hosted.queue.get(source, number, key, prefetched=True)
        else:
            try:
                asked = frames.wanted(target)
            except TypeError as error:
                self._turn_down(hosted, source, number, str(error))
            steps = hosted.queue.get(source, number, key, *asked)
        if steps:
            self._follow(hosted, steps)

    def _turn_down(self, hosted: HostedChannel, source: int, number: int, what: str, paid: int = 0) -> NoReturn:
        """Refuses a request that makes no sense: neither its caller nor later requests wait for it."""
        self._follow(hosted, hosted.queue.skip(source, number, paid))
        text = f"channel '{hosted.name}' can make nothing of {what}"
        self._replies.send(source, hosted.number, "failed", [number, "ValueError", text])
        raise TypeError(text)

    def _taken(self, hosted: HostedChannel, source: int, numbers: Sequence[int]) -> None:
        steps = hosted.queue.taken(source, numbers)
        if steps or hosted.queue.closed:
            self._follow(hosted, steps)

    def _on_queue_frame(self, hosted: HostedChannel, source: int, what: str, facts: Any) -> None:
        queue = hosted.queue
        if what == "requests":
            puts, gets, taken = facts
            nonsense: TypeError | None = None
            for ask, requests in ((self._put, puts), (self._get, gets)):
                for request in requests:
                    try:
                        ask(hosted, source, *request)
                    except TypeError as error:
                        nonsense = nonsense or error  # the other requests are carried out
            self._taken(hosted, source, taken)
            if nonsense is not None:
                raise nonsense
        elif what == "taken":
            self._taken(hosted, source, facts)
        elif what == "returned":
            amount, answers = facts
            _numbers([amount])
            self._follow(hosted, queue.returned(source, amount, answers=answers))
        elif what == "cancel":
            self._follow(hosted, queue.cancel(source, *_numbers(facts)))
        elif what == "gave_back":
            key, numbers = facts
            self._follow(hosted, hosted.prefetch.gave_back(source, _key(key), _numbers(numbers)))
        elif what in ("size", "peek"):
            question, key = facts
            _numbers([question]), _key(key)
            self._follow(hosted, hosted.prefetch.ask(source, key, (what, question)))

    def _answer(self, hosted: HostedChannel, asked: Question) -> None:
        queue, source, key = hosted.queue, asked.consumer, asked.key
        what, question = asked.what
        if what == "size":
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
        what, act, stay = "an item", "hand it over", "the item stays in the channel"
        if count > 1:
            what, act = f"{count} items", "hand them over at once"
            stay = "they stay in the channel, take fewer: get(), or get_many(n, wait=False)"
        return "OSError", (
            f"the daemon of node {self._router.node} has {what} of channel '{hosted.name}' and cannot {act}: "
            f"{error.strerror}{limit_met(error)}; {stay}"
        )

    # -- questions ----------------------------------------------------------------------------------------------

    def _must_drain(self, hosted: HostedChannel, source: int) -> bool:
        """Whether other clients may have sent items that have not come in."""
        return any(holder != source for holder in hosted.queue.ledger.holders())

    def _drain_producers(self) -> None:
        """Reads what had been said on the sockets of those who hold credit, and then answers."""
        # A put on credit is done for its producer when it is on the socket.  The producer may have told another
        # process, whose question may be read first.  So before it is answered, what lies on those sockets now is read,
        # once for all questions of one turn of the loop.
        # tests/launcher/daemon/test_channels.py::test_who_asks_what_is_there_is_answered_when_others_have_been_heard
        while self._questions:
            questions, self._questions = self._questions, []
            asked = {frame[4]: self._hosted[frame[4]] for frame in questions if frame[4] in self._hosted}
            for holder in {holder for hosted in asked.values() for holder in hosted.queue.ledger.holders()}:
                endpoint = self._router.endpoints.get(frames.number_of(holder))
                if endpoint is not None and endpoint.connection is not None:
                    endpoint.connection.read_available()
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

    def _follow(self, hosted: HostedChannel, steps: list[Step]) -> None:
        for act, what in steps:
            if act == ACCEPTED:
                self._replies.pending(hosted, what.producer).accepted.append(what.number)
            elif act == DELIVER:
                try:
                    self._replies.deliver(hosted, what)
                except OSError as full:
                    text = self._cannot_give(hosted, full, len(what.items))
                    self._replies.send(what.consumer, hosted.number, "failed", [what.number, *text])
                    steps += hosted.queue.cancel(what.consumer, what.number)  # they follow when these are through
            elif act == Act.GRANT:
                self._replies.pending(hosted, what.client).credit += what.amount
            elif act == Act.RECALL:
                # What it was granted is told first.  The other way round it would return what it has, and then get
                # credit that is not reckoned with any more: what it puts for that would be lost.  A process that does
                # not answer is waited for so long and no longer, or a stopped one would keep a channel from closing.
                # tests/launcher/daemon/test_channels.py::test_a_close_is_answered_when_all_credit_is_back
                # tests/launcher/daemon/test_channels.py::
                # test_who_does_not_return_credit_is_closed_over_and_hears_what_is_lost
                self._replies.flush(hosted, what.client)
                self._replies.send(what.client, hosted.number, "recall", None)
                self._loop.call_later(settings.CHANNEL_RETURN_TIMEOUT_S(), self._forfeit, hosted, what)
            elif act == Act.ANSWER:
                self._answer(hosted, what)
            elif act == Act.CALL_BACK:
                self._replies.flush(hosted, what.client)
                self._replies.send(what.client, hosted.number, "call_back", what.key)
                self._loop.call_later(settings.CHANNEL_RETURN_TIMEOUT_S(), self._forfeit_prefetched, hosted, what)
            elif act == Act.LOST:
                self._replies.send(what.producer, hosted.number, "lost", 1)
            elif act == Act.PARKED:
                self._replies.send(what.producer, hosted.number, "parked", [what.number])
            elif act == Act.PULL:
                self._replies.send(what.producer, hosted.number, "pull", [what.number])
            else:
                who = what.producer if type(what) is Item else what.consumer
                error = refusal(act, what, hosted.name, hosted.queue.budget.max_bytes)
                self._replies.send(who, hosted.number, "failed", [what.number, *error])
        if hosted.queue.closed:
            self._answer_closers(hosted)
            if hosted.queue.finished:
                self._end(hosted, "")

    def _forfeit(self, hosted: HostedChannel, recall: Recall) -> None:
        if hosted.number in self._hosted:
            self._follow(hosted, hosted.queue.forfeit(recall))

    def _forfeit_prefetched(self, hosted: HostedChannel, call: CallBack) -> None:
        if hosted.number in self._hosted:
            self._follow(hosted, hosted.prefetch.forfeit(call))

    def _answer_closers(self, hosted: HostedChannel) -> None:
        closers, hosted.closers = hosted.closers, []
        for closer, number in closers:
            self._router.deliver((frames.ANSWER, 0, self._me, closer, number, True, True))

    # -- operations ---------------------------------------------------------------------------------------------

    async def host_channel(self, requester: Requester, op: operations.HostChannel) -> None:
        """Makes the queue of a channel on this node."""
        max_bytes = op.max_bytes or self._budget
        queue = Queue(op.maxsize, max_bytes, self._gone, lends_to=self._lends_to)
        if op.number in self._hosted:
            raise ValueError(f"a new channel has a number that no other one has, got {op.number}")
        self._hosted[op.number] = HostedChannel(op.number, op.name, requester.endpoint, queue)

    def _lends_to(self, client: int) -> bool:
        """Items of a process of this node come in even if it dies; from another node they may be lost on the way."""
        return frames.node_of(client) == self._router.node

    async def close_channel(self, requester: Requester, op: operations.CloseChannel) -> Any:
        """No more puts; the queue is gone once what is in it has been taken.  False if there is no such queue.

        Answered when all that was put before has come in; a process that does not say in time
        (``settings.CHANNEL_RETURN_TIMEOUT_S``) what it has put is not waited for.  Where what is in it is to be
        discarded, the queue is gone at once.
        """
        hosted = self._hosted.get(op.number)
        if hosted is None:
            return False
        if op.discard and hosted.queue.ledger.outstanding:
            self._discarded.add(hosted.number)
            self._loop.call_later(settings.CHANNEL_RETURN_TIMEOUT_S(), self._discarded.discard, hosted.number)
        steps = hosted.queue.close(discard=op.discard)
        if hosted.queue.closed:
            self._follow(hosted, steps)
            return True
        if requester.endpoint not in self._gone:
            hosted.closers.append(requester)
        self._follow(hosted, steps)
        return LATER

    async def count_items(self, requester: Requester, op: operations.CountItems) -> list[Any]:
        """What has become of a queue's items.

        Raises:
            ClosedError: it is closed, and nothing is left in it.
        """
        hosted = self._hosted.get(op.number)
        if hosted is None:
            raise ClosedError("it is closed, and everything in it has been taken")
        return hosted.queue.counts().to_data()

    # -- ends ---------------------------------------------------------------------------------------------------

    def drop_client(self, gone: int) -> None:
        """A process is dead: its leases go back, what it waited for is forgotten.  What it has put stays."""
        # An item that was delivered is leased until its consumer says that it took it: a consumer that dies in between
        # has not handed it to anybody.  It goes back to its own place, not to the end: order holds across the death.
        # tests/channel/test_ends.py::test_what_a_killed_consumer_had_not_taken_goes_to_the_next_at_its_place
        # tests/channel/test_ends.py::test_what_was_accepted_outlives_its_producer_and_what_waited_does_not
        run_all(f"endpoint {gone}", [partial(self._drop_from, hosted, gone) for hosted in list(self._hosted.values())])

    def _drop_from(self, hosted: HostedChannel, gone: int) -> None:
        hosted.closers = [closer for closer in hosted.closers if closer[0] != gone]
        client, endpoint = hosted.queue.clients.get(gone), self._router.endpoints.get(frames.number_of(gone))
        if client is not None and client.has_put and frames.node_of(gone) == self._router.node and endpoint is not None:
            hosted.note_gone(endpoint)
        self._follow(hosted, hosted.queue.drop(gone))

    def drop_owner(self, gone: int) -> None:
        """Ends the channels of a driver that is gone, or of a worker whose group is."""
        why = "the process that had created it is gone, or its group is closed"
        owned = [hosted for hosted in self._hosted.values() if hosted.owner == gone]
        run_all(f"endpoint {gone}", (partial(self._end, hosted, why) for hosted in owned))

    def clients_and_owners(self) -> set[int]:
        """Everybody for whom something is kept here."""
        known: set[int] = set()
        for hosted in self._hosted.values():
            known |= {hosted.owner, *hosted.queue.clients}
        return known

    def _end(self, hosted: HostedChannel, why: str) -> None:
        if self._hosted.pop(hosted.number, None) is None:
            return
        self._replies.flush_all()
        self._answer_closers(hosted)
        for client in hosted.queue.clients:
            self._replies.send(client, hosted.number, "gone", why)
        self._router.request(0, operations.QueueEnded(hosted.number))

    def describe(self, number: int, key: bytes) -> str:
        """Says in words how much is queued under a key of a channel, and how many requests wait."""
        hosted = self._hosted.get(number)
        if hosted is None:
            return "not there"
        queue = hosted.queue
        items, (puts, gets) = queue.size(key), queue.waiting(key)
        used = len(queue.clients)
        return (
            f"{items} item{'s' * (items != 1)} under this key, {puts} put{'s' * (puts != 1)} and {gets} "
            f"get{'s' * (gets != 1)} wait; {used} process{'es' * (used != 1)} use{'s' * (used == 1)} the channel"
        )

    def reports(self) -> list[QueueReport]:
        """Every queue of this node, and the processes that use it."""
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
            producers=sorted(who for who, client in clients.items() if client.has_put or client.puts),
            consumers=sorted(who for who, client in clients.items() if client.has_got or client.gets),
            clients=sorted(clients),
            gone={group: sorted(ranks) for group, ranks in hosted.gone_producers.items()},
        )

    def measures(self) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
        """Of each queue: the name of its channel; its items, their bytes, and the puts and gets that wait."""
        for hosted in self._hosted.values():
            queue = hosted.queue
            puts, gets = map(sum, zip(*map(queue.waiting, queue.used), strict=True)) if queue.used else (0, 0)
            yield hosted.name, (sum(map(queue.size, queue.used)), queue.budget.used, puts, gets)

    def status(self) -> dict[str, Any]:
        """The queues by name; of several that have had one name all but the latest with their numbers."""
        found: dict[str, Any] = {}
        for hosted in reversed(self._hosted.values()):
            found[f"{hosted.name} (number {hosted.number})" if hosted.name in found else hosted.name] = {
                "number": hosted.number,
                "keys": len(hosted.queue.used),
                "bytes": hosted.queue.budget.used,
                "waiting_bytes": hosted.queue.budget.buffered,
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
    """Whether the answer depends on what the queue holds."""
    if frame[0] == frames.GET:
        return frame[7] == frames.NOW or type(frame[7]) is list
    return frame[0] == frames.QUEUE and frame[5] in ("size", "peek")


def _count_credited(frame: list[Any]) -> int:
    """How many items a frame brings that are in for their producer already."""
    if frame[0] == frames.PUT:
        return int(frame[8] == frames.CREDITED)
    if frame[0] == frames.QUEUE and frame[5] == "requests":
        return sum(put[3] == frames.CREDITED for put in frame[6][0])
    return 0

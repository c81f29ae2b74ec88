"""Mailboxes within one process, frame by frame, over links that fail on command."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlinf_async._core import frames, operations
from rlinf_async._messaging import exchange, peers
from rlinf_async._messaging.message_content import Payload
from rlinf_async._messaging.operation import SendWork
from rlinf_async._messaging.state import message_facts
from rlinf_async._messaging.state.flow_control import SendWindow, WindowEntry
from rlinf_async._transports import shared_memory, transport_choice
from rlinf_async._transports.inline import InlineLink
from rlinf_async.errors import ClosedError, DeadlineExceeded, NodeLost, SerializationError, TransferFailed, WorkerDied
from tests._support.fake_exchanges import FakeLink, Network, cancelled

BIG = torch.arange(600_000)
REPORT = {"group": "b", "rank": 0, "node": "n", "pid": 100, "verdict": "was killed by SIGKILL"}


@pytest.fixture
def network() -> Iterator[Network]:
    """Its two workers are on different nodes."""
    network = Network()
    yield network
    network.close()


@pytest.fixture
def near() -> Iterator[Network]:
    """On one node."""
    network = Network(far=False)
    yield network
    network.close()


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeLink]]:
    """Those that are made in the test, the first sender's first."""
    monkeypatch.setattr(peers, "make_link", lambda name, *args: FakeLink(*args))
    yield FakeLink.made
    for link in FakeLink.made:
        link.sent.clear()
        link.received.clear()
    FakeLink.made.clear()
    gc.collect()  # errors that were raised hold on to the frames that they came through


def send(network: Network, value: Any, timeout: float | None = None) -> Any:
    return network.a.send(value, "b", 0, None, None, timeout)


def recv(network: Network, timeout: float | None = None) -> Any:
    return network.b.recv("a", 0, None, timeout)


# -- who ------------------------------------------------------------------------------------------------------------


def test_a_peer_is_looked_up_introduced_to_and_watched_once(network: Network) -> None:
    for value in range(3):
        send(network, value)
    network.deliver()
    requests = network.client("a").requests
    assert [request for request in requests if not isinstance(request[0], operations.CancelFind)] == [
        (operations.Find("group", "b", None, 0), 0),
        (operations.Watch([6]), 1),
        (operations.WatchedBy([network.endpoints["b"]]), -1),
    ]
    assert network.words() == [message_facts.INTRODUCE, *[message_facts.DATA] * 3]
    assert [recv(network).wait(0) for _ in range(3)] == [0, 1, 2]
    assert not network.client("b").requests  # it has been introduced, and the other daemon tells of that one's end


def test_those_who_wait_for_a_name_keep_their_order(network: Network) -> None:
    network.names.discard("b")
    works = [send(network, value) for value in range(3)]
    assert not network.frames
    network.publish("b")
    works.append(send(network, 3))
    network.deliver()
    assert all(work.done() for work in works)
    assert [recv(network).wait(0) for _ in range(4)] == [0, 1, 2, 3]
    kinds = [type(operation) for operation, _ in network.client("a").requests]
    assert kinds == [operations.Find, operations.Watch, operations.WatchedBy]


def test_nobody_overtakes_those_who_wait_for_a_name_by_having_met_the_peer_meanwhile(network: Network) -> None:
    network.names.discard("b")
    send(network, "first")
    network.b.send("hello", "a", 0, None, None, None)
    network.deliver()
    send(network, "second")
    network.publish("b")
    network.deliver()
    assert [recv(network).wait(0) for _ in range(2)] == ["first", "second"]


def test_a_name_that_nobody_has_is_given_up_after_a_while_with_those_that_there_are(network: Network) -> None:
    network.names.discard("b")
    works: list[Any] = [send(network, 1), send(network, 2), network.a.find_group("b")]
    ((seconds, give_up),) = network.client("a").timers
    assert seconds == 120
    give_up()
    for work in works:
        with pytest.raises(DeadlineExceeded, match="no group named 'b' within 120 s; there are: a"):
            work.wait(0)
    network.publish("b")
    send(network, 3)
    network.deliver()
    assert recv(network).wait(0) == 3


def test_a_name_is_given_up_although_the_daemon_that_knows_the_names_is_frozen(network: Network) -> None:
    network.names.discard("b")
    network.is_frozen = True
    sending, (_, give_up) = send(network, 1), network.client("a").timers.pop()
    give_up()
    assert not sending.done()
    ((seconds, give_up),) = network.client("a").timers
    give_up()
    with pytest.raises(DeadlineExceeded, match=f"within 120 s, and for {seconds:g} s more node 0 has not said which"):
        sending.wait(0)


async def test_what_is_given_up_while_it_waits_for_a_name_is_never_sent(network: Network) -> None:
    network.names.discard("b")
    await cancelled(send(network, "never"))
    send(network, "once")
    network.publish("b")
    network.deliver()
    assert recv(network).wait(0) == "once"


def test_a_broadcast_has_as_many_members_as_one_likes(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        entry | {"endpoint": frames.endpoint(1, 6 + rank)} for rank, entry in enumerate(network.roster("b") * 500)
    ]
    monkeypatch.setattr(network, "roster", lambda group: entries)
    send(network, "so that the group is known")
    network.a.broadcast("for all", [("a", 0), ("b", list(range(500)))], None, None, None)
    assert len(network.frames[-1][0][3][0][1]) == 1000  # one frame, to 500 workers, each with its slot


# -- contents that come by a link -----------------------------------------------------------------------------------


def bring(link_of_a: FakeLink, link_of_b: FakeLink, transfer: int = 1) -> None:
    """The link delivers to the receiver; the sender is not told."""
    _, contents = link_of_a.sent[transfer]
    link_of_b.received[transfer]._settle([memoryview(bytearray(content)) for content in contents])


def test_a_large_message_to_another_node_takes_a_link_and_is_done_when_it_is_there(
    network: Network, links: list[FakeLink]
) -> None:
    sending = send(network, BIG)
    network.deliver()
    assert not sending.done()
    receiving = recv(network)
    bring(*links)
    network.deliver()
    assert sending.done()
    assert torch.equal(receiving.wait(0), BIG)


@pytest.mark.parametrize("failing", ["sender", "receiver", "both"])
def test_what_a_link_loses_is_sent_again_by_the_daemons_and_arrives_once(
    network: Network, links: list[FakeLink], failing: str
) -> None:
    sending, receiving, second = send(network, BIG), recv(network), recv(network)
    network.deliver()
    error = TransferFailed("cut")
    if failing != "receiver":
        links[0].sent[1][0]._settle(error=error)
    if failing == "sender":
        bring(*links)
    else:
        links[1].received[1]._settle(error=error)
    network.deliver()
    assert sending.done()
    assert torch.equal(receiving.wait(0), BIG)
    assert not second.done()
    assert network.words().count(message_facts.CONTENT) == 1
    send(network, "next")
    network.deliver()
    assert second.wait(0) == "next"


def test_a_second_way_that_cannot_be_chosen_ends_the_send(
    network: Network, links: list[FakeLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(shared_memory.BUDGET, "plenty")
    monkeypatch.setattr(shared_memory, "budget", shared_memory.budget.__wrapped__)
    sending = send(network, BIG)
    network.deliver()
    links[0].sent[1][0]._settle(error=TransferFailed("cut"))
    network.deliver()
    with pytest.raises(ValueError, match="'plenty' is no size"):
        sending.wait(0)


def test_a_link_that_never_works_is_not_tried_for_ever(network: Network, links: list[FakeLink]) -> None:
    for _ in range(5):
        send(network, BIG)
        network.deliver()
        for work in links[1].received.values():
            work._settle(error=TransferFailed("no way"))
        network.deliver()
        assert torch.equal(recv(network).wait(0), BIG)
    assert len(links[0].sent) == 3


def test_a_receiver_without_memory_fails_both_sides_and_the_line_goes_on(
    network: Network, links: list[FakeLink]
) -> None:
    sending, receiving = send(network, BIG), recv(network)
    network.deliver()
    links[1].received[1]._settle(error=MemoryError("none"))
    network.deliver()
    with pytest.raises(MemoryError, match="none"):
        receiving.wait(0)
    with pytest.raises(ValueError, match=r"rank 0 of group 'b' on n .* could not receive a message: none"):
        sending.wait(0)
    send(network, "next")
    network.deliver()
    assert recv(network).wait(0) == "next"


async def test_a_send_that_is_given_up_under_way_is_withdrawn(network: Network, links: list[FakeLink]) -> None:
    sending, receiving = send(network, BIG), recv(network)
    network.deliver()
    await cancelled(sending)
    send(network, "next")
    network.deliver()
    assert receiving.wait(0) == "next"
    assert len(links[0].discarded) == 1
    with pytest.raises(ClosedError, match=r"send\(\) to rank 0 of group 'b' .*was withdrawn: nobody waited"):
        sending.wait(0)


def test_a_message_that_a_daemon_cannot_pass_on_fails_its_receiver(network: Network) -> None:
    def spoil(frame: list[Any]) -> None:
        if frame[4][0] == message_facts.DATA:
            frame[1], frame[5] = 0, "the daemon of node 1 cannot pass the message on"

    send(network, torch.ones(50_000))
    network.deliver(change=spoil)
    with pytest.raises(TransferFailed, match="the daemon of node 1 cannot pass the message on"):
        recv(network).wait(0)


# -- room -----------------------------------------------------------------------------------------------------------


def test_what_is_larger_than_all_room_is_announced_and_sent_when_it_is_asked_for(near: Network) -> None:
    giant = torch.zeros(9 << 20, dtype=torch.float64)
    sending = send(near, giant)
    near.deliver()
    assert not sending.done()
    assert near.words() == [message_facts.INTRODUCE, message_facts.ANNOUNCE]
    receiving = recv(near)
    near.deliver()
    assert sending.done()
    assert receiving.wait(0).shape == giant.shape
    assert near.words()[-2:] == [message_facts.GRANT, message_facts.CONTENT]


def test_room_is_returned_as_messages_are_received(near: Network) -> None:
    piece = torch.zeros(3 << 20, dtype=torch.float64)
    works = [send(near, piece) for _ in range(6)]
    near.deliver()
    assert [work.done() for work in works] == [True, True, False, False, False, False]
    for _ in works:
        assert recv(near).wait(0).nbytes == piece.nbytes
        near.deliver()
    assert all(work.done() for work in works)


def test_no_content_overtakes_its_announcement_when_room_is_returned_at_that_moment(
    near: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = torch.zeros(3 << 20, dtype=torch.float64)
    first = [send(near, piece) for _ in range(2)]
    near.deliver()
    receiving = recv(near)  # its word that there is room again is under way
    post, reader = peers.Peers.post, threading.Thread(target=near.deliver)

    def post_slowly(self: peers.Peers, receivers: Any, facts: Any, *rest: Any) -> None:
        if facts[0] == message_facts.ANNOUNCE:
            reader.start()
            reader.join(0.3)
        post(self, receivers, facts, *rest)

    monkeypatch.setattr(peers.Peers, "post", post_slowly)
    last = send(near, piece)
    monkeypatch.undo()
    reader.join(10)
    for _ in range(2):
        near.deliver()
        receiving.wait(0)
        receiving = recv(near)
    near.deliver()
    assert receiving.wait(0).shape == piece.shape
    assert all(work.done() for work in (*first, last))
    assert near.words().index(message_facts.ANNOUNCE) < near.words().index(message_facts.CONTENT)


def test_room_that_is_returned_while_a_message_is_being_sent_does_not_empty_it(
    near: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_room, asked = SendWindow.has_room, []

    def has_room_from_the_second_time_on(self: SendWindow[Any], entry: WindowEntry) -> bool:
        asked.append(entry)
        return len(asked) > 1 and has_room(self, entry)

    monkeypatch.setattr(SendWindow, "has_room", has_room_from_the_second_time_on)
    send(near, BIG)
    receiving = recv(near)
    near.deliver()
    assert torch.equal(receiving.wait(0), BIG)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_message_that_cannot_be_packed_fails_alone_and_takes_no_room(
    near: Network, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def refuse(_: Payload) -> None:
        raise error("none")

    with monkeypatch.context() as patch:
        patch.setattr(Payload, "pack", refuse)
        for _ in range(20):
            with pytest.raises(error, match="none"):
                send(near, BIG).wait(0)
    send(near, "next")
    near.deliver()
    assert recv(near).wait(0) == "next"
    assert all(stream.window.outstanding < 1000 for stream in near.a._mailbox.outbox._streams.values())


def test_a_tensor_whose_copy_is_interrupted_is_there_for_the_next_receive(
    near: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    sending, target = near.a.send_tensor(BIG, "b", 0, None, None), torch.zeros_like(BIG)
    near.deliver()
    with monkeypatch.context() as patch:
        patch.setattr(exchange._TensorAcceptor, "arrived", interrupt)
        with pytest.raises(KeyboardInterrupt):
            near.b.recv_tensor(target, "a", 0, None, None)
    near.b.recv_tensor(target, "a", 0, None, None).wait(0)
    near.deliver()
    assert sending.done()
    assert torch.equal(target, BIG)


@pytest.mark.parametrize("size", [10, 100_000, 1 << 20])
def test_what_comes_on_a_line_that_is_forgotten_is_not_kept(network: Network, links: list[FakeLink], size: int) -> None:
    """A line of a relay, on which nothing leaves before it is received."""
    send(network, "hello")
    network.deliver()
    outbox, inbox = network.a._mailbox.outbox, network.b._mailbox.inbox
    peer = network.a._mailbox.peers.at(network.endpoints["b"])
    before = repr(inbox)
    sending = SendWork("relay to", peer, None, Payload(message_facts.TENSOR, None, memoryview(bytearray(size))))
    outbox.send(sending, (peer,), "relay 7")
    network.deliver()
    if len(links) > 1:
        bring(*links)
        network.deliver()
    assert not sending.done()
    sending.abandon(ClosedError("enough"))
    network.deliver()
    assert repr(inbox) == before


# -- the end --------------------------------------------------------------------------------------------------------


def test_the_end_of_a_peer_fails_what_is_open_with_it_and_spares_what_is_here(
    network: Network, links: list[FakeLink]
) -> None:
    here = network.b.send("here", "a", 0, None, None, None)
    network.deliver()
    open_ones = [send(network, BIG), send(network, torch.zeros(10 << 20, dtype=torch.float64))]
    open_ones += [network.a.recv("b", 0, None, None) for _ in range(2)]
    network.deliver()
    network.client("a").announce("ended", {"endpoint": network.endpoints["b"], "report": REPORT})
    assert here.done()
    assert open_ones.pop(2).wait(0) == "here"
    for work in open_ones:
        with pytest.raises(WorkerDied, match=r"rank 0 of group 'b' on n \(pid 100\) was killed by SIGKILL"):
            work.wait(0)
    assert links[0].discarded
    assert repr(network.a._mailbox.outbox) == "<Outbox 0 streams [0 open]>"


def test_a_return_that_is_heard_of_before_the_death_tells_of_the_death(network: Network, links: list[FakeLink]) -> None:
    sending = send(network, BIG)
    network.deliver()
    entry = {"endpoint": frames.endpoint(1, 7), "pid": 101, "info": {"node_name": "n"}}
    facts = {"group": "b", "rank": 0, "was": network.endpoints["b"], "entry": entry, "report": REPORT}
    network.client("a").announce("rank_returned", facts)
    with pytest.raises(WorkerDied, match=r"rank 0 of group 'b' on n \(pid 100\) was killed by SIGKILL"):
        sending.wait(0)
    assert links[0].discarded


def test_the_end_of_a_peer_keeps_nothing_of_what_was_open_with_it(network: Network, links: list[FakeLink]) -> None:
    sending = send(network, BIG)
    network.deliver()
    network.client("a").announce("ended", {"endpoint": network.endpoints["b"], "report": REPORT})
    alive = weakref.ref(sending)
    del sending
    links[0].sent.clear()
    links[0].discarded.clear()
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("supervised", [set(), {"b"}])
def test_the_loss_of_a_node_fails_what_is_open_with_its_workers(network: Network, supervised: set[str]) -> None:
    network.supervised = supervised
    receiving = network.a.recv("b", 0, None, None)
    client = network.client("a")
    client.lost_nodes[1] = NodeLost("node 1 is lost")
    client.announce("node_lost", {"node": 1})
    with pytest.raises(NodeLost, match="node 1 is lost") as lost:
        receiving.wait(0)
    assert lost.value.returns == ("b" in supervised)


@pytest.mark.parametrize("error", [NodeLost("node 1 is lost"), ClosedError("the cluster is closed")], ids=repr)
def test_a_watch_that_fails_fails_what_is_open_with_the_peer(
    network: Network, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    answer = network.answer

    def refuse_watch(work: Any, operation: operations.Operation[Any]) -> None:
        if isinstance(operation, operations.Watch):
            work._settle(error=error)
        else:
            answer(work, operation)

    monkeypatch.setattr(network, "answer", refuse_watch)
    with pytest.raises(type(error), match=str(error)):
        network.a.recv("b", 0, None, 5).wait()


def test_after_the_end_the_name_is_looked_up_anew(network: Network) -> None:
    send(network, 1)
    network.client("a").announce("ended", {"endpoint": network.endpoints["b"], "report": None})
    network.names.discard("b")
    send(network, 2)
    assert list(network.lookups) == ["b"]


def test_a_deadline_names_the_peer_and_what_is_pending(network: Network) -> None:
    receiving = recv(network, timeout=0.01)
    with pytest.raises(DeadlineExceeded) as caught:
        receiving.wait()
    assert str(caught.value) == "recv() from rank 0 of group 'a' on n (pid 100) was not done within 0.01 s"
    send(network, "late")
    network.deliver()
    assert recv(network).wait(0) == "late"


@pytest.mark.parametrize("nbytes", [1 << 10, 2 << 20, 100 << 20])
@pytest.mark.parametrize("moment", ["before its frame leaves", "after its frame has left"])
def test_what_is_given_up_by_one_thread_while_another_sends_it_is_never_received(
    near: Network, monkeypatch: pytest.MonkeyPatch, moment: str, nbytes: int
) -> None:
    made: list[SendWork] = []

    class Late(SendWork):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    post = peers.Peers.post

    def post_late(self: peers.Peers, receivers: Any, facts: Any, *rest: Any) -> None:
        is_first = facts[0] in (message_facts.DATA, message_facts.ANNOUNCE)
        if is_first and moment.startswith("before"):
            made.pop().abandon(DeadlineExceeded("late"))
        post(self, receivers, facts, *rest)
        if is_first and moment.startswith("after"):
            made.pop().abandon(DeadlineExceeded("late"))

    monkeypatch.setattr(exchange, "SendWork", Late)
    monkeypatch.setattr(peers.Peers, "post", post_late)
    monkeypatch.setattr(transport_choice, "fits", lambda nbytes: nbytes < 1 << 20)  # beyond that, a link
    work = near.a.send(torch.empty(nbytes, dtype=torch.uint8), "b", 0, None, None, None)
    monkeypatch.undo()
    with pytest.raises(DeadlineExceeded, match="late"):
        work.wait(0)
    assert work.withdraw is None
    send(near, "next")
    near.deliver()
    received = recv(near)
    near.deliver()
    assert received.wait(0) == "next"


def test_what_has_been_received_is_not_kept(network: Network) -> None:
    """Neither the tensor nor its memory waits for the collector."""
    receiving = recv(network)
    send(network, torch.ones(100_000))
    network.deliver()
    alive = weakref.ref(receiving.wait(0))
    del receiving
    assert alive() is None


def test_a_receive_that_is_given_up_while_it_is_posted_takes_nothing_and_is_not_kept(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread gives it up; its operation does not wait for the collector."""
    inbox = network.b._mailbox.inbox
    post = inbox.receive

    def receive(receiving: Any, *facts: Any) -> None:
        receiving.abandon(ClosedError("enough"))
        post(receiving, *facts)

    gc.collect()
    gc.disable()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(inbox, "receive", receive)
            receiving = recv(network)
        assert receiving.done()
        alive = weakref.ref(receiving)
        del receiving
        assert all(stream.arrivals.is_idle for stream in inbox._streams.values())
        send(network, "message")
        network.deliver()
        assert alive() is None
    finally:
        gc.enable()
    assert recv(network).wait(0) == "message"


@pytest.mark.parametrize("end", ["taken", "given up", "its receiver has died"])
def test_what_has_been_sent_is_not_kept(near: Network, end: str) -> None:
    """Neither the operation nor its payload waits for the collector."""
    value = torch.ones(100_000) if end == "taken" else torch.zeros(9 << 20, dtype=torch.float64)
    gc.collect()
    gc.disable()
    try:
        sending = send(near, value)
        near.deliver()
        if end == "given up":
            sending.abandon(ClosedError("enough"))
        elif end == "taken":
            recv(near).wait(0)
        else:
            near.client("a").announce("ended", {"endpoint": near.endpoints["b"], "report": REPORT})
        assert sending.done()
        alive = weakref.ref(sending)
        del sending
        assert alive() is None
    finally:
        gc.enable()


def test_the_largest_that_rides_on_a_frame_between_nodes_is_below_what_a_link_is_worth() -> None:
    least = int(transport_choice.TRANSPORTS["gloo"].min_bytes)
    assert transport_choice.choose(least - 1, same_node=False, direct=True) == transport_choice.IN_FRAME
    assert transport_choice.choose(least, same_node=False, direct=True) == "gloo"
    assert transport_choice.choose(least, same_node=True, direct=True) == transport_choice.IN_FRAME
    assert transport_choice.choose(least, same_node=False, direct=False) == transport_choice.IN_FRAME


def test_a_row_of_the_table_is_all_that_a_further_transport_takes(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    further = transport_choice.Transport(InlineLink, 100_000, is_authenticated=True)
    monkeypatch.setitem(transport_choice.TRANSPORTS, "further", further)
    sending, receiving = send(network, torch.ones(100_000)), recv(network)
    network.deliver()
    assert sending.done()
    assert receiving.wait(0).equal(torch.ones(100_000))
    assert [set(peer.links) for peer in network.b._mailbox.peers._peers.values()] == [{"further"}]


@pytest.mark.parametrize("is_authenticated", [True, False])
def test_a_pickle_comes_only_by_a_transport_that_shows_credentials(
    network: Network, monkeypatch: pytest.MonkeyPatch, is_authenticated: bool
) -> None:
    further = transport_choice.Transport(InlineLink, 100_000, is_authenticated)
    monkeypatch.setitem(transport_choice.TRANSPORTS, "further", further)
    monkeypatch.setattr(Payload, "has_small_head", True)  # a sender of bad faith
    receiving = recv(network)
    send(network, [0.5] * 100_000)
    network.deliver()
    if is_authenticated:
        assert receiving.wait(0) == [0.5] * 100_000
    else:
        with pytest.raises(SerializationError, match="a connection that is not authenticated"):
            receiving.wait(0)

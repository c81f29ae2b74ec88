"""Messages whose sender, receiver or peer ends, returns or is given up between two steps of an exchange."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlinf_async._core import frames
from rlinf_async._core.failures import pack_error
from rlinf_async._core.operations import Find, Operation
from rlinf_async._messaging import peers
from rlinf_async._messaging.message_content import Payload, encode
from rlinf_async._messaging.operation import SendWork
from rlinf_async._messaging.outbox import InFlight
from rlinf_async._messaging.peer import Peer
from rlinf_async._messaging.relayed_broadcast import END, HOST, RelayedBroadcast
from rlinf_async._messaging.state import message_facts
from rlinf_async._messaging.state.relay_plan import LANDED, ROOM
from rlinf_async._transports import transport_choice
from rlinf_async._transports.inline import InlineLink
from rlinf_async.errors import ClosedError, TransferFailed
from rlinf_async.work import Work
from tests._support.fake_exchanges import FakeLink, Network

BIG = torch.arange(600_000)
REPORT = {"group": "b", "rank": 0, "node": "n", "pid": 100, "verdict": "was killed by SIGKILL"}


@pytest.fixture(params=[True])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    network = Network(far=request.param)
    yield network
    network.close()


near = pytest.mark.parametrize("network", [False], indirect=True)


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeLink]]:
    monkeypatch.setattr(peers, "make_link", lambda name, *args: FakeLink(*args))
    yield FakeLink.made
    FakeLink.made.clear()


def ended(network: Network, *, returns: bool = False) -> None:
    """The daemon of ``b`` tells ``a`` of its end."""
    facts = {"endpoint": network.endpoints["b"], "report": REPORT | {"returns": returns}}
    network.client("a").announce("ended", facts)


def entry_of(endpoint: int) -> dict[str, Any]:
    return {"endpoint": endpoint, "pid": 101, "info": {"node_name": "n"}, "supervised": True}


def returned(network: Network, endpoint: int) -> None:
    was = network.endpoints["b"]
    facts = {"group": "b", "rank": 0, "was": was, "entry": entry_of(endpoint), "report": REPORT}
    network.client("a").announce("rank_returned", facts)


# -- a receive that is cancelled ------------------------------------------------------------------------------------


async def test_the_last_words_of_a_dead_peer_go_back_when_their_receive_is_cancelled(network: Network) -> None:
    network.a.recv("b", 0, None, None).abandon(ClosedError("enough"))  # the two have met
    network.b.send("last words", "a", 0, None, None, None)
    receiving = network.a.recv("b", 0, None, None)
    network.deliver()
    assert receiving.done()
    ended(network)
    receiving._lose_interest()  # its waiter was cancelled before it had the message
    assert network.a.recv("b", 0, None, None).wait(0) == "last words"


def test_what_is_given_up_while_it_waits_for_a_name_is_not_kept_for_the_answer(network: Network) -> None:
    network.names.discard("b")
    sending = network.a.send(torch.ones(50_000), "b", 0, None, None, None)
    other = network.a.send("other", "b", 0, None, None, None)
    alive = weakref.ref(sending.payload)
    sending.abandon(ClosedError("enough"))
    del sending
    gc.collect()
    assert alive() is None
    network.publish("b")
    assert other.done()


# -- a rank that returns --------------------------------------------------------------------------------------------


def test_who_waits_for_a_rank_to_return_is_not_told_of_its_end_by_an_earlier_lookup(network: Network) -> None:
    """The roster that was asked for before the death still has the process that has died."""
    network.supervised = {"b"}
    network.b.send("hello", "a", 0, None, None, None)
    network.deliver()
    network.names.discard("b")
    other = network.a.send("for rank 0 as well", "b", 1, None, None, None)  # has the name looked up
    sending = network.a.send("value", "b", 0, None, None, None)  # waits behind it
    ended(network, returns=True)
    stale = [*network.roster("b"), entry_of(frames.endpoint(1, 9))]
    (lookup,) = network.lookups.pop("b")
    lookup._settle(stale)
    assert other.done()
    assert not sending.done()
    network.endpoints["b"], was = frames.endpoint(1, 7), network.endpoints["b"]
    network.publish("b")
    assert sending.done()
    assert sending.wait(0) is None
    assert network.a.is_restarting("b", 0) is False
    assert was != network.a._mailbox.peers.named("b", 0).endpoint


def test_a_roster_from_before_a_return_takes_no_name_from_the_rank_that_is_back(network: Network) -> None:
    network.supervised = {"b"}
    assert network.a.find_group("b").wait(0) == 1
    ended(network, returns=True)
    assert network.a.find_group("b").wait(0) == 1  # node 0 has not heard of the return
    returned(network, frames.endpoint(1, 7))
    assert network.a.is_alive("b", 0)
    assert network.a.find_group("b").wait(0) == 1
    assert network.a.is_alive("b", 0)


def test_those_who_wait_for_a_rank_keep_their_order_when_it_speaks_before_its_return_is_told(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a rank does that sends something in its constructor."""
    network.supervised = {"b"}
    answer, waiting = network.answer, []

    def answer_once_back(work: Any, operation: Operation[Any]) -> None:
        if isinstance(operation, Find) and operation.after == network.endpoints["b"]:
            waiting.append(work)
        else:
            answer(work, operation)

    monkeypatch.setattr(network, "answer", answer_once_back)
    network.a.send("hello", "b", 0, None, None, None)
    network.frames.clear()
    ended(network, returns=True)
    first = network.a.send("first", "b", 0, None, None, None)
    back = frames.endpoint(1, 7)
    network.a._mailbox._on_facts(back, (message_facts.INTRODUCE, "b", 0, "n", 101), b"", [])
    second = network.a.send("second", "b", 0, None, None, None)
    network.endpoints["b"] = back
    for work in waiting:
        work._settle(network.roster("b"))
    assert first.wait(0) is second.wait(0) is None
    sent = [frame[5] for frame, _ in network.frames if frame[4][0] == message_facts.DATA]
    assert [b"first" in body for body in sent] == [True, False]


@pytest.mark.parametrize("awaited", ["its name", "the return of an earlier process"])
def test_nobody_overtakes_those_who_wait_for_a_name_whose_peer_came_and_died(network: Network, awaited: str) -> None:
    """The peer has introduced itself meanwhile, and what it said before its death is here."""
    network.supervised = {"b"}
    network.names.discard("b")
    if awaited == "the return of an earlier process":
        network.a._mailbox._on_facts(frames.endpoint(1, 3), (message_facts.INTRODUCE, "b", 0, "n", 99), b"", [])
        network.client("a").announce("ended", {"endpoint": frames.endpoint(1, 3), "report": REPORT | {"returns": True}})
    receives = [network.a.recv("b", 0, None, None)]
    sends = [network.a.send("first", "b", 0, None, None, None)]
    for value in (1, 2):
        network.b.send(value, "a", 0, None, None, None)
    network.deliver()
    ended(network, returns=True)
    receives.append(network.a.recv("b", 0, None, None))
    sends.append(network.a.send("second", "b", 0, None, None, None))
    lookup, *of_return = network.lookups.pop("b")
    network.lookups["b"] = of_return
    lookup._settle(network.roster("b"))  # the dead process is still there
    assert [receiving.wait(0) for receiving in receives] == [1, 2]
    assert not any(sending.done() for sending in sends)
    network.endpoints["b"] = frames.endpoint(1, 7)
    network.publish("b")
    assert [sending.wait(0) for sending in sends] == [None, None]
    sent = [frame[5] for frame, _ in network.frames if frame[4][0] == message_facts.DATA]
    assert [b"first" in body for body in sent] == [True, False]


@pytest.mark.parametrize("what", ["a broadcast", "a line of the framework's own"])
def test_whatever_a_rank_has_sent_before_its_death_others_than_its_receives_wait_for_its_return(
    network: Network, what: str
) -> None:
    network.supervised = {"b"}
    network.b.send("before its death", "a", 0, None, None, None)
    network.deliver()
    network.names.discard("b")
    ended(network, returns=True)
    if what == "a broadcast":
        receiving = network.a.broadcast(None, [("b", 0), ("a", 0)], None, None, None)
    else:
        receiving = network.a.recv("b", 0, None, None, "weights")
    assert not receiving.done()
    assert network.a.recv("b", 0, None, None).wait(0) == "before its death"


@pytest.mark.parametrize("first", ["its end", "its return"])
def test_nothing_is_kept_of_a_process_whose_rank_is_back(network: Network, first: str) -> None:
    """Nobody can receive it: its name means another process."""
    groups = [("a", 0), ("b", 0)]
    network.b.send(torch.ones(50_000), "a", 0, None, None, None)
    network.b.broadcast(torch.ones(50_000), groups, ("b", 0), None, None)
    network.a.broadcast(None, groups, ("b", 0), None, None)
    network.deliver()
    network.b.broadcast(torch.ones(50_000), groups, ("b", 0), None, None)
    network.deliver()
    back = frames.endpoint(1, 7)
    if first == "its end":
        ended(network, returns=True)
        returned(network, back)
    else:  # it speaks before the end of the other one is told
        network.a._mailbox._on_facts(back, (message_facts.INTRODUCE, "b", 0, "n", 101), b"", [])
        ended(network, returns=True)
    assert repr(network.a._mailbox.inbox) == "<Inbox 0 streams>"


# -- a send that fails on its way -----------------------------------------------------------------------------------


def test_a_message_that_cannot_be_sent_again_fails_its_send(
    network: Network, links: list[FakeLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Payload) -> None:
        raise MemoryError("none")

    sending = network.a.send(BIG, "b", 0, None, None, None)
    network.deliver()
    monkeypatch.setattr(transport_choice, "fits", lambda nbytes: False)  # by a link once more
    monkeypatch.setattr(Payload, "parts", refuse)
    links[1].received[1]._settle(error=TransferFailed("cut"))
    network.deliver()
    with pytest.raises(MemoryError, match="none"):
        sending.wait(0)


@near
@pytest.mark.parametrize(("end", "last"), [("cannot be packed", 5), ("is given up", 2)])
def test_those_behind_a_message_that_does_not_leave_have_its_room(
    network: Network, monkeypatch: pytest.MonkeyPatch, end: str, last: int
) -> None:
    sizes = [5, 5, last]  # in 8 MiB; the window has 8 of them
    first, second, third = (
        network.a.send(torch.zeros(size << 20, dtype=torch.float64), "b", 0, None, None, None) for size in sizes
    )
    network.deliver()
    assert [work.done() for work in (first, second, third)] == [True, False, False]
    if end == "is given up":
        second.abandon(ClosedError("enough"))
    else:
        pack = Payload.pack

        def refuse(payload: Payload) -> Any:
            if payload is second.payload:
                raise MemoryError("none")
            return pack(payload)

        monkeypatch.setattr(Payload, "pack", refuse)
        network.b.recv("a", 0, None, None).wait(0)
        network.deliver()
        with pytest.raises(MemoryError, match="none"):
            second.wait(0)
    assert third.done()
    network.deliver()
    if end == "is given up":
        network.b.recv("a", 0, None, None).wait(0)
    assert network.b.recv("a", 0, None, None).wait(0).numel() == last << 20


@near
def test_those_behind_a_message_whose_leaving_is_interrupted_leave(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(payload: Payload) -> Any:
        if payload is third.payload:
            raise KeyboardInterrupt
        return pack(payload)

    pack = Payload.pack
    first, second, third, fourth = (
        network.a.send(torch.zeros(size << 20, dtype=torch.float64), "b", 0, None, None, None) for size in (5, 5, 1, 1)
    )
    monkeypatch.setattr(Payload, "pack", interrupt)
    with pytest.raises(KeyboardInterrupt):
        second.abandon(ClosedError("enough"))
    assert [work.done() for work in (first, third, fourth)] == [True, True, True]
    network.deliver()
    sizes = [network.b.recv("a", 0, None, None).wait(0).numel() for _ in range(2)]
    assert sizes == [5 << 20, 1 << 20]


def test_who_sends_again_when_a_send_is_done_may_do_so_while_that_leaves(
    network: Network, links: list[FakeLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that refuses at once has the message done by the daemons before its first try has come to its end."""

    class Refusing(FakeLink):
        def send(self, *_: Any) -> Work[None]:
            failed: Work[None] = Work()
            failed._settle(error=TransferFailed("refused"))
            return failed

    monkeypatch.setattr(peers, "make_link", lambda name, *args: Refusing(*args))
    network.a.send("hello", "b", 0, None, None, None)
    peer = network.a._mailbox.peers.at(network.endpoints["b"])
    kept = SendWork("send() to", peer, None, encode(BIG, None))  # as by an emulated link
    following = kept.then(network.a.send, "next", "b", 0, None, None, None)
    leaving = threading.Thread(target=network.a._mailbox.outbox.send, args=(kept, (peer,), 0), daemon=True)
    leaving.start()
    leaving.join(5)
    assert following.done()
    network.deliver()
    received = [network.b.recv("a", 0, None, None).wait(0) for _ in range(3)]
    assert [received[0], received[2]] == ["hello", "next"]
    assert torch.equal(received[1], BIG)


def test_a_word_of_a_host_whose_relay_ends_at_that_moment_is_heard_by_nobody(network: Network) -> None:
    class Ending(InFlight):
        """Another thread ends its relay as soon as it has been looked at."""

        __slots__ = ("shown",)

        @property
        def relay(self) -> Any:
            relay, self.shown = self.shown, None
            return relay

        @relay.setter
        def relay(self, relay: Any) -> None:
            self.shown = relay

    class Relay:
        heard: list[Any] = []  # noqa: RUF012

        def on_message(self, *words: Any) -> None:
            self.heard.append(words)

        abandon = on_message

    network.a.send("hello", "b", 0, None, None, None)
    outbox, peer = network.a._mailbox.outbox, network.a._mailbox.peers.at(network.endpoints["b"])
    stream = outbox._find(peer.endpoint, 0)
    assert stream is not None
    for number, hear in enumerate([outbox.on_relay, outbox.on_refused], 7):
        sending = SendWork("broadcast() to", peer, None, Payload(message_facts.OBJECT, None, b""))
        stream.open[number] = Ending(sending, [peer])
        stream.open[number].relay = Relay()
        hear(peer, 0, number, "words")
    assert len(Relay.heard) == 2


def test_sends_that_are_given_up_cost_others_by_the_same_link_nothing(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_choice, "fits", lambda nbytes: False)  # in pieces
    monkeypatch.setattr(InlineLink, "_begin", lambda *_: None)  # they are under way until the last one is given up
    sends = [network.a.send(torch.full((50_000,), number), "b", 0, None, None, None) for number in range(8)]
    network.deliver()
    for sending in sends[:-1]:
        sending.abandon(ClosedError("enough"))
        network.deliver()
    assert not sends[-1].done()
    monkeypatch.undo()
    (link,) = network.a._mailbox.peers.at(network.endpoints["b"]).links.values()
    link._begin(8)
    network.deliver()
    assert network.b.recv("a", 0, None, None).wait(0)[0] == 7
    assert sends[-1].wait(0) is None


def test_a_transfer_that_nobody_asks_for_ends_with_its_message(
    network: Network, links: list[FakeLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_choice, "fits", lambda nbytes: False)
    sending = network.a.send(BIG, "b", 0, None, None, None)
    network.deliver()
    links[0].sent[1][0]._settle(error=TransferFailed("cut"))  # it leaves once more; what was cut is there all the same
    links[1].received[1]._settle([memoryview(bytearray(content)) for content in links[0].sent[1][1]])
    network.deliver()
    assert sending.done()
    assert all(work.done() for link in links for work, _ in link.sent.values())


def test_the_death_of_one_receiver_ends_the_transfers_to_the_others(
    network: Network, links: list[FakeLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The send has failed, so what they would get may change while it leaves."""
    monkeypatch.setattr(transport_choice, "fits", lambda nbytes: False)
    network.a.send("hello", "b", 0, None, None, None)
    outbox, other = network.a._mailbox.outbox, network.a._mailbox.peers
    receivers = [other.at(network.endpoints["b"]), other.at(frames.endpoint(2, 8))]
    sending = SendWork("broadcast() to", "them", None, encode(BIG, None))
    outbox.send(sending, receivers, b"stream")
    receivers[1].error = ClosedError("gone")
    outbox.fail(receivers[1])
    assert sending.done()
    assert [len(link.discarded) for link in links] == [1, 1]
    network.frames.clear()


def test_a_broadcast_that_ends_while_its_relay_begins_again_leaves_no_host_behind() -> None:
    """The content for the daemons cannot be packed, and the hosts behind the one that failed were to begin again."""

    class Carrier:
        error = None

        def __init__(self, number: int) -> None:
            self.node = self.address = number
            self.label, self.link, self.peer = f"host {number}", self, Peer(number)
            self.said: list[Any] = []

        def send_message(self, *words: Any) -> None:
            self.said.append(words[0])

        def send_tensor(self, piece: memoryview, line: int) -> Work[None]:
            return Work()

        def forget(self) -> None: ...

        def later(self, seconds: float, callback: Any) -> None: ...

    carriers = [Carrier(number) for number in (1, 2, 3)]
    broadcast = RelayedBroadcast(carriers, lambda peers, memory, error: broadcast.close())  # type: ignore[arg-type]
    broadcast.start(memoryview(bytearray(3 << 20)))
    line = broadcast._relay.plan._machines[1].stream_id
    broadcast.on_message(carriers[0].peer, ROOM, 1, line)
    broadcast.on_message(carriers[0].peer, LANDED, 1, pack_error(MemoryError("none")), None, line)
    for carrier in carriers:
        hosts = [word for word in carrier.said if word in (HOST, END)]
        assert hosts[-1] == END
        assert hosts.count(HOST) == hosts.count(END)

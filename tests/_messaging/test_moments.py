"""Messages whose sender, receiver or peer ends, returns or is given up between two steps of an exchange."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlinf_async._core import frames
from rlinf_async._core.operations import FindGroup, Operation
from rlinf_async._messaging import peers
from rlinf_async._messaging.state import message_facts
from rlinf_async.errors import ClosedError
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
    network.a.recv("b", 0, None, None).give_up(ClosedError("enough"))  # the two have met
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
    sending.give_up(ClosedError("enough"))
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
    assert network.a.comes_back("b", 0) is False
    assert was != network.a._mailbox.peers.named("b", 0).endpoint


def test_a_roster_from_before_a_return_takes_no_name_from_the_rank_that_is_back(network: Network) -> None:
    network.supervised = {"b"}
    assert network.a.find_group("b").wait(0) == 1
    ended(network, returns=True)
    assert network.a.find_group("b").wait(0) == 1  # node 0 has not heard of the return
    returned(network, frames.endpoint(1, 7))
    assert network.a.is_there("b", 0)
    assert network.a.find_group("b").wait(0) == 1
    assert network.a.is_there("b", 0)


def test_those_who_wait_for_a_rank_keep_their_order_when_it_speaks_before_its_return_is_told(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a rank does that sends something in its constructor."""
    network.supervised = {"b"}
    answer, waiting = network.answer, []

    def answer_once_back(work: Any, operation: Operation[Any]) -> None:
        if isinstance(operation, FindGroup) and operation.after == network.endpoints["b"]:
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


async def test_a_broadcast_waits_for_a_rank_that_returns_whatever_that_has_sent_before(network: Network) -> None:
    network.supervised = {"b"}
    network.b.send("before its death", "a", 0, None, None, None)
    network.deliver()
    network.names.discard("b")
    ended(network, returns=True)
    receiving = network.a.broadcast(None, [("b", 0), ("a", 0)], None, None, None)
    assert not receiving.done()

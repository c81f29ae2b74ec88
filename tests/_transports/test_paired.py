"""Agreement protocol of paired links, under every order of messages."""

from __future__ import annotations

import contextlib
import gc
import itertools
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from rlinf_async._transports.open_transfers import _MAX_TRIES
from rlinf_async._transports.pair import Pair, PairOwner
from rlinf_async._transports.paired import PairedLink
from rlinf_async._transports.tcp_connections import Address
from rlinf_async._transports.transfer import ReceiveTransfer, SendTransfer
from rlinf_async.errors import TransferFailed
from rlinf_async.work import Work


class WordSending(SendTransfer):
    def __init__(self, number: int, words: Sequence[str]) -> None:
        super().__init__(number, [len(words)])
        self.words = list(words)

    def chunks(self) -> list[torch.Tensor]:
        raise NotImplementedError


class WordReceiving(ReceiveTransfer[str]):
    def allocate(self) -> None:
        self.chunks = [torch.empty(0)] * self.nbytes
        self.buffers = [""] * self.nbytes


class Half(Pair):
    """A pair without threads: it goes on where the test says so."""

    names = itertools.count()

    def __init__(self, owner: PairOwner, first: bool, network: dict[str, Half]) -> None:
        self.owner, self.first, self.network = owner, first, network
        self.name = f"half {next(self.names)}"
        self.is_open, self.partner = True, ""
        self.error: Exception | None = None
        self.heard: dict[str, bytes] = {}
        self.told = False
        self.asked: deque[WordReceiving] = deque()
        self.taken: dict[int, tuple[WordReceiving, int]] = {}
        self.sent: dict[int, tuple[WordSending, int]] = {}
        self.expected: set[int] = set()
        self.tags = itertools.count()
        self.unsent: list[tuple[WordSending, int, int]] = []
        network[self.name] = self

    @property
    def is_connected(self) -> bool:
        return self.partner != ""

    def on_set(self, key: str, value: bytes) -> None:
        self.heard[key] = value

    def admit(self, address: Address) -> None:
        assert not self.first
        self.partner = address[0]

    def receive(self, receiving: ReceiveTransfer[Any]) -> None:
        assert isinstance(receiving, WordReceiving)
        self.asked.append(receiving)

    def send(self, sending: SendTransfer, tag: int, start: int) -> None:
        assert isinstance(sending, WordSending)
        self.unsent.append((sending, tag, start))

    def expect(self, number: int) -> None:
        self.expected.add(number)

    def forget(self, number: int) -> None:
        self.sent = {tag: sent for tag, sent in self.sent.items() if sent[0].number != number}

    def close(self, error: Exception) -> None:
        self.is_open, self.error = False, error

    def steps(self) -> list[str]:
        """What it can do now."""
        other = self.network.get(self.partner)
        found = [] if self.told else ["tell"]
        if self.first and not self.partner and "name" in self.heard:
            found.append("connect")
        if self.partner and self.asked and len(self.taken) < 2:
            found.append("take")
        if self.partner and self.unsent:
            found.append("send")
        if other and self.taken and (tag := min(self.taken)) in other.sent:
            receiving, word = self.taken[tag]
            if receiving.number in self.expected and word < len(other.sent[tag][0].words):
                found.append("fill")
        return found

    def do(self, step: str) -> None:
        match step:
            case "tell":
                self.told = True
                self.owner.set_key(self, "name", self.name.encode())
            case "connect":
                self.partner = self.heard["name"].decode()
                self.owner.connected(self, (self.name, 1))
            case "take":
                receiving = self.asked.popleft()
                if (start := self.owner.begins(self, receiving)) is not None:
                    tag = next(self.tags)
                    self.taken[tag] = (receiving, start)
                    self.owner.ready(self, receiving, tag, start)
            case "send":
                sending, tag, start = self.unsent.pop(0)
                self.sent[tag] = (sending, start)
                self.owner.sends(self, sending)
            case "fill":
                tag = min(self.taken)
                receiving, word = self.taken[tag]
                sending, start = self.network[self.partner].sent[tag]
                assert word >= start, "a word that is not sent is awaited"
                receiving.buffers[word] = sending.words[word]
                if word + 1 < len(sending.words):
                    self.taken[tag] = (receiving, word + 1)
                else:
                    del self.taken[tag]
                self.owner.arrived(self, receiving)


class WordLink(PairedLink[str]):
    """Carries words by way of halves."""

    def __init__(self, post: Any, first: bool, network: dict[str, Half]) -> None:
        super().__init__(post, first, "nowhere")
        self.network = network

    @property
    def half(self) -> Half | None:
        assert self._pair is None or isinstance(self._pair, Half)
        return self._pair

    def _make_pair(self) -> Pair:
        return Half(self, self._first, self.network)

    def _make_sending(self, number: int, buffers: Sequence[str]) -> SendTransfer:
        return WordSending(number, buffers)

    def _make_receiving(self, number: int, sizes: Sequence[int]) -> ReceiveTransfer[str]:
        return WordReceiving(number, sizes)


WORDS = 3


def words(side: int, number: int) -> list[str]:
    """What a side sends under this number."""
    return [f"{side}:{number}:{word}" for word in range(WORDS)]


SIDES = st.sampled_from([0, 1])


class TwoLinks(RuleBasedStateMachine):
    """Two links, the facts on their way, and everything that can go wrong at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.network: dict[str, Half] = {}
        self.ways: list[deque[Any]] = [deque(), deque()]  # to side 0, to side 1
        posts = [self.ways[1].append, self.ways[0].append]
        self.links = [WordLink(post, post is posts[0], self.network) for post in posts]
        self.sent: list[list[Work[None]]] = [[], []]  # by the sending side
        self.received: list[list[Work[list[str]]]] = [[], []]
        self.given_up: set[tuple[int, int]] = set()  # (sending side, number)
        self.breaks = 0
        self.way_was_lost = False

    @rule(side=SIDES)
    def send(self, side: int) -> None:
        number = len(self.sent[side])
        self.sent[side].append(self.links[side].send(number, words(side, number)))

    @rule(side=SIDES)
    def receive(self, side: int) -> None:
        """From the other side, which may not have sent it yet."""
        number = len(self.received[1 - side])
        self.received[1 - side].append(self.links[side].receive(number, [WORDS]))

    @rule(side=SIDES, times=st.integers(1, 5))
    def deliver(self, side: int, times: int) -> None:
        for _ in range(min(times, len(self.ways[side]))):
            self.links[side].on_control(self.ways[side].popleft())

    @rule(side=SIDES, choice=st.integers(0, 3))
    def go_on(self, side: int, choice: int) -> None:
        half = self.links[side].half
        if half and (steps := half.steps()):
            half.do(steps[choice % len(steps)])

    @rule(number=st.integers(1, 20))
    def exchange(self, number: int) -> None:
        """Something is on its way, and gets so far."""
        self.send(0)
        self.receive(1)
        for _ in range(number):
            for side in (0, 1):
                self.deliver(side, 1)
                self.go_on(side, number)

    @precondition(lambda self: any(link.half for link in self.links))
    @rule(side=SIDES)
    def the_pair_breaks(self, side: int) -> None:
        if half := self.links[side].half:
            self.breaks += 1
            self.links[side].broke(half, TransferFailed("connection closed"))

    @rule(side=SIDES)
    def discard(self, side: int) -> None:
        self.note_what_is_open(side)
        self.links[side].discard(KeyError("enough"))

    def note_what_is_open(self, side: int) -> None:
        self.given_up |= {(side, number) for number in self.links[side]._open_transfers.sendings}
        self.given_up |= {(1 - side, number) for number in self.links[side]._open_transfers.receivings}

    @rule(side=SIDES, choice=st.integers(0, 3))
    def discard_one(self, side: int, choice: int) -> None:
        """The others arrive."""
        sendings = list(self.links[side]._open_transfers.sendings)
        if sendings:
            number = sendings[choice % len(sendings)]
            self.given_up.add((side, number))
            self.links[side].discard(KeyError("enough"), number)

    @precondition(lambda self: self.network)
    @rule(which=st.integers(0, 50), step=st.sampled_from(["tell", "connect", "take", "fill", "break"]))
    def a_thread_of_a_pair_that_was_closed_speaks(self, which: int, step: str) -> None:
        half = list(self.network.values())[which % len(self.network)]
        if half.is_open:
            return
        before = self.state()
        if step == "break":
            half.owner.broke(half, TransferFailed("connection closed"))
        elif step in half.steps():
            half.do(step)
        assert self.state() == before

    def state(self) -> Any:
        return [(link._generation, *link._all()) for link in self.links], list(map(list, self.ways))

    @rule(side=SIDES)
    def no_memory(self, side: int) -> None:
        half = self.links[side].half
        if half and half.is_connected and half.asked:
            receiving = half.asked.popleft()
            self.given_up.add((1 - side, receiving.number))
            self.links[side].refuses(half, receiving, MemoryError("no memory"))

    @rule()
    def the_way_between_is_lost(self) -> None:
        """With whatever was on it; both mailboxes hear of it and discard.  They had announced what is asked for."""
        self.way_was_lost = True
        for side in (0, 1):
            while len(self.sent[side]) < len(self.received[side]):
                self.send(side)
        for side, link in enumerate(self.links):
            self.note_what_is_open(side)
            link.discard(KeyError("node lost"))
        for way in self.ways:
            way.clear()

    def settle(self) -> None:
        """Everything that can happen happens."""
        for _ in range(1_000):
            halves = [link.half for link in self.links]
            if not any(self.ways) and not any(half and half.steps() for half in halves):
                return
            for side in (0, 1):
                self.deliver(side, 1)
                self.go_on(side, 0)
        raise AssertionError("the links go on for ever")

    def teardown(self) -> None:
        self.settle()
        for side in (0, 1):
            while len(self.sent[side]) < len(self.received[side]):
                self.send(side)
            while len(self.received[side]) < len(self.sent[side]):
                self.receive(1 - side)
        self.settle()
        for side in (0, 1):
            for number, (sent, received) in enumerate(zip(self.sent[side], self.received[side], strict=True)):
                assert sent.done(), f"{side} sends {number} for ever"
                assert received.done(), f"{side} is received {number} for ever"
                self.check(side, number, sent, received)
        for link in self.links:
            left = link._open_transfers
            assert [*left.sendings, *left.receivings, *left._requests] == []
            assert self.way_was_lost or not (left._unwanted or left._withdrawn or left._abandoned)
        self.the_next_exchange_works()

    def check(self, side: int, number: int, sent: Work[None], received: Work[list[str]]) -> None:
        may_fail = (side, number) in self.given_up or self.breaks >= 4 or self.way_was_lost
        try:
            assert received.wait() == words(side, number)
        except (TransferFailed, KeyError, MemoryError):
            assert may_fail
        try:
            sent.wait()
        except (TransferFailed, KeyError):
            assert may_fail
        else:
            received.wait()  # what was sent has arrived

    def the_next_exchange_works(self) -> None:
        for side in (0, 1):
            sent, received = self.links[side].send(1000, words(side, 1000)), self.links[1 - side].receive(1000, [WORDS])
            self.settle()
            assert received.wait() == words(side, 1000)
            sent.wait()


TestTwoLinks = TwoLinks.TestCase
TestTwoLinks.settings = settings(max_examples=300, stateful_step_count=40, derandomize=True, deadline=None)


def test_links_that_have_lost_count_of_each_others_generations_find_together() -> None:
    for behind in (0, 1):
        two = TwoLinks()
        for number in range(3):  # of which the other side never hears
            two.links[1 - behind].receive(number, [WORDS])
            two.links[1 - behind].discard(KeyError("enough"))
        for way in two.ways:
            way.clear()
        received = two.links[1 - behind].receive(10, [WORDS])
        two.go_on(1 - behind, 0)  # "open" and the rest of what it has to say are on their way together
        sent = two.links[behind].send(10, words(behind, 10))
        two.settle()
        assert received.done()
        assert sent.done()
        assert received.wait() == words(behind, 10)
        assert two.links[0]._generation == two.links[1]._generation == 3
        two.the_next_exchange_works()


def test_a_transfer_outlives_any_number_of_broken_connections_as_long_as_something_arrives() -> None:
    two = TwoLinks()
    text = [str(number) for number in range(20)]
    sent, received = two.links[0].send(0, text), two.links[1].receive(0, [len(text)])
    assert isinstance(received, WordReceiving)
    for arrived in range(1, len(text)):
        while received.arrived < arrived:
            for side in (0, 1):
                two.deliver(side, 1)
                two.go_on(side, 0)
        half = two.links[1].half
        assert half is not None
        two.links[1].broke(half, TransferFailed("connection closed"))
    two.settle()
    assert received.wait() == text
    sent.wait()


def test_what_a_link_remembers_of_a_transfer_keeps_nothing_of_another() -> None:
    """Nothing that the error of the other one has come through."""
    two = TwoLinks()
    for number in (1, 2):
        two.links[0].send(number, words(0, number))
    received = two.links[1].receive(1, [WORDS])
    two.links[0].discard(KeyError("enough"))
    two.settle()
    with pytest.raises(TransferFailed, match="enough"):
        received.wait()
    later = two.links[1].receive(2, [WORDS])
    assert later._error is not None
    assert later._error.__traceback__ is None


def test_withdrawn_transfers_that_nobody_requests_are_forgotten() -> None:
    two = TwoLinks()
    for number in range(5):
        two.links[0].send(number, words(0, number))
        two.links[0].discard(KeyError("enough"), number)
    two.settle()
    assert len(two.links[1]._open_transfers._withdrawn) == 5
    two.the_next_exchange_works()
    assert not two.links[1]._open_transfers._withdrawn


@pytest.mark.parametrize("keeper", ["pair", "transfer"])
def test_the_error_of_a_transfer_is_its_own_and_keeps_no_buffers_of_another(keeper: str) -> None:
    """A pair that is being connected cannot be ended at once, and keeps its error for as long."""
    two = TwoLinks()
    link = two.links[0]
    receiving, sending = link.receive(0, [WORDS]), link.send(0, words(0, 0))
    pair = link.half
    link.discard(KeyError("enough"))
    with contextlib.suppress(KeyError):
        sending.wait()
    dropped = weakref.ref(sending)
    del sending
    if keeper == "pair":
        del receiving
    else:
        del pair
        two.network.clear()
    gc.collect()
    assert dropped() is None


class NoRoom(WordReceiving):
    def allocate(self) -> None:
        raise RuntimeError("CUDA error: out of memory")  # of pinned memory, which is no MemoryError


def test_a_transfer_for_which_no_room_can_be_made_is_abandoned_and_the_peer_is_told() -> None:
    told: list[Any] = []
    link = WordLink(told.append, True, {})
    receiving = NoRoom(7, [WORDS])
    link._receive(receiving)
    for _ in range(_MAX_TRIES):
        half = link.half
        assert half is not None
        half.partner = "another half"
        with pytest.raises(RuntimeError) as caught:
            link.begins(half, receiving)
        link.broke(half, caught.value)
    with pytest.raises(TransferFailed, match="CUDA error: out of memory"):
        receiving.wait(5)
    assert told[-1][2] == [7]
    assert link.half is None

"""Arrival of a version at a machine, forwarded piece by piece."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from rlinf_async.errors import ClosedError, PeerLost, TransferFailed
from rlinf_async.weights import Manifest, ParamTree
from rlinf_async.weights.plane.arrival import Arrival
from rlinf_async.weights.plane.host import Host
from rlinf_async.work import Work
from tests._support.simulated_remote_nodes import Sent
from tests._support.weight_parts import words as say

SIZES = [4, 4, 2]
SOURCE, NEXT, OTHER = ["rollout", 0], ["rollout", 2], ["rollout", 3]


class Link:
    """To a sender; what is said and sent is noted."""

    def __init__(self) -> None:
        self.received: list[tuple[torch.Tensor, int, Any, Sent]] = []
        self.sent: list[tuple[list[int], int, Any, Sent]] = []
        self.said: list[list[Any]] = []
        self.has_said = threading.Condition()

    def receive_tensor(self, tensor: torch.Tensor, line: int, sender: Any = None) -> Work[None]:
        self.received.append((tensor, line, sender, Sent()))
        return self.received[-1][3]

    def send_tensor(self, tensor: torch.Tensor, line: int, receiver: Any = None) -> Work[None]:
        self.sent.append((tensor.tolist(), line, receiver, Sent()))
        return self.sent[-1][3]

    def send(self, words: list[Any]) -> None:
        with self.has_said:
            self.said.append(words)
            self.has_said.notify_all()

    def wait_for(self, word: str, count: int = 1) -> list[Any]:
        with self.has_said:
            assert self.has_said.wait_for(lambda: sum(words[0] == word for words in self.said) >= count, 20)
            return [words for words in self.said if words[0] == word][-1]

    def bring(self, number: int) -> None:
        """A piece arrives: full of its number."""
        tensor, _, _, work = self.received[number]
        tensor.fill_(number % len(SIZES) + 1)
        work._settle()

    def sent_to(self, receiver: Any) -> list[list[int]]:
        return [values for values, _, to, _ in self.sent if to == receiver]


class Holds:
    """How often the memory is held."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Callable[[], None]:
        self.count += 1
        return self.let_go

    def let_go(self) -> None:
        self.count -= 1


class Stuck:
    def __init__(self) -> None:
        self.lines: list[int] = []

    def __call__(self, line: int, error: Exception) -> None:
        self.lines.append(line)


@pytest.fixture
def link() -> Link:
    return Link()


def arrival_of(link: Any, patience: float | None = None, source: Any = SOURCE) -> tuple[Arrival, Holds, Stuck]:
    stuck, holds = Stuck(), Holds()
    arrival = Arrival(link, 7, 1, SIZES, source, patience, stuck)
    arrival.expect(torch.zeros(10, dtype=torch.uint8), holds)
    return arrival, holds, stuck


def test_each_piece_goes_on_when_it_has_come_and_the_memory_is_held_until_it_is_there(link: Link) -> None:
    arrival, holds, stuck = arrival_of(link)
    assert [(len(tensor), line, sender) for tensor, line, sender, _ in link.received] == [
        (4, 7, SOURCE), (4, 7, SOURCE), (2, 7, SOURCE)
    ]  # fmt: skip
    arrival.pass_on(NEXT, 9)
    assert link.sent == []
    link.bring(0)
    assert link.sent_to(NEXT) == [[1, 1, 1, 1]]
    arrival.pass_on(OTHER, 11)
    assert link.sent_to(OTHER) == [[1, 1, 1, 1]], "what was there already, too"
    link.bring(1)
    link.bring(2)
    assert link.sent_to(NEXT) == link.sent_to(OTHER) == [[1] * 4, [2] * 4, [3] * 2]
    assert {(line, tuple(to)) for _, line, to, _ in link.sent} == {(9, tuple(NEXT)), (11, tuple(OTHER))}
    assert holds.count == 6
    for *_, work in link.sent:
        work._settle()
    assert holds.count == 0
    assert stuck.lines == []


def test_what_is_asked_for_before_there_is_memory_goes_on_once_it_is_there(link: Any) -> None:
    arrival = Arrival(link, 7, 1, SIZES, None, None, Stuck())
    arrival.pass_on(NEXT, 9)
    arrival.expect(torch.zeros(10, dtype=torch.uint8), Holds())
    link.bring(0)
    assert link.sent_to(NEXT) == [[1, 1, 1, 1]]


def test_that_it_does_not_go_on_is_told_once_and_no_more_is_sent_there(link: Link) -> None:
    arrival, holds, stuck = arrival_of(link)
    arrival.pass_on(NEXT, 9)
    arrival.pass_on(OTHER, 11)
    link.bring(0)
    link.bring(1)
    for *_, work in [each for each in link.sent if each[2] == NEXT]:
        work._settle(error=TransferFailed("no way"))
    link.bring(2)
    assert stuck.lines == [9]
    assert len(link.sent_to(NEXT)) == 2
    assert len(link.sent_to(OTHER)) == 3
    assert holds.count == 3


@pytest.mark.parametrize("how", ["keep", "keep_all", "give_up"])
def test_what_nobody_waits_for_is_given_up_and_nobody_is_told(link: Link, how: str) -> None:
    arrival, holds, stuck = arrival_of(link)
    arrival.pass_on(NEXT, 9)
    link.bring(0)
    link.bring(1)
    if how == "keep":
        arrival.keep(9)
    elif how == "keep_all":
        arrival.keep_all()
    else:
        arrival.give_up(ClosedError("closed"))
        arrival.pass_on(OTHER, 11)
    link.bring(2)
    assert all(work.done() for *_, work in link.sent)
    assert len(link.sent) == 2
    assert holds.count == 0
    assert stuck.lines == []


def waiting(arrival: Arrival) -> Work[Any]:
    """What comes of a wait in another thread."""
    result: Work[Any] = Work()

    def wait() -> None:
        try:
            result._settle(arrival.wait())
        except Exception as error:
            result._settle(error=error)

    threading.Thread(target=wait).start()
    return result


def test_a_piece_is_not_missed_before_the_version_is_published(link: Link) -> None:
    arrival, _, _ = arrival_of(link, patience=0.02)
    result = waiting(arrival)
    with pytest.raises(TimeoutError):
        result.wait(0.2)
    for number in range(3):
        link.bring(number)
    arrival.whole._settle((b"more", 5))
    assert result.wait(20) == (b"more", 5)


def test_a_piece_that_does_not_come_after_that_is_missed(link: Link) -> None:
    arrival, _, _ = arrival_of(link, patience=0.02)
    arrival.whole._settle((b"", 0))
    link.bring(0)
    with pytest.raises(TransferFailed, match=r"nothing has come from there for 0\.02 s"):
        waiting(arrival).wait(20)


def test_whoever_waits_for_a_piece_stops_when_it_is_given_up(link: Link) -> None:
    arrival, _, _ = arrival_of(link)
    result = waiting(arrival)
    arrival.give_up(PeerLost("the sender is gone"))
    with pytest.raises((PeerLost, ClosedError)):
        result.wait(20)
    assert all(work.done() for *_, work in link.received)


@pytest.fixture
def host(link: Any) -> Iterator[Host]:
    manifest = Manifest.of(ParamTree.of({"a": torch.zeros(10, dtype=torch.uint8)}))
    host = Host(link, manifest.to_bytes(), 0, 2, 7, "test")
    yield host
    host.close()
    link.received.clear()  # which keeps the memory


def receive(host: Host, link: Link, version: int) -> Any:
    """All of a version; returns where it is."""
    host.hear(say.BRING, version, SIZES, 0, b"", SOURCE, 20.0)
    link.wait_for(say.ROOM, version)
    start = len(link.received) - len(SIZES)
    for number in range(len(SIZES)):
        link.bring(start + number)
    host.hear(say.WHOLE, version, b"", 0)
    said = link.wait_for(say.LANDED, version)
    assert said[1:3] == [version, None]
    assert said[4] == 7
    return said[3]


def test_no_other_version_comes_into_memory_that_is_still_being_passed_on(host: Host, link: Link) -> None:
    first = receive(host, link, 1)
    host.hear(say.PASS, 1, NEXT, 9)
    assert len(link.sent) == len(SIZES), "it is all here"
    for *_, work in link.sent:
        work._lose_interest = lambda: None  # type: ignore[method-assign]  # it goes on leaving
    assert [receive(host, link, version) for version in (2, 3)].count(first) == 0
    for *_, work in link.sent:
        work._settle()
    assert host._store is not None
    assert set(host._store._in_use) == {0}


def test_what_has_left_its_slot_is_not_passed_on(host: Host, link: Link) -> None:
    receive(host, link, 1)
    receive(host, link, 2)
    host.hear(say.PASS, 1, NEXT, 9)
    assert link.wait_for(say.STUCK)[1] == 9
    assert link.sent == []


def test_the_next_version_ends_what_was_passed_on_of_the_last(host: Host, link: Link) -> None:
    receive(host, link, 1)
    host.hear(say.PASS, 1, NEXT, 9)
    receive(host, link, 2)
    assert all(work.done() for *_, work in link.sent)
    assert say.STUCK not in [words[0] for words in link.said]

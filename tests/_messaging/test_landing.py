"""Arrival of payloads at a machine's host, forwarded piece by piece."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest

from rlinf_async._core.failures import unpack_error
from rlinf_async._messaging.landing import RelayHost
from rlinf_async._messaging.state.relay_plan import BRING, KEEP, LANDED, PASS, ROOM, STUCK, WHOLE
from rlinf_async.errors import ClosedError, PeerLost, TransferFailed
from rlinf_async.work import Work
from tests._support.simulated_remote_nodes import Sent

SIZES = [4, 4, 2]
SOURCE, NEXT, OTHER = ["rollout", 0], ["rollout", 2], ["rollout", 3]


class Carrier:
    """To a source; what is said and sent is noted."""

    def __init__(self) -> None:
        self.received: list[tuple[memoryview, int, Any, Sent]] = []
        self.sent: list[tuple[list[int], int, Any, Sent]] = []
        self.said: list[list[Any]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.is_gone = False

    def receive_tensor(self, tensor: memoryview, line: int, sender: Any = None) -> Work[None]:
        self.received.append((tensor, line, sender, Sent()))
        return self.received[-1][3]

    def send_tensor(self, tensor: memoryview, line: int, receiver: Any = None) -> Work[None]:
        self.sent.append((tensor.tolist(), line, receiver, Sent()))
        return self.sent[-1][3]

    def send(self, words: list[Any]) -> None:
        if self.is_gone:
            raise PeerLost("the source is gone")
        self.said.append(words)

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.timers.append((seconds, callback))

    def last(self, word: str) -> list[Any]:
        return [words for words in self.said if words[0] == word][-1]

    def bring(self, number: int) -> None:
        """A piece arrives: full of its number."""
        tensor, _, _, work = self.received[number]
        for index in range(len(tensor)):
            tensor[index] = number % len(SIZES) + 1
        work._settle()

    def sent_to(self, receiver: Any) -> list[list[int]]:
        return [values for values, _, to, _ in self.sent if to == receiver]


class Room:
    """Memory for one payload; how often it is held, and what became of it."""

    def __init__(self, nbytes: int) -> None:
        self.memory = memoryview(bytearray(nbytes))
        self.holds = 0
        self.is_abandoned = False
        self.fault: Exception | None = None

    def pin(self) -> Callable[[], None]:
        self.holds += 1
        return self.let_go

    def let_go(self) -> None:
        self.holds -= 1

    def finish(self, number: int, *facts: Any) -> Any:
        if self.fault is not None:
            raise self.fault
        return [number, bytes(self.memory), *facts]

    def abandon(self) -> None:
        self.is_abandoned = True


class Landing(RelayHost):
    """A host whose thread is that of the test, or is held up until ``go_on``."""

    def __init__(self, carrier: Carrier) -> None:
        self.rooms: list[Room] = []
        self.jobs: list[Callable[[], None]] | None = None
        super().__init__(carrier, 7, self.make_room, self.submit)

    def make_room(self, number: int, nbytes: int) -> Room:
        if nbytes > 10:
            raise MemoryError("no room")
        self.rooms.append(Room(nbytes))
        return self.rooms[-1]

    def submit(self, job: Callable[[], None]) -> None:
        if self.jobs is None:
            job()
        else:
            self.jobs.append(job)

    def go_on(self) -> None:
        jobs, self.jobs = self.jobs or [], None
        for job in jobs:
            job()


@pytest.fixture
def carrier() -> Carrier:
    return Carrier()


@pytest.fixture
def host(carrier: Carrier) -> Landing:
    host = Landing(carrier)
    host.on_message(BRING, 1, SIZES, SOURCE, 20.0)
    return host


def test_each_piece_goes_on_when_it_has_come_and_the_memory_is_held_until_it_is_there(
    carrier: Carrier, host: Landing
) -> None:
    assert [(len(tensor), line, sender) for tensor, line, sender, _ in carrier.received] == [
        (4, 7, SOURCE), (4, 7, SOURCE), (2, 7, SOURCE)
    ]  # fmt: skip
    assert carrier.said == [[ROOM, 1, 7]]
    host.on_message(PASS, 1, NEXT, 9)
    assert carrier.sent == []
    carrier.bring(0)
    assert carrier.sent_to(NEXT) == [[1, 1, 1, 1]]
    host.on_message(PASS, 1, OTHER, 11)
    assert carrier.sent_to(OTHER) == [[1, 1, 1, 1]], "what was there already, too"
    carrier.bring(1)
    carrier.bring(2)
    assert carrier.sent_to(NEXT) == carrier.sent_to(OTHER) == [[1] * 4, [2] * 4, [3] * 2]
    assert {(line, tuple(to)) for _, line, to, _ in carrier.sent} == {(9, tuple(NEXT)), (11, tuple(OTHER))}
    assert host.rooms[0].holds == 6
    for *_, work in carrier.sent:
        work._settle()
    assert host.rooms[0].holds == 0
    assert len(carrier.said) == 1, "it is not published"
    host.on_message(WHOLE, 1, b"more", 5)
    assert carrier.said[1:] == [[LANDED, 1, None, [1, b"\1\1\1\1\2\2\2\2\3\3", b"more", 5], 7]]


def test_what_is_asked_for_before_there_is_memory_goes_on_once_it_is_there(carrier: Carrier) -> None:
    host = Landing(carrier)
    host.jobs = []
    host.on_message(BRING, 1, SIZES)
    host.on_message(PASS, 1, NEXT, 9)
    host.on_message(WHOLE, 1)
    assert carrier.received == []
    host.go_on()
    carrier.bring(0)
    assert carrier.sent_to(NEXT) == [[1, 1, 1, 1]]


def test_pieces_that_come_in_another_order_go_on_in_theirs(carrier: Carrier, host: Landing) -> None:
    host.on_message(PASS, 1, NEXT, 9)
    carrier.bring(1)
    assert carrier.sent == []
    carrier.bring(0)
    assert carrier.sent_to(NEXT) == [[1] * 4, [2] * 4]


def test_that_it_does_not_go_on_is_told_once_and_no_more_is_sent_there(carrier: Carrier, host: Landing) -> None:
    host.on_message(PASS, 1, NEXT, 9)
    host.on_message(PASS, 1, OTHER, 11)
    carrier.bring(0)
    carrier.bring(1)
    for *_, work in [each for each in carrier.sent if each[2] == NEXT]:
        work._settle(error=TransferFailed("no way"))
    carrier.bring(2)
    assert [words[1] for words in carrier.said if words[0] == STUCK] == [9]
    assert "no way" in str(unpack_error(carrier.last(STUCK)[2]))
    assert len(carrier.sent_to(NEXT)) == 2
    assert len(carrier.sent_to(OTHER)) == 3
    assert host.rooms[0].holds == 3


@pytest.mark.parametrize("how", ["keep", "next", "close"])
def test_what_nothing_waits_for_is_given_up_and_the_source_is_not_told(
    carrier: Carrier, host: Landing, how: str
) -> None:
    host.on_message(PASS, 1, NEXT, 9)
    carrier.bring(0)
    carrier.bring(1)
    if how == "keep":
        host.on_message(KEEP, 9)
    elif how == "next":
        host.on_message(BRING, 2, SIZES)
        host.on_message(PASS, 1, OTHER, 11)
        assert carrier.last(STUCK)[1] == 11, "what has left its memory is not passed on"
        carrier.said = []
    else:
        host.close(ClosedError("closed"))
        host.on_message(PASS, 1, OTHER, 11)
    carrier.bring(2)
    assert all(work.done() for *_, work in carrier.sent)
    assert len(carrier.sent) == 2
    assert host.rooms[0].holds == 0
    assert STUCK not in [words[0] for words in carrier.said]


def test_a_piece_is_not_missed_before_the_payload_is_published(carrier: Carrier, host: Landing) -> None:
    carrier.bring(0)
    assert carrier.timers == []
    host.on_message(WHOLE, 1)
    ((seconds, miss),) = carrier.timers
    assert seconds == 20.0
    carrier.bring(1)
    miss()
    assert carrier.said == [[ROOM, 1, 7]], "one has come meanwhile"
    carrier.bring(2)
    assert carrier.last(LANDED)[2] is None
    for _, miss in carrier.timers:
        miss()
    assert [words[0] for words in carrier.said] == [ROOM, LANDED]


def test_a_piece_that_does_not_come_after_that_is_missed(carrier: Carrier, host: Landing) -> None:
    host.on_message(WHOLE, 1)
    carrier.bring(0)
    carrier.timers[-1][1]()
    assert "nothing has come from there for 20 s" in str(unpack_error(carrier.last(LANDED)[2]))
    assert host.rooms[0].is_abandoned
    assert all(work.done() for *_, work in carrier.received)


def test_of_a_piece_that_does_not_come_through_the_source_hears_once(carrier: Carrier, host: Landing) -> None:
    for number in (0, 1):
        carrier.received[number][3]._settle(error=TransferFailed("no way"))
    host.on_message(WHOLE, 1)
    assert [words[0] for words in carrier.said] == [ROOM, LANDED]
    assert "no way" in str(unpack_error(carrier.last(LANDED)[2]))
    assert host.rooms[0].is_abandoned


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_host_that_is_closed_says_nothing_and_waits_for_nothing(carrier: Carrier, when: str) -> None:
    host = Landing(carrier)
    host.jobs = []
    if when == "before":
        host.close(PeerLost("gone"))
    host.on_message(BRING, 1, SIZES)
    if when == "between":
        host.close(PeerLost("gone"))
    host.go_on()
    if when == "after":
        host.close(PeerLost("gone"))
    assert carrier.said == [[ROOM, 1, 7]][: when == "after"]
    assert all(work.done() for *_, work in carrier.received)
    assert [room.is_abandoned for room in host.rooms] == [True]


def test_there_is_no_room_or_what_has_come_is_of_no_use(carrier: Carrier, host: Landing) -> None:
    host.rooms[0].fault = ValueError("another base")
    for number in range(3):
        carrier.bring(number)
    host.on_message(WHOLE, 1)
    assert "another base" in str(unpack_error(carrier.last(LANDED)[2]))
    assert host.rooms[0].is_abandoned
    host.on_message(BRING, 2, [11])
    assert carrier.last(LANDED)[1] == 2
    assert "no room" in str(unpack_error(carrier.last(LANDED)[2]))
    carrier.is_gone = True
    host.on_message(BRING, 3, [11])


def test_memory_is_let_go_of_once_nothing_comes_into_it_and_not_before(carrier: Carrier, host: Landing) -> None:
    host.on_message(BRING, 2, SIZES)
    carrier.received[0][3]._settle(error=TransferFailed("no way"))
    assert [room.is_abandoned for room in host.rooms] == [True, False]
    for number in range(3, 6):
        carrier.bring(number)
    host.on_message(WHOLE, 2)
    assert carrier.last(LANDED)[:3] == [LANDED, 2, None]
    room = weakref.ref(host.rooms.pop())
    host.close(ClosedError("closed"))
    assert room() is None


def test_a_host_for_which_no_thread_can_start_serves_all_the_same(carrier: Carrier) -> None:
    def refuse(job: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    rooms = [Room(4)]
    host = RelayHost(carrier, 7, lambda number, nbytes: rooms[0], refuse)
    host.on_message(BRING, 1, [4])
    carrier.bring(0)
    host.on_message(WHOLE, 1)
    assert carrier.said == [[ROOM, 1, 7], [LANDED, 1, None, [1, b"\1\1\1\1"], 7]]


def test_a_close_gives_back_the_memory_of_what_has_come_and_was_not_published(carrier: Carrier, host: Landing) -> None:
    for number in range(3):
        carrier.bring(number)
    host.close(ClosedError("over"))
    assert host.rooms[0].is_abandoned

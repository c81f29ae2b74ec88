"""Gloo links between two workers: transfers, errors, reconnection."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf_async._transports.gloo_link import GlooLink
from rlinf_async._transports.gloo_pair import GlooPair
from rlinf_async._transports.memory import GivenMemory
from rlinf_async._transports.tcp_connections import TcpConnection, connections
from rlinf_async._transports.transfer import MemoryReceive
from rlinf_async.errors import TransferFailed
from rlinf_async.work import Work
from tests._support.linked_pairs import Couple, couple

MiB = 1 << 20
SOON = 1.0
"""Seconds within which whatever goes wrong is known on both sides."""


@pytest.fixture
def links() -> Iterator[Couple]:
    with couple(GlooLink) as links:
        yield links


def pattern(nbytes: int, salt: int = 0) -> memoryview:
    period = torch.arange(251, dtype=torch.uint8) + salt
    return memoryview(period.repeat(nbytes // 251 + 1)[:nbytes].numpy())


def error_of(work: Work[Any], timeout: float = SOON) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # which one, the caller looks at
        work.wait(timeout)
    return caught.value


PATIENCE = 20.0
"""Seconds for connections that have to be made anew, each of which may take seconds where the machine is busy."""


def exchange(links: Couple, number: int, nbytes: int = MiB) -> None:
    """Both ways at once."""
    works: list[tuple[Work[None], Work[list[memoryview]]]] = [
        (links.near.send(number, [pattern(nbytes, 1)]), links.far.receive(number, [nbytes])),
        (links.far.send(number, [pattern(nbytes, 2)]), links.near.receive(number, [nbytes])),
    ]
    for salt, (sent, received) in enumerate(works, 1):
        [got] = received.wait(PATIENCE)
        assert got == pattern(nbytes, salt)
        sent.wait(PATIENCE)


def test_buffers_of_every_size_arrive_in_their_places(links: Couple) -> None:
    sizes = [0, 1, 63, 64, 65, 5, 65_535, 65_536, 65_537, 3 * MiB, 0, 1000, MiB + 1]
    buffers = [pattern(size, salt) for salt, size in enumerate(sizes)]
    sent, received = links.near.send(1, buffers), links.far.receive(1, sizes)
    assert [bytes(got) for got in received.wait(5)] == [bytes(buffer) for buffer in buffers]
    assert sent.wait(5) is None


@pytest.mark.parametrize("sizes", [[], [0], [0, 0]])
def test_a_message_without_bytes_needs_no_process_group(links: Couple, sizes: list[int]) -> None:
    sent, received = links.near.send(1, [memoryview(b"")] * len(sizes)), links.far.receive(1, sizes)
    assert sent.done()
    assert [bytes(got) for got in received.wait(0)] == [b""] * len(sizes)
    assert links.to_far.heard == links.to_near.heard == []


def test_read_only_memory_is_sent_without_a_warning(links: Couple) -> None:
    buffers = [memoryview(bytes(MiB)), memoryview(b"small")]
    sent, received = links.near.send(1, buffers), links.far.receive(1, [MiB, 5])
    assert received.wait(5)[1] == b"small"
    sent.wait(5)


def test_either_side_may_be_first_and_far_ahead(links: Couple) -> None:
    sent = [links.near.send(number, [pattern(MiB, number)]) for number in range(5)]
    received = [links.far.receive(number, [MiB]) for number in range(10)]
    sent += [links.near.send(number, [pattern(MiB, number)]) for number in range(5, 10)]
    for number, work in enumerate(received):
        assert work.wait(5) == [pattern(MiB, number)]
    for work in sent:
        work.wait(5)


def test_both_directions_carry_64_mib_at_once(links: Couple) -> None:
    exchange(links, 1, 64 * MiB)


def test_a_send_is_done_when_its_memory_may_be_mutated_and_what_is_received_is_the_receivers_own(links: Couple) -> None:
    memory = bytearray(pattern(4 * MiB))
    sent, received = links.near.send(1, [memoryview(memory)]), links.far.receive(1, [len(memory)])
    sent.wait(5)
    memory[:] = bytes(len(memory))
    [got] = received.wait(5)
    assert got == pattern(4 * MiB)
    tensor = torch.frombuffer(got, dtype=torch.uint8)
    tensor.zero_()
    assert not any(memory)


@pytest.mark.parametrize("nbytes", [MiB, 9 * MiB + 3])
def test_what_has_a_place_of_its_own_comes_to_stand_there(links: Couple, nbytes: int) -> None:
    memory = memoryview(bytearray(nbytes))
    sent, received = links.near.send(1, [pattern(nbytes)]), links.far.receive_in(1, [nbytes], GivenMemory(memory))
    [got] = received.wait(5)
    sent.wait(5)
    assert got is memory
    assert memory == pattern(nbytes)


def test_a_place_of_another_size_is_left_alone(links: Couple) -> None:
    memory = memoryview(bytearray(2 * MiB))
    sent, received = links.near.send(1, [pattern(MiB)]), links.far.receive_in(1, [MiB], GivenMemory(memory))
    assert received.wait(5) == [pattern(MiB)]
    sent.wait(5)
    assert not any(memory)


def test_received_memory_is_used_again_once_nobody_sees_it(links: Couple) -> None:
    addresses = []
    for number in range(3):
        sent, received = links.near.send(number, [pattern(8 * MiB)]), links.far.receive(number, [8 * MiB])
        addresses.append(torch.frombuffer(received.wait(5)[0], dtype=torch.uint8).data_ptr())
        sent.wait(5)
        del sent, received
    assert len(set(addresses)) < 3


def test_nothing_is_sent_before_the_receiver_has_room(links: Couple) -> None:
    sent = [links.near.send(number, [pattern(MiB)]) for number in range(3)]
    links.far.receive(0, [MiB]).wait(5)
    sent[0].wait(5)
    assert [work.done() for work in sent] == [True, False, False]
    asked = [facts[2] for facts in links.to_near.heard if facts[0] == "ready"]
    assert asked == [0]


@pytest.mark.parametrize("discarding", ["near", "far"])
def test_a_discard_in_mid_transfer_ends_it_on_both_sides_and_the_next_exchange_works(
    links: Couple, discarding: str
) -> None:
    exchange(links, 1)
    links.to_near.hold()  # the receiver says that it is ready, and Gloo waits there for what does not come
    sent, received = links.near.send(2, [pattern(8 * MiB)]), links.far.receive(2, [8 * MiB])
    began = time.monotonic()
    error = TimeoutError("the user's deadline has passed")
    getattr(links, discarding).discard(error)
    links.to_near.go_on()
    ours, theirs = (sent, received) if discarding == "near" else (received, sent)
    assert repr(error_of(ours)) == repr(error)
    failure = error_of(theirs)
    assert isinstance(failure, TransferFailed)
    assert "TimeoutError: the user's deadline has passed" in str(failure)
    exchange(links, 3)
    assert time.monotonic() - began < SOON


def test_a_discard_costs_the_other_transfers_nothing(links: Couple) -> None:
    """What only the other side has asked for, or offered, by then begins again with the next pair."""
    exchange(links, 1)
    offered, asked = links.near.send(3, [pattern(MiB, 3)]), links.near.receive(4, [MiB])
    links.far.receive(2, [MiB])
    links.far.discard(TimeoutError("of transfer 2 only"))
    got, sent = links.far.receive(3, [MiB]), links.far.send(4, [pattern(MiB, 4)])
    assert got.wait(5) == [pattern(MiB, 3)]
    assert asked.wait(5) == [pattern(MiB, 4)]
    for work in (offered, sent):
        work.wait(5)
    assert "transfer 2 only" in str(error_of(links.near.send(2, [pattern(MiB)])))


def test_what_was_given_up_before_it_was_asked_for_fails_where_it_is_asked_for(links: Couple) -> None:
    sent = links.near.send(1, [pattern(MiB)])
    links.near.discard(TimeoutError("the sender's deadline"))
    assert isinstance(error_of(sent), TimeoutError)
    assert re.search("gave it up|given up", str(error_of(links.far.receive(1, [MiB]), 5)))
    exchange(links, 2)


def test_a_discard_of_nothing_says_nothing(links: Couple) -> None:
    links.near.discard(RuntimeError("nothing"))
    links.near.discard(RuntimeError("nothing"))
    exchange(links, 1)
    assert not any(facts[0] == "broken" for facts in links.to_far.heard)


def test_sizes_that_differ_are_an_error_on_both_sides_and_not_garbage(links: Couple) -> None:
    sent, received = links.near.send(1, [pattern(MiB)]), links.far.receive(1, [2 * MiB])
    for work in (sent, received):
        assert "1048576 bytes here and 2097152 where it is received" in str(error_of(work, 5))
    exchange(links, 2)


def test_a_receiver_without_memory_fails_on_both_sides_and_the_pair_goes_on(
    links: Couple, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange(links, 1)

    def allocate(self: MemoryReceive) -> None:
        raise MemoryError("no memory for 1.0 MiB")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryReceive, "allocate", allocate)
        sent, received = links.near.send(2, [pattern(MiB)]), links.far.receive(2, [MiB])
        assert isinstance(error_of(received), MemoryError)
        assert "no memory for 1.0 MiB" in str(error_of(sent))
    exchange(links, 3)
    assert [facts[0] for facts in links.to_far.heard].count("open") == 1


def test_when_a_connection_breaks_what_is_on_it_begins_again_on_a_new_one(links: Couple) -> None:
    exchange(links, 1)
    links.to_near.hold()
    sent, received = links.near.send(2, [pattern(8 * MiB)]), links.far.receive(2, [8 * MiB])
    end_every_connection()
    links.to_near.go_on()
    assert received.wait(5) == [pattern(8 * MiB)]
    sent.wait(5)
    assert [facts[0] for facts in links.to_far.heard].count("open") == 2


def test_connections_that_break_one_after_the_other_are_an_error_on_both_sides(
    links: Couple, monkeypatch: pytest.MonkeyPatch
) -> None:
    def receive_oldest(self: GlooPair, taken: Any) -> None:
        raise RuntimeError("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer. This is typically caused by")

    with monkeypatch.context() as patch:
        patch.setattr(GlooPair, "_receive_oldest", receive_oldest)
        sent, received = links.near.send(1, [pattern(MiB)]), links.far.receive(1, [MiB])
        for work in (sent, received):
            assert "one connection after the other broke" in str(error_of(work, 5))
            assert "Gloo: Connection closed by peer" in str(error_of(work))
            assert "typically" not in str(error_of(work))
    exchange(links, 2)


def end_every_connection() -> None:
    """As a network would: those who hold one learn of it as they would there."""
    with TcpConnection._lock:
        held = set(TcpConnection._held)
    for duplicate in connections():
        with duplicate:
            if (duplicate.getsockname(), duplicate.getpeername()) in held:
                duplicate.shutdown(socket.SHUT_RDWR)


def test_an_address_of_no_network_here_is_an_error_on_both_sides() -> None:
    with couple(GlooLink, ("127.0.0.2", "192.0.2.1")) as links:
        sent, received = links.near.send(1, [pattern(MiB)]), links.far.receive(1, [MiB])
        for work in (received, sent):
            assert "192.0.2.1" in str(error_of(work, 5))


def test_a_peer_that_does_not_come_is_waited_for_without_a_deadline_and_without_cost(links: Couple) -> None:
    links.to_far.hold()
    received = links.near.receive(1, [MiB])
    with pytest.raises(TimeoutError):
        received.wait(0.2)
    links.near.discard(TimeoutError("enough"))
    assert str(error_of(received)) == "enough"
    links.to_far.go_on()
    exchange(links, 2)


def test_gloo_listens_on_the_nodes_own_address_only(links: Couple) -> None:
    before = listeners()
    exchange(links, 1)
    assert {address for address, _ in listeners() - before} == {"127.0.0.2", "127.0.0.3"}


def listeners() -> set[tuple[str, int]]:
    """This process's TCP listeners, of IPv4 and IPv6."""
    own = {os.fstat(int(fd)).st_ino for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[9]) in own:
                address, port = fields[1].split(":")
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
                found.add((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found


def test_pairs_that_are_thrown_away_leave_no_threads_and_no_files(links: Couple) -> None:
    exchange(links, 0)

    def count() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    before = count()
    for number in range(1, 21):
        links.near.receive(number, [MiB])
        for link in (links.near, links.far) if number % 2 else (links.far, links.near):
            link.discard(TimeoutError("again"))
        exchange(links, 100 + number)
    wait_until(lambda: count() <= before)


def wait_until(holds: Any) -> None:
    deadline = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_link_costs_two_threads_and_its_address_two_more() -> None:
    before = threading.active_count(), len(os.listdir("/proc/self/task"))
    with couple(GlooLink) as links:
        exchange(links, 1)
        carriers = 2
        ours = threading.active_count() - before[0] - carriers
        of_gloo = len(os.listdir("/proc/self/task")) - before[1] - carriers - ours
    assert ours == 2 * (1 + 1)  # two ends: one that receives, one that sends for all links of the address
    assert of_gloo == 2  # a device per address


def test_facts_are_small_and_plain(links: Couple) -> None:
    exchange(links, 1, 8 * MiB)
    for facts in links.to_far.heard:
        assert len(repr(facts)) < 2000


def test_the_same_number_twice_is_refused(links: Couple) -> None:
    links.near.send(1, [pattern(MiB)])
    with pytest.raises(ValueError, match="transfer 1 is being sent already"):
        links.near.send(1, [pattern(MiB)])
    links.near.receive(1, [MiB])
    with pytest.raises(ValueError, match="transfer 1 is being received already"):
        links.near.receive(1, [MiB])


def test_what_is_unheard_of_is_refused(links: Couple) -> None:
    with pytest.raises(ValueError, match="'dance'"):
        links.near.on_control(("dance", 0))


def test_a_pair_that_cannot_be_ended_is_not_used(links: Couple, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(self: GlooPair) -> TcpConnection:
        raise TransferFailed("the connection that Gloo has made is not among the files of this process")

    monkeypatch.setattr(GlooPair, "_find_connection", find)
    sent, received = links.near.send(1, [pattern(MiB)]), links.far.receive(1, [MiB])
    for work in (sent, received):
        assert isinstance(error_of(work, 5), TransferFailed)
    monkeypatch.undo()
    exchange(links, 2)

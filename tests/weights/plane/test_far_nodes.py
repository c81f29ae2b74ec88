"""Messages of a sender to other machines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rlinf_async.errors import PeerLost
from rlinf_async.weights.plane import outgoing
from rlinf_async.weights.plane.outgoing import piece_sizes
from tests._support.simulated_remote_nodes import Outlet, Sender
from tests._support.weight_parts import words as say


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sender]:
    monkeypatch.setattr(outgoing, "FIRST_PIECE", 1024)
    sender = Sender()
    yield sender
    sender.nodes.close()
    sender.store.close()


def test_pieces_double_up_to_a_limit_and_leave_nothing_out() -> None:
    mebi = 1 << 20
    assert piece_sizes(0) == []
    assert piece_sizes(5) == [5]
    assert [size // mebi for size in piece_sizes(1024 * mebi)] == [16, 32, 64, 128, 256, 256, 256, 16]
    assert sum(piece_sizes(777 * mebi + 3)) == 777 * mebi + 3


def test_what_is_packed_leaves_once_there_is_room_and_is_whole_only_when_published(sender: Sender) -> None:
    host, other = Outlet(), Outlet()
    for outlet in (host, other):
        sender.nodes.greet(outlet, sender.store, sender.store.latest)  # type: ignore[arg-type]
    slot, writer = sender.begin(1, host, other)
    assert host.said[-1] == (say.BRING, 1, [1024, 2048], 0, b"")
    writer.leaves.fill_(7)
    sender.nodes.packed(1, 1024)
    assert host.link.sizes == [], "nobody waits for them there yet"
    sender.room(host, 1)
    assert host.link.sizes == [1024]
    sender.nodes.packed(1, 2500)
    assert host.link.sizes == [1024], "the rest of the next piece is not there"
    sender.nodes.packed(1, 3072)
    assert host.link.sizes == [1024, 2048]
    assert say.WHOLE not in host.words
    sender.pack(slot, 1)
    sender.nodes.bring(1, [host, other], sender.store, writer)  # type: ignore[list-item]
    assert host.said[-1:] == [(say.WHOLE, 1, b"more", 0)]
    sender.answer(host, 1, None, "there")
    assert sender.landed == [([host, other], 1, "there", None)]
    assert host.link.sizes == [1024, 2048]
    assert other.link.sizes == [], "a second receiver on a machine costs the network nothing"
    assert other.words == [say.HELLO]


def test_a_version_that_lands_before_it_is_published_is_told_to_nobody_until_then(sender: Sender) -> None:
    host = Outlet()
    sender.nodes.greet(host, sender.store, sender.store.latest)  # type: ignore[arg-type]
    slot, writer = sender.begin(1, host)
    failure = say.pack_error(MemoryError("no room"))
    sender.answer(host, 1, failure, None)
    assert [outlets for outlets, *_ in sender.landed] == [[]]
    sender.pack(slot, 1)
    sender.nodes.bring(1, [host], sender.store, writer)  # type: ignore[list-item]
    assert host.words.count(say.BRING) == 2, "once more"


def test_a_version_that_cannot_be_packed_leaves_the_line_that_it_was_coming_on(sender: Sender) -> None:
    host = Outlet()
    sender.nodes.greet(host, sender.store, sender.store.latest)  # type: ignore[arg-type]
    slot, _ = sender.begin(1, host)
    sender.room(host, 1)
    sender.nodes.packed(1, 1024)
    sender.store.give_back(slot)
    sender.nodes.abandon(1)
    first, second = [words[-1] for words in host.said if words[0] == say.HOST]
    slot, writer = sender.begin(1, host)
    sender.pack(slot, 1)
    sender.nodes.bring(1, [host], sender.store, writer)  # type: ignore[list-item]
    sender.room(host, 1)
    assert [line for line, *_ in host.link.tensors] == [first, second, second]
    assert first != second
    assert set(host.link.tensors[-1][1].view(torch.float32).tolist()) == {1.0}


def test_if_the_host_dies_while_a_version_is_packed_another_one_gets_all_of_it(sender: Sender) -> None:
    host, other = Outlet(), Outlet()
    for outlet in (host, other):
        sender.nodes.greet(outlet, sender.store, sender.store.latest)  # type: ignore[arg-type]
    slot, writer = sender.begin(1, host, other)
    sender.room(host, 1)
    sender.nodes.packed(1, 1024)
    sender.nodes.forget(host)  # type: ignore[arg-type]
    host.link.tensors[0][2]._settle(error=PeerLost("gone"))
    sender.pack(slot, 1)
    sender.nodes.bring(1, [other], sender.store, writer)  # type: ignore[list-item]
    assert other.words == [say.HELLO, say.HOST, say.BRING]
    sender.room(other, 1)
    assert other.link.sizes == [1024, 2048]
    assert other.words[-1] == say.WHOLE


def test_no_other_version_comes_into_memory_that_is_still_being_sent(sender: Sender) -> None:
    host = Outlet()
    sender.nodes.greet(host, sender.store, sender.store.latest)  # type: ignore[arg-type]
    slot, writer = sender.begin(1, host)
    sender.pack(slot, 1)
    sender.nodes.bring(1, [host], sender.store, writer)  # type: ignore[list-item]
    second = sender.store.take()
    sender.pack(second, 2)
    third = sender.store.take()
    assert sender.store.writer(third) is not writer, "version 1 waits for room at its receiver"
    sender.store.give_back(third)


def test_a_host_that_dies_before_anything_was_published_is_followed_by_another(sender: Sender) -> None:
    host, other = Outlet(), Outlet()
    for outlet in (host, other):
        sender.nodes.greet(outlet, sender.store, sender.store.latest)  # type: ignore[arg-type]
    sender.nodes.forget(host)  # type: ignore[arg-type]
    assert other.words == [say.HELLO, say.HOST]


def test_a_receiver_that_takes_what_it_has_refused_hears_of_what_is_there_or_is_on_its_way(sender: Sender) -> None:
    host, other = Outlet(), Outlet()
    for outlet in (host, other):
        sender.nodes.greet(outlet, sender.store, sender.store.latest)  # type: ignore[arg-type]
    sender.nodes.catch_up(other, sender.store, sender.store.latest)  # type: ignore[arg-type]
    assert sender.landed == [], "there is nothing yet"
    slot, writer = sender.begin(1, host)
    sender.pack(slot, 1)
    sender.nodes.bring(1, [host], sender.store, writer)  # type: ignore[list-item]
    sender.nodes.catch_up(other, sender.store, sender.store.latest)  # type: ignore[arg-type]
    assert sender.landed == []
    sender.answer(host, 1, None, "there")
    assert sender.landed == [([host, other], 1, "there", None)]
    sender.nodes.catch_up(other, sender.store, sender.store.latest)  # type: ignore[arg-type]
    assert sender.landed[1:] == [([other], 1, "there", None)]
    assert host.words.count(say.BRING) == 1


@pytest.mark.parametrize("left", [0, 1])
def test_a_host_that_is_gone_when_it_is_to_be_host_again_keeps_nothing_from_the_other_machines(
    sender: Sender, left: int
) -> None:
    class Gone(Outlet):
        """Its end is heard when it is told something."""

        is_gone = False

        def say(self, *words: object) -> None:
            super().say(*words)
            if self.is_gone:
                self.is_gone = False
                sender.nodes.forget(self)  # type: ignore[arg-type]

    late, gone, other = Outlet(1), Gone(1), Outlet(2)
    here = [late, gone][1 - left :]
    for outlet in (*here, other):
        sender.nodes.greet(outlet, sender.store, sender.store.latest)  # type: ignore[arg-type]
    sender.nodes.doubt(here[0])  # type: ignore[arg-type]
    gone.is_gone = True
    slot = sender.store.take()
    sender.pack(slot, 1)
    sender.nodes.bring(1, [*here, other], sender.store, sender.store.writer(slot))  # type: ignore[list-item]
    assert other.words == [say.HOST, say.BRING]
    if left:
        assert late.words == [say.HOST, say.HOST, say.BRING]
        assert sender.landed == []
    else:
        assert sender.landed == [([gone], 1, None, "PeerLost")]

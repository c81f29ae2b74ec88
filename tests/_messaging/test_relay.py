"""Words and pieces of a source to hosts of other machines."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._core.failures import pack_error
from rlinf_async._messaging.relayed_broadcast import END, HOST, RelayedBroadcast, _SegmentRoom, open_landed
from rlinf_async._messaging.state import relay_plan
from rlinf_async._messaging.state.relay_plan import BRING, ROOM, WHOLE, piece_sizes
from rlinf_async.errors import PeerLost, TransferFailed
from rlinf_async.work import Work
from tests._support.simulated_remote_nodes import NBYTES, Link, Payload, Receiver, Sender


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sender]:
    monkeypatch.setattr(relay_plan, "FIRST_PIECE_BYTES", 1024)
    sender = Sender()
    yield sender
    sender.close()


def test_pieces_double_up_to_a_limit_and_leave_nothing_out() -> None:
    mebi = 1 << 20
    assert piece_sizes(0) == []
    assert piece_sizes(5) == [5]
    assert [size // mebi for size in piece_sizes(1024 * mebi)] == [16, 32, 64, 128, 256, 256, 256, 16]
    assert sum(piece_sizes(777 * mebi + 3)) == 777 * mebi + 3


def test_what_is_packed_leaves_once_there_is_room_and_is_whole_only_when_published(sender: Sender) -> None:
    host, other = Receiver(), Receiver()
    sender.join(host, other)
    payload = sender.begin(1, host, other)
    assert host.said[-1] == (BRING, 1, [1024, 2048])
    sender.relay.act(sender.plan.packed, 1, 1024)
    assert host.link.sizes == [], "nothing waits for them there yet"
    sender.room(host, 1)
    assert host.link.sizes == [1024]
    sender.relay.act(sender.plan.packed, 1, 2500)
    assert host.link.sizes == [1024], "the rest of the next piece is not there"
    sender.relay.act(sender.plan.packed, 1, 3072)
    assert host.link.sizes == [1024, 2048]
    assert WHOLE not in host.words
    sender.publish(payload, host, other)
    assert host.said[-1:] == [(WHOLE, 1, b"more", 0)]
    sender.answer(host, 1, None, "there")
    assert sender.ended == [([host, other], 1, "there", None)]
    assert host.link.sizes == [1024, 2048]
    assert other.link.sizes == [], "a second receiver on a machine costs the network nothing"
    assert other.words == ["hello"]


def test_a_version_that_lands_before_it_is_published_is_told_to_nobody_until_then(sender: Sender) -> None:
    host = Receiver()
    sender.join(host)
    payload = sender.begin(1, host)
    sender.answer(host, 1, pack_error(MemoryError("no room")), None)
    assert [receivers for receivers, *_ in sender.ended] == [[]]
    sender.publish(payload, host)
    assert host.words.count(BRING) == 2, "once more"


def test_a_version_that_cannot_be_packed_leaves_the_line_that_it_was_coming_on(sender: Sender) -> None:
    host = Receiver()
    sender.join(host)
    sender.begin(1, host)
    sender.room(host, 1)
    sender.relay.act(sender.plan.packed, 1, 1024)
    sender.abandon(1)
    first, second = [words[-1] for words in host.said if words[0] == "host"]
    payload = sender.begin(1, host)
    sender.publish(payload, host)
    sender.room(host, 1)
    assert [line for line, *_ in host.link.tensors] == [first, second, second]
    assert first != second
    assert set(host.link.tensors[-1][1]) == {1}


def test_if_the_host_dies_while_a_version_is_packed_another_one_gets_all_of_it(sender: Sender) -> None:
    host, other = Receiver(), Receiver()
    sender.join(host, other)
    payload = sender.begin(1, host, other)
    sender.room(host, 1)
    sender.relay.act(sender.plan.packed, 1, 1024)
    sender.leave(host)
    host.link.tensors[0][2]._settle(error=PeerLost("gone"))
    sender.publish(payload, other)
    assert other.words == ["hello", "host", BRING]
    sender.room(other, 1)
    assert other.link.sizes == [1024, 2048]
    assert other.words[-1] == WHOLE


def test_memory_is_held_until_its_last_piece_is_there(sender: Sender) -> None:
    host = Receiver()
    sender.join(host)
    payload = sender.begin(1, host)
    sender.publish(payload, host)
    assert payload.holds == 1, "it waits for room at its receiver"
    sender.room(host, 1)
    assert payload.holds == 3
    sender.answer(host, 1, None, "there")
    for *_, work in host.link.tensors:
        work._settle()
    assert payload.holds == 0


def test_a_host_that_dies_before_anything_was_published_is_followed_by_another(sender: Sender) -> None:
    host, other = Receiver(), Receiver()
    sender.join(host, other)
    sender.leave(host)
    assert other.words == ["hello", "host"]


def test_a_receiver_that_takes_what_it_has_refused_hears_of_what_is_there_or_is_on_its_way(sender: Sender) -> None:
    host, other = Receiver(), Receiver()
    sender.join(host, other)
    payload = sender.begin(1, host)
    sender.publish(payload, host)
    sender.catch_up(other)
    assert sender.ended == []
    sender.answer(host, 1, None, "there")
    assert sender.ended == [([host, other], 1, "there", None)]
    sender.catch_up(other)
    assert sender.ended[1:] == [([other], 1, "there", None)]
    assert host.words.count(BRING) == 1


@pytest.mark.parametrize("left", [0, 1])
def test_a_host_that_is_gone_when_it_is_to_be_host_again_keeps_nothing_from_the_other_machines(
    sender: Sender, left: int
) -> None:
    class Gone(Receiver):
        """Its end is heard when it is told something."""

        is_gone = False

        def send_message(self, *words: object) -> None:
            super().send_message(*words)
            if self.is_gone:
                self.is_gone = False
                self.link.error = PeerLost("gone")
                sender.leave(self)

    late, gone, other = Receiver(1), Gone(1), Receiver(2)
    here = [late, gone][1 - left :]
    sender.join(*here, other)
    sender.publish(Payload(1), here[0])  # which does not land: the next one takes the host's place
    gone.is_gone = True
    sender.publish(Payload(2), *here, other)
    assert other.words == ["host", BRING]
    assert sender.ended == []
    if left:
        assert late.words == ["host", BRING, "hello", "host", BRING]
    assert gone.words[-1] == "host", "a dead one is told nothing more"


def test_a_late_receiver_has_a_machine_begin_again_that_waits_for_an_older_version(sender: Sender) -> None:
    host, late = Receiver(), Receiver()
    sender.join(host)
    first = Payload(1)
    sender.publish(first, host)
    sender.publish(Payload(2))  # for other machines
    sender.join(late)
    assert first.holds == 0, "what no host waits for any more is not held"
    assert late.words == ["hello", "host", BRING] or host.words[-2:] == ["host", BRING]


def test_what_cannot_land_is_under_way_no_more(sender: Sender) -> None:
    host = Receiver()
    sender.join(host)
    payload = sender.begin(1, host)
    sender.publish(payload, host)
    sender.room(host, 1)
    sender.answer(host, 1, pack_error(TransferFailed("a piece is lost")), None)
    assert [error for *_, error in sender.ended] == ["TransferFailed"]
    assert payload.holds == 0, "what nobody receives any more is not held"
    line = host.link.tensors[0][0]
    sender.publish(Payload(2), host)
    sender.room(host, 2)
    assert host.link.tensors[-1][0] != line, "it is not taken for what is left of the first"


def test_pieces_that_leave_at_once_do_not_nest_however_many_they_are(sender: Sender) -> None:
    class Fast(Link):
        def send_tensor(self, tensor: bytes, stream_id: int) -> Work[None]:
            work = super().send_tensor(tensor, stream_id)
            work._settle()
            return work

    host, payload = Receiver(), Payload(1)
    host.link = Fast(1)
    payload.sizes = [1] * NBYTES
    sender.join(host)
    sender.publish(payload, host)
    sender.room(host, 1)
    assert host.link.sizes == payload.sizes
    assert payload.holds == 1, "it has not landed"
    sender.answer(host, 1, None, "there")


class Carrier(Receiver):
    """A receiver of a broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.address = id(self)
        self.peer: Any = SimpleNamespace(endpoint=self.address)

    def later(self, *_: Any) -> None: ...

    def forget(self) -> None: ...


def test_the_former_host_of_a_broadcast_is_told_that_it_lets_go() -> None:
    former, host = carriers = [Carrier(), Carrier()]
    told: list[Any] = []
    broadcast = RelayedBroadcast(carriers, lambda *facts: told.append(facts))  # type: ignore[arg-type]
    broadcast.start(memoryview(bytes(NBYTES)))
    broadcast.on_message(former.peer, ROOM, 1, former.stream_id)
    former.link.tensors[0][2]._settle(error=TransferFailed("it cannot be reached"))
    assert (former.words, host.words) == ([HOST, BRING, WHOLE, END], [HOST, BRING])
    broadcast.close()
    assert (former.words[-2:], host.words) == ([WHOLE, END], [HOST, BRING, END])
    assert told == []


def test_memory_that_landed_is_opened_by_its_name() -> None:
    room = _SegmentRoom(8)
    room.memory[:] = b"received"
    content = open_landed(room.finish(1), [8], b"")
    room.abandon()
    assert content.memory() == b"received"

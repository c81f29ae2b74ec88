"""Requests of processes to an experience: waits for room, takes in turn, wishes, the trainer, words about a wait."""

from __future__ import annotations

import pickle
import re
import weakref
from typing import Any

import pytest

from rlinf_async._channels.state.actions import QueueAction, Step
from rlinf_async._experience.state.experience_changes import Earlier, Insert
from rlinf_async._experience.state.experience_options import ExperienceOptions
from rlinf_async._experience.state.experience_queue import TAKE, WISH, ExperienceQueue, pack_kind, pack_name

from .test_experience_histories import Desk

P, Q, T = 1, 2, 3
"""Two producers and a trainer."""


class Hand:
    """Puts and takes with an experience, one request after the other."""

    def __init__(self, *, is_durable: bool = False, **options: Any) -> None:
        self.desk = Desk(is_durable=is_durable)
        self.queue = ExperienceQueue("x", ExperienceOptions(**options), self.desk, (), lambda: 0.0)
        self.said = dict.fromkeys((P, Q, T), 0)

    def put(
        self, name: str, version: int = 0, *, who: int = P, key: bytes | None = None, nbytes: int = 1, body: Any = None
    ) -> list[str]:
        self.said[who] += 1
        packed = pack_name(key, name.encode())
        return told(self.queue.put(who, self.said[who], packed, version, nbytes, name if body is None else body))

    def take(self, groups: int = 1, *, who: int = T, key: bytes | None = None) -> list[str]:
        self.said[who] += 1
        kind = pack_kind(TAKE, key)
        return told(self.queue.get(who, self.said[who], kind, groups, False, True, False, False, False, 0.0))

    def wish(self, who: int = P) -> list[str]:
        self.said[who] += 1
        return told(self.queue.get(who, self.said[who], pack_kind(WISH, None)))

    def version(
        self, version: int, *, who: int = T, trainer: str = "group 'trainer'", restart: bool = False
    ) -> list[str]:
        return told(self.queue.set_version(who, trainer, version, restart=restart))

    def settle(self, number: int, count: int) -> list[str]:
        steps = self.queue.settle(T, number, count, lambda error: None)
        assert steps is not None
        return told(steps)

    def why(self, key: bytes | None = None) -> str:
        return self.queue.describe(pack_kind(TAKE, key))


def told(steps: list[Step]) -> list[str]:
    words = []
    for act, what in steps:
        if act == QueueAction.ACCEPTED:
            words.append("accepted")
        elif act == QueueAction.DELIVER:
            words.append(" ".join(["got", *(str(item.body) for item in what.items[1:])]))
        else:
            words.append(f"{what[2]}: {what[3]}")
    return words


def test_a_put_under_no_name_is_refused() -> None:
    [refused] = told(Hand().queue.put(P, 1, b"no name", 0, 1, "a"))
    assert refused == "ValueError: no group has the name b'no name'"


def test_a_put_waits_for_room_for_its_whole_group_and_one_of_a_group_that_has_begun_does_not() -> None:
    hand = Hand(group=2, maxsize=2)
    assert hand.put("a") == ["accepted"]
    assert hand.put("b", who=Q) == []
    assert hand.put("a") == ["accepted"]
    assert hand.take() == ["got a a", "accepted"]


def test_hundreds_of_takes_for_which_there_is_no_room_are_all_refused() -> None:
    hand = Hand(max_bytes=1)
    hand.put("a")
    for _ in range(600):
        hand.take(2)
    assert len(hand.put("b")) == 600


def test_a_large_take_does_not_starve_behind_small_ones_and_holds_up_no_other_key() -> None:
    hand = Hand()
    assert hand.take(2) == []
    assert hand.take(1, who=Q, key=b"k") == []
    assert hand.put("a") == ["accepted"]
    assert hand.put("k", key=b"k") == ["accepted", "got k"]
    assert hand.put("b") == ["accepted", "got a b"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"maxsize": 3}, "take(groups=4) of experience 'x' needs 4 samples, and maxsize=3 lets fewer in: take fewer"),
        ({"max_bytes": 3}, "take(groups=4) of experience 'x' found 3 groups, which fill max_bytes=3: make that larger"),
    ],
)
def test_a_take_that_can_never_be_served_is_refused(options: dict[str, int], text: str) -> None:
    hand = Hand(**options)
    words = [word for name in "abcd" for word in hand.put(name)] + hand.take(4)
    assert any(f"ValueError: {text}" in word for word in words), words


def test_a_group_that_can_never_enter_is_refused() -> None:
    assert (
        "ValueError: a group of 3 samples of 4 bytes can never enter experience 'x', whose samples may have 10"
        in (Hand(group=3, max_bytes=10).put("a", nbytes=4)[0])
    )


def test_producers_are_told_to_pause_and_a_take_that_waits_lets_them_go_on() -> None:
    hand = Hand(max_staleness=0)
    hand.version(1)
    hand.put("a", 1)
    assert hand.take() == ["got a"]
    assert hand.wish() == []  # what is made now is taken in the next version
    assert "the trainer has version 1; group 'trainer' has not asked" in hand.queue.describe(pack_kind(WISH, None))
    assert hand.take() == ["got"]
    assert hand.put("b", 1) == ["accepted", "got b"]
    assert hand.wish() == []
    assert hand.version(2) == ["got"]


def test_a_trainer_that_is_gone_for_good_ends_wishes_with_its_story_and_another_one_is_waited_for() -> None:
    hand = Hand(max_staleness=0)
    hand.version(1)
    hand.put("a", 1)
    hand.take()
    assert hand.settle(1, 1) == []
    assert hand.wish() == []
    assert told(hand.queue.drop(T)) == []
    assert hand.desk.gone == [T]
    assert told(hand.queue.end_wishes("rank 0 was killed")) == ["PeerLost: rank 0 was killed"]
    assert hand.wish() == ["PeerLost: rank 0 was killed"]
    hand.version(0, who=Q, trainer="group 'other'")  # nobody has to say that it is another one
    assert hand.queue.pool.version == 0
    assert hand.wish() == ["got"]
    assert told(hand.queue.end_wishes("too late")) == []


@pytest.mark.parametrize(
    ("version", "options", "text"),
    [
        (4, {}, "set_version(4) of experience 'x' by group 'trainer': it has set version 5, and versions rise"),
        (
            6,
            {"who": Q, "trainer": "group 'b'"},
            "by group 'b': group 'trainer' sets its versions, and an experience has",
        ),
    ],
)
def test_versions_that_go_back_and_second_trainers_are_refused(version: int, options: Any, text: str) -> None:
    hand = Hand()
    hand.version(5)
    with pytest.raises(ValueError, match=re.escape(text)):
        hand.version(version, **options)
    assert hand.queue.pool.version == 5


def test_ranks_of_a_trainer_may_be_behind_one_another_and_go_back_together() -> None:
    hand = Hand()
    hand.version(5)
    hand.version(4, who=Q)
    assert hand.queue.pool.version == 5
    hand.version(2, restart=True)
    assert hand.queue.pool.version == 2


def test_a_take_that_waits_says_why() -> None:
    hand = Hand(group=2, max_staleness=0)
    hand.take()
    assert hand.why() == "0 groups can be taken; no producer has put anything; 0 puts and 1 take wait"
    hand.put("a")
    assert "1 group is incomplete and lacks 1 sample" in hand.why()
    hand.queue.drop(P)
    assert "no producer is left" in hand.why()
    hand.version(3)
    assert (
        "1 sample was dropped since the last take, as more than 0 versions behind the trainer's version 3" in hand.why()
    )


def test_a_durable_put_and_the_end_of_a_take_are_answered_when_they_are_written() -> None:
    hand = Hand(is_durable=True)
    assert hand.put("a") == []
    assert hand.take() == []
    assert told(hand.queue.written(hand.desk.changes.pop(), None)) == ["accepted", "got a"]
    answers: list[Any] = []
    assert hand.queue.settle(T, 1, 1, answers.append) == []
    assert answers == []
    assert told(hand.queue.cancel(T, 1)) == []  # it is too late to give them back
    assert hand.queue.pool.ledger().leased == 1
    hand.queue.written(hand.desk.changes.pop(), None)
    assert answers == [None]
    assert hand.queue.pool.ledger().taken == 1


def test_a_full_disk_is_an_error_of_the_put_and_of_the_end_of_the_take() -> None:
    hand = Hand(is_durable=True)
    hand.put("a")
    full = OSError("experience 'x' on node 0 could not write to /x: full")
    assert told(hand.queue.written(hand.desk.changes.pop(), full)) == [f"OSError: {full}; the sample was not put"]
    hand.put("b")
    hand.queue.written(hand.desk.changes.pop(), None)
    hand.take()
    answers: list[Any] = []
    hand.queue.settle(T, 1, 1, answers.append)
    hand.queue.written(hand.desk.changes.pop(), full)
    assert answers == [full]
    assert hand.take() == ["got b"]


def test_the_content_says_what_is_here_and_what_is_leased() -> None:
    hand = Hand()
    hand.put("a", 4)
    hand.put("b", 5, key=b"k")
    hand.take()
    head, *samples = hand.queue.peek(b"")
    version, taken, dropped, facts = pickle.loads(head.body[1:])
    assert (version, taken, dropped) == (None, 0, {})
    assert facts == [[1, None, b"a", 4], [2, b"k", b"b", 5]]
    assert [sample.body for sample in samples] == ["a", "b"]


def test_a_closed_experience_gives_what_is_left_and_then_ends() -> None:
    hand = Hand(group=2, short_groups="take")
    hand.put("a")
    assert hand.take(2) == []
    assert told(hand.queue.close()) == ["got a"]
    assert hand.take() == []  # the lease may give its group back
    assert not hand.queue.finished
    (end,) = hand.settle(1, 1)
    assert end == "EndOfChannel: experience 'x' is closed, and no groups are left to take"
    assert hand.put("b")[0].startswith("ClosedError: experience 'x' is closed")
    assert hand.wish()[0].startswith("ClosedError")
    assert hand.queue.finished


def test_a_put_that_a_close_has_failed_is_not_let_in_later() -> None:
    hand = Hand(maxsize=1)
    hand.put("a")
    assert hand.put("b") == []  # waits for room
    assert [words.partition(":")[0] for words in told(hand.queue.close())] == ["ClosedError"]
    assert hand.take() == ["got a"]
    hand.settle(1, 1)
    assert [words.partition(":")[0] for words in hand.take(who=Q)] == ["EndOfChannel"]


def test_a_put_that_is_given_up_while_it_is_written_leaves_nothing() -> None:
    hand = Hand(group=2, is_durable=True)
    hand.put("a")
    hand.put("a")
    assert told(hand.queue.cancel(P, 2)) == []
    first, second = hand.desk.changes
    assert told(hand.queue.written(first, None)) == ["accepted"]
    assert told(hand.queue.written(second, None)) == []
    assert hand.desk.changes[2:] == [hand.desk.changes[-1]]  # what was written is dropped there, too
    assert hand.queue.pool.lacking() == (1, 1)
    assert hand.queue.pool.ledger().is_closed


def test_a_group_that_is_open_again_has_the_next_put_for_it() -> None:
    hand = Hand(group=2, maxsize=2, is_durable=True)
    hand.put("a")
    hand.put("a")
    hand.put("b")  # waits for room, and so do those behind it
    hand.put("a", who=Q)
    hand.queue.cancel(P, 2)
    for change in hand.desk.changes[:2]:
        hand.queue.written(change, None)
    assert [change.item.producer for change in hand.desk.changes if isinstance(change, Insert)] == [P, P, Q]


def test_any_take_that_can_never_be_served_is_refused_and_not_only_the_first() -> None:
    hand = Hand(max_bytes=1)
    assert hand.take(key=b"other") == []
    hand.put("a", key=b"k")
    hand.put("b", key=b"k")
    (words,) = hand.take(2, who=Q, key=b"k")
    assert words.startswith("ValueError: take(groups=2) of experience 'x' found 1 groups, which fill max_bytes=1")


def test_a_discard_ends_takes_that_wait_at_once_whatever_is_leased() -> None:
    hand = Hand()
    hand.put("a")
    hand.take()
    assert hand.take(who=Q) == []
    assert told(hand.queue.close(discard=True)) == [
        "EndOfChannel: experience 'x' is closed, and no groups are left to take"
    ]
    assert hand.settle(1, 1) == []
    assert hand.queue.pool.ledger().taken == 1


def test_the_version_of_a_dead_process_counts_no_more() -> None:
    hand = Hand()
    hand.version(9)
    hand.version(3, who=Q)  # was started in its place, from a checkpoint, and is heard first
    hand.queue.drop(T)
    assert hand.queue.pool.version == 3
    assert hand.desk.gone == []


def test_a_rank_that_goes_back_to_a_checkpoint_ends_no_wish_when_it_dies_beside_others() -> None:
    hand = Hand()
    hand.version(9)
    hand.version(5, who=Q, restart=True)
    hand.queue.drop(Q)
    assert hand.desk.gone == []
    hand.version(6)
    assert hand.queue.pool.version == 6


class Body:
    """A sample's bytes."""


@pytest.mark.parametrize("count", [1, 2], ids=["a lease that goes on", "and one that is over"])
def test_nothing_keeps_the_bytes_of_samples_that_were_taken(count: int) -> None:
    hand = Hand(group_timeout_s=60.0)
    bodies = [Body(), Body()]
    refs = list(map(weakref.ref, bodies))
    for body in bodies:
        hand.put("a", body=body)
    hand.take(2)
    del bodies, body
    hand.settle(1, count)
    assert [ref() is None for ref in refs] == [True, count == 2]


def test_counts_of_another_experience_are_written_and_come_into_a_new_one_under_its_trainers_version() -> None:
    hand = Hand(is_durable=True)
    hand.version(9)
    assert told(hand.queue.count_earlier(3, 4, {"stale": 1})) == []
    written = hand.desk.changes[-1]
    assert isinstance(written, Earlier)
    assert (written.version, written.taken, written.dropped) == (9, 4, {"stale": 1})
    assert (hand.queue.pool.version, hand.queue.pool.ledger().put) == (9, 5)
    hand = Hand(is_durable=True)
    hand.put("a")  # is being written
    with pytest.raises(ValueError, match="only a new experience takes over an earlier one; samples were put"):
        hand.queue.count_earlier(3, 4, {})

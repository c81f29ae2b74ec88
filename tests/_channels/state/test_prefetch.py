"""Prefetched gets in the queue: lent, taken, given back."""

from __future__ import annotations

from typing import Any

from rlinf_async._channels.state.actions import Act, Step
from rlinf_async._channels.state.prefetch import CallBack, Prefetch
from rlinf_async._channels.state.queue import Queue

P, A, B, C = 1, 2, 3, 4
"""A producer, who sends gets ahead, and two others."""
K, L = b"k", b"l"


def acts(steps: list[Step]) -> list[tuple[Act, Any]]:
    """With numbers of gets and items, and what was asked in a question."""
    return [(Act(act), getattr(what, "number", getattr(what, "what", None))) for act, what in steps]


def given(steps: list[Step]) -> list[tuple[int, Any, bool]]:
    return [
        (what.consumer, item.body, item.redelivered) for act, what in steps if act == Act.DELIVER for item in what.items
    ]


def calls(steps: list[Step]) -> list[CallBack]:
    return [what for act, what in steps if act == Act.CALL_BACK]


def ahead(count: int, *bodies: Any) -> Queue:
    """A has sent so many gets ahead, and then these items came."""
    queue = Queue()
    Prefetch(queue)
    for number in range(1, count + 1):
        assert queue.get(A, number, K, prefetched=True) == []
    put(queue, *bodies)
    return queue


def prefetch(queue: Queue) -> Prefetch:
    assert isinstance(queue.gate, Prefetch)
    return queue.gate


def put(queue: Queue, *bodies: Any) -> list[Step]:
    steps: list[Step] = []
    for body in bodies:
        number = queue.clients[P].expected if P in queue.clients else 1
        steps += queue.put(P, number, K, nbytes=1, body=body)
    return steps


def test_they_stand_in_line_and_are_leased_like_any_others() -> None:
    queue = ahead(2)
    assert given(put(queue, "a", "b", "c")) == [(A, "a", False), (A, "b", False)]
    assert [item.body for item in queue.peek(K)] == ["c"]
    queue.taken(A, [1, 2])
    assert queue.budget.used == 1


def test_the_get_of_another_is_held_until_its_turn_is_known_and_has_what_nobody_had() -> None:
    queue = ahead(3, "a", "b", "c", "d")
    steps = queue.get(B, 1, K)
    assert [(call.client, call.key) for call in calls(steps)] == [(A, K)]
    assert given(steps) == []
    assert queue.get(C, 1, K) == []  # it has been asked already
    queue.taken(A, [1])
    assert given(prefetch(queue).gave_back(A, K, [2, 3])) == [(B, "b", True), (C, "c", True)]
    assert [item.body for item in queue.peek(K)] == ["d"]


def test_those_that_callers_have_taken_keep_their_places_in_line() -> None:
    queue = ahead(3)
    queue.get(B, 1, K)
    assert prefetch(queue).gave_back(A, K, [2, 3]) == []
    assert given(put(queue, "a", "b")) == [(A, "a", False), (B, "b", False)]


def test_what_comes_between_the_call_and_its_answer_is_not_lost() -> None:
    queue = ahead(2)
    queue.get(B, 1, K)
    assert given(put(queue, "a", "b", "c")) == [(A, "a", False), (A, "b", False)]
    assert given(prefetch(queue).gave_back(A, K, [1, 2])) == [(B, "a", True)]
    assert [item.body for item in queue.peek(K)] == ["b", "c"]


def test_a_question_is_answered_in_truth_and_in_its_turn() -> None:
    queue = ahead(2, "a", "b")
    assert acts(prefetch(queue).ask(B, K, "before")) == [(Act.CALL_BACK, None)]
    assert queue.get(B, 1, K, nowait=True) == prefetch(queue).ask(B, K, "after") == []
    steps = prefetch(queue).gave_back(A, K, [1, 2])
    assert acts(steps) == [(Act.ANSWER, "before"), (Act.DELIVER, 1), (Act.ANSWER, "after")]
    assert queue.size(K) == 1
    assert acts(prefetch(queue).ask(B, K, "at once")) == [(Act.ANSWER, "at once")]


def test_their_owner_and_other_keys_are_not_held_up() -> None:
    queue = ahead(1, "a")
    assert acts(prefetch(queue).ask(A, K, "mine")) == [(Act.ANSWER, "mine")]
    assert acts(prefetch(queue).ask(B, L, "another")) == [(Act.ANSWER, "another")]
    assert queue.get(B, 1, L) == []


def test_a_get_that_may_not_wait_is_refused_when_the_truth_is_known() -> None:
    queue = ahead(2)
    assert calls(queue.get(B, 1, K, nowait=True))
    assert acts(prefetch(queue).gave_back(A, K, [1, 2])) == [(Act.EMPTY, 1)]
    assert queue.used == []


def test_what_is_held_can_be_given_up() -> None:
    queue = ahead(1, "a")
    queue.get(B, 1, K)
    queue.get(C, 1, K)
    assert queue.cancel(B, 1) == []
    assert given(prefetch(queue).gave_back(A, K, [1])) == [(C, "a", True)]
    queue = ahead(1, "a")
    queue.get(B, 1, K)
    assert queue.drop(B) == prefetch(queue).gave_back(A, K, [1]) == []
    assert queue.size(K) == 1


def test_gets_ahead_that_are_held_themselves_can_be_given_back_and_die_with_their_client() -> None:
    queue = ahead(1, "a")
    assert calls(queue.get(B, 1, K, prefetched=True))
    queue.get(B, 2, K, prefetched=True)
    assert prefetch(queue).gave_back(B, K, [1, 2]) == []
    queue.get(B, 3, K, prefetched=True)
    queue.get(C, 1, K)
    assert queue.drop(B) == []
    assert given(prefetch(queue).gave_back(A, K, [1])) == [(C, "a", True)]


def test_a_call_that_nobody_waits_for_any_more_does_not_keep_later_ones_from_being_made() -> None:
    queue = ahead(1)
    queue.get(B, 1, K)
    queue.cancel(B, 1)
    prefetch(queue).gave_back(A, K, [1])
    queue.get(A, 2, K, prefetched=True)
    assert calls(queue.get(B, 2, K))


def test_when_all_have_been_taken_nobody_is_waited_for() -> None:
    queue = ahead(1, "a", "b")
    queue.get(B, 1, K)
    assert given(queue.taken(A, [1])) == [(B, "b", False)]


def test_the_death_of_their_owner_gives_them_back_flagged() -> None:
    queue = ahead(3, "a", "b")
    queue.get(B, 1, K)
    queue.get(B, 2, K)
    queue.get(B, 3, K)
    assert given(queue.drop(A)) == [(B, "a", True), (B, "b", True)]
    assert given(put(queue, "c")) == [(B, "c", False)]


def test_what_is_given_back_before_it_came_never_happens() -> None:
    queue = ahead(1)
    prefetch(queue).gave_back(A, K, [1, 2, 3])
    assert queue.get(A, 3, K, prefetched=True) == queue.get(A, 2, K, prefetched=True) == []
    assert queue.used == []


def test_two_who_send_ahead_do_so_one_after_the_other() -> None:
    queue = ahead(1)
    (call,) = calls(queue.get(B, 1, K, prefetched=True))
    assert queue.get(C, 1, K) == []
    assert call.client == A
    (call,) = calls(prefetch(queue).gave_back(A, K, [1]))  # C comes after B
    assert call.client == B
    assert given(put(queue, "a")) == [(B, "a", False)]
    assert given(prefetch(queue).gave_back(B, K, [1])) == [(C, "a", True)]


# -- who does not answer ----------------------------------------------------------------------------------------------


def test_after_a_while_it_is_not_waited_for_and_what_it_has_is_redelivered() -> None:
    queue = ahead(3, "a", "b")
    (call,) = calls(queue.get(B, 1, K))
    assert given(prefetch(queue).forfeit(call)) == [(B, "a", True)]
    queue.taken(A, [1])  # too late
    assert given(queue.get(C, 1, K)) == [(C, "b", True)]
    assert prefetch(queue).forfeit(call) == []
    assert given(put(queue, "c")) == []  # the third get has been forfeited
    queue.taken(B, [1])
    queue.taken(C, [1])
    assert queue.budget.used == 1


def test_a_caller_that_waited_waits_anew_when_its_process_answers() -> None:
    queue = ahead(2)
    (call,) = calls(queue.get(B, 1, K))
    prefetch(queue).forfeit(call)
    assert given(put(queue, "a", "b")) == [(B, "a", False)]
    assert given(prefetch(queue).gave_back(A, K, [2])) == [(A, "b", False)]
    assert not prefetch(queue)._forfeited


def test_what_its_process_asks_before_it_has_answered_waits_behind_it() -> None:
    queue = ahead(2)
    (call,) = calls(queue.get(B, 1, K))
    prefetch(queue).forfeit(call)
    assert queue.get(A, 3, K) == queue.get(A, 4, L) == []
    queue.cancel(A, 4)
    assert given(put(queue, "a", "b", "c", "d")) == [(B, "a", False)]
    assert given(prefetch(queue).gave_back(A, K, [])) == [(A, "b", False), (A, "c", False), (A, "d", False)]
    assert list(queue.clients[A].gets) == [1, 2, 3]


def test_a_caller_that_has_given_up_meanwhile_waits_no_more() -> None:
    def give_back(queue: Queue) -> list[Step]:
        return prefetch(queue).gave_back(A, K, [1])

    for late in (lambda queue: queue.cancel(A, 1), give_back, lambda queue: queue.drop(A)):
        queue = ahead(1)
        (call,) = calls(queue.get(B, 1, K, nowait=True))
        assert acts(prefetch(queue).forfeit(call)) == [(Act.EMPTY, 1)]
        assert late(queue) == prefetch(queue).gave_back(A, K, []) == []
        assert queue.used == []


def test_a_call_that_was_answered_forfeits_nothing_later() -> None:
    queue = ahead(1, "a")
    (call,) = calls(prefetch(queue).ask(B, K, "size"))
    prefetch(queue).gave_back(A, K, [1])
    queue.get(A, 2, K, prefetched=True)
    assert prefetch(queue).forfeit(call) == []
    assert calls(prefetch(queue).ask(B, K, "again"))[0].turn != call.turn


# -- the end ----------------------------------------------------------------------------------------------------------


def test_the_end_comes_to_all() -> None:
    queue = ahead(3, "a")
    assert acts(queue.close()) == [(Act.ENDED, 2), (Act.ENDED, 3)]
    assert calls(queue.get(B, 1, K))
    assert acts(queue.taken(A, [1])) == [(Act.ENDED, 1)]
    assert queue.finished


def test_at_the_end_another_still_gets_what_was_not_wanted() -> None:
    queue = ahead(2, "a")
    queue.get(B, 1, K)
    queue.close()
    assert given(prefetch(queue).gave_back(A, K, [1, 2])) == [(B, "a", True)]

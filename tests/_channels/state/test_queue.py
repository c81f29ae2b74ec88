"""Queue state without IO: order, bounds, cancellation, deaths, batches."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf_async._channels.state import put_window
from rlinf_async._channels.state.actions import QueueAction, Step
from rlinf_async._channels.state.put_window import ITEM_OVERHEAD_BYTES
from rlinf_async._channels.state.queue import Queue
from rlinf_async._channels.state.queue_counts import NODE_LOST, TOO_LATE
from rlinf_async._channels.state.refusals import refusal

P, C, D = 1, 2, 3
"""A producer and two consumers."""
K, L = b"k", b"l"


def acts(steps: list[Step]) -> list[tuple[QueueAction, int]]:
    return [(QueueAction(act), what.number) for act, what in steps]


def given(steps: list[Step]) -> list[tuple[int, list[Any]]]:
    """(consumer, bodies) of every delivery."""
    return [(what.consumer, [item.body for item in what.items]) for act, what in steps if act == QueueAction.DELIVER]


def all_of(*gets: int) -> list[tuple[int, int]]:
    """Return the word that all items of these gets are taken."""
    return [(get, 1 << 20) for get in gets]


def filled(*bodies: Any, **options: Any) -> Queue:
    queue = Queue(**options)
    for number, body in enumerate(bodies, 1):
        assert acts(queue.put(P, number, K, nbytes=1, body=body)) == [(QueueAction.ACCEPTED, number)]
    return queue


# -- one after the other ----------------------------------------------------------------------------------------------


def test_items_come_out_in_the_order_in_which_they_went_in() -> None:
    queue = filled("a", "b")
    assert given(queue.get(C, 1, K)) == [(C, ["a"])]
    assert given(queue.get(D, 1, K)) == [(D, ["b"])]
    assert queue.size(K) == 0


def test_gets_that_wait_are_served_in_their_order() -> None:
    queue = Queue()
    assert queue.get(D, 1, K) == queue.get(C, 1, K) == []
    assert given(queue.put(P, 1, K, body="a")) == [(D, ["a"])]
    assert given(queue.put(P, 2, K, body="b")) == [(C, ["b"])]


def test_keys_are_queues_of_their_own() -> None:
    queue = filled("a", maxsize=1)
    assert acts(queue.put(P, 2, K, body="b")) == []  # waits
    assert acts(queue.put(P, 3, L, body="c")) == [(QueueAction.ACCEPTED, 3)]
    assert given(queue.get(C, 1, L)) == [(C, ["c"])]


def test_a_put_waits_for_room_and_takes_the_place_that_becomes_free() -> None:
    queue = filled("a", maxsize=1)
    assert queue.full(K)
    assert queue.put(P, 2, K, body="b") == []
    assert acts(queue.get(C, 1, K)) == [(QueueAction.DELIVER, 1), (QueueAction.ACCEPTED, 2)]


def test_put_nowait_on_a_full_key_is_refused_and_leaves_nothing() -> None:
    queue = filled("a", maxsize=1)
    assert acts(queue.put(P, 2, K, body="b", nowait=True)) == [(QueueAction.FULL, 2)]
    assert given(queue.get(C, 1, K)) == [(C, ["a"])]
    assert queue.size(K) == 0


def test_get_nowait_on_an_empty_key_is_refused_and_leaves_nothing() -> None:
    queue = Queue()
    assert acts(queue.get(C, 1, K, nowait=True)) == [(QueueAction.EMPTY, 1)]
    assert queue.used == []


def test_a_batch_that_must_be_there_is_or_everything_stays_at_its_place() -> None:
    queue = Queue(maxsize=2)
    for number in (1, 2, 3):
        queue.put(P, number, K, weight=1, body=number)  # the third waits
    assert acts(queue.get(C, 1, K, 4, nowait=True)) == [(QueueAction.ACCEPTED, 3), (QueueAction.EMPTY, 1)]
    assert [(item.body, item.redelivered) for item in queue.peek(K)] == [(1, False), (2, False), (3, False)]
    assert given(queue.get(D, 1, K)) == [(D, [1])]
    assert given(queue.get(C, 2, K, 2, nowait=True)) == [(C, [2, 3])]
    assert acts(queue.get(C, 3, K, 0, nowait=True)) == [(QueueAction.EMPTY, 3)]
    queue.taken(C, all_of(2))
    queue.taken(D, all_of(1))
    assert queue.used == []
    assert not queue.budget.partial


def test_what_makes_no_sense_holds_up_nothing_that_is_asked_after_it() -> None:
    queue = filled("a")
    assert queue.get(C, 3, K) == queue.skip(C, 2) == []  # before its turn
    assert given(queue.get(C, 1, K)) == [(C, ["a"])]
    assert given(queue.put(P, 2, K, body="b")) == [(C, ["b"])]
    assert queue.skip(P, 3) == []
    assert acts(queue.put(P, 4, K, body="c")) == [(QueueAction.ACCEPTED, 4)]


def test_the_state_of_a_key_is_gone_when_it_is_empty_and_unused() -> None:
    queue = filled("a")
    queue.get(C, 1, K)
    assert queue.used == [K]  # it may come back
    queue.taken(C, all_of(1))
    assert queue.used == []
    assert queue.budget.used == 0


# -- leases -----------------------------------------------------------------------------------------------------------


def test_what_a_dead_consumer_had_goes_back_to_its_place_and_is_flagged() -> None:
    queue = filled("a", "b", "c")
    queue.get(C, 1, K)
    queue.get(C, 2, K)
    assert queue.drop(C) == []
    assert [item.body for item in queue.peek(K)] == ["a", "b", "c"]
    (_, get), *_ = queue.get(D, 1, K)
    assert (get.items[0].body, get.items[0].redelivered) == ("a", True)
    queue.get(D, 2, K)
    (_, get), *_ = queue.get(D, 3, K)
    assert (get.items[0].body, get.items[0].redelivered) == ("c", False)


def test_what_comes_back_goes_to_those_who_wait_in_order() -> None:
    queue = filled("a", "b")
    queue.get(C, 1, K)
    queue.get(C, 2, K)
    queue.get(D, 1, K)
    queue.get(D, 2, K)
    assert given(queue.drop(C)) == [(D, ["a"]), (D, ["b"])]


def test_what_was_taken_does_not_come_back() -> None:
    queue = filled("a")
    queue.get(C, 1, K)
    queue.taken(C, all_of(1))
    assert queue.cancel(C, 1) == queue.drop(C) == []
    assert queue.size(K) == 0


def test_a_cancelled_get_leaves_the_item_to_the_next() -> None:
    queue = Queue()
    queue.get(C, 1, K)
    queue.get(D, 1, K)
    queue.cancel(C, 1)
    assert given(queue.put(P, 1, K, body="a")) == [(D, ["a"])]
    assert given(queue.get(C, 2, K)) == []
    assert given(queue.cancel(D, 1)) == [(C, ["a"])]  # it had been delivered to D, who did not want it any more


def test_a_cancelled_put_lets_those_behind_it_in() -> None:
    queue = filled("a", maxsize=1)
    queue.put(P, 2, K, body="b")
    queue.put(P, 3, K, body="c")
    assert queue.cancel(P, 2) == []
    assert acts(queue.get(C, 1, K)) == [(QueueAction.DELIVER, 1), (QueueAction.ACCEPTED, 3)]


def test_a_dead_producers_accepted_items_stay_and_its_waiting_ones_go() -> None:
    queue = filled("a", maxsize=1)
    queue.put(P, 2, K, body="b")
    queue.drop(P)
    assert given(queue.get(C, 1, K)) == [(C, ["a"])]
    assert queue.size(K) == 0


def test_what_a_dead_party_said_and_comes_late_is_dropped() -> None:
    gone = {P}
    queue = Queue(gone=gone)
    assert queue.put(P, 1, K, body="a") == queue.get(P, 2, K) == []
    assert queue.used == []
    assert not queue.clients


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_a_put_that_comes_twice_counts_once() -> None:
    queue = filled("a")
    assert queue.put(P, 1, K, body="a") == []
    assert queue.size(K) == 1


@pytest.mark.parametrize("maxsize", [0, 1])
def test_a_sent_item_that_waits_for_its_turn_outlives_the_close(maxsize: int) -> None:
    queue = filled("a", maxsize=maxsize)
    assert queue.put(P, 3, K, body="c", sent=True) == []
    assert not queue.close()
    assert acts(queue.put(P, 2, K, body="b")) == [(QueueAction.CLOSED, 2)]
    assert [item.body for item in queue.peek(K)] == ["a", "c"]


def test_what_comes_early_waits_for_its_turn() -> None:
    queue = Queue()
    assert queue.put(P, 2, K, body="b") == []
    assert acts(queue.put(P, 1, K, body="a")) == [(QueueAction.ACCEPTED, 1), (QueueAction.ACCEPTED, 2)]
    assert [item.body for item in queue.peek(K)] == ["a", "b"]


def test_what_was_cancelled_before_it_came_never_happens() -> None:
    queue = Queue()
    queue.get(C, 1, K)
    queue.cancel(C, 2)
    assert queue.get(C, 2, K) == []
    queue.cancel(C, 1)
    assert acts(queue.put(P, 1, K, body="a")) == [(QueueAction.ACCEPTED, 1)]


# -- batches ----------------------------------------------------------------------------------------------------------


def weighted(*weights: int, **options: Any) -> Queue:
    queue = Queue(**options)
    for number, weight in enumerate(weights, 1):
        queue.put(P, number, K, weight, 1, weight)
    return queue


def test_a_batch_stops_at_its_target_and_before_what_would_be_too_much() -> None:
    assert given(weighted(1, 2, 3).get(C, 1, K, 3)) == [(C, [1, 2])]
    assert given(weighted(1, 2, 3).get(C, 1, K, 5)) == [(C, [1, 2])]


def test_a_batch_waits_until_it_is_complete() -> None:
    queue = weighted(1)
    assert queue.get(C, 1, K, 3) == []
    assert given(queue.put(P, 2, K, 2, 1, 2)) == [(C, [1, 2])]


def test_a_batch_gathers_more_than_the_queue_can_hold() -> None:
    queue = weighted(1, maxsize=1)
    queue.get(C, 1, K, 3)
    queue.put(P, 2, K, 1, 1, "b")
    assert given(queue.put(P, 3, K, 1, 1, "c")) == [(C, [1, "b", "c"])]


def test_an_item_heavier_than_the_target_is_an_error_and_stays() -> None:
    queue = weighted(5)
    assert acts(queue.get(C, 1, K, 3)) == [(QueueAction.TOO_HEAVY, 1)]
    assert given(queue.get(C, 2, K)) == [(C, [5])]


def test_a_batch_of_no_weight_is_one_item() -> None:
    assert given(weighted(0, 0).get(C, 1, K, 0)) == [(C, [0])]


def test_a_cancelled_batch_gives_back_what_it_had_gathered_unflagged() -> None:
    queue = weighted(1, 1)
    queue.get(C, 1, K, 5)
    queue.cancel(C, 1)
    assert [(item.body, item.redelivered) for item in queue.peek(K)] == [(1, False), (1, False)]


def test_a_batch_that_fills_all_bytes_is_an_error_instead_of_a_standstill() -> None:
    queue = Queue(max_bytes=2)
    queue.get(C, 1, K, 5)
    queue.put(P, 1, K, 1, 1, "a")
    queue.put(P, 2, K, 1, 1, "b")
    assert acts(queue.put(P, 3, K, 1, 1, "c")) == [(QueueAction.OUT_OF_BYTES, 1)]
    assert [item.body for item in queue.peek(K)] == ["a", "b"]


def test_hundreds_of_batches_that_fill_all_bytes_in_turn_all_fail() -> None:
    queue = Queue(max_bytes=1)
    for consumer in range(C, C + 300):
        queue.get(consumer, 1, K, 5)
    queue.put(P, 1, K, 1, 1, "a")
    assert acts(queue.put(P, 2, K, 1, 1, "b")) == [(QueueAction.OUT_OF_BYTES, 1)] * 300
    assert [item.body for item in queue.peek(K)] == ["a"]


def test_batches_that_gather_all_bytes_while_a_put_waits_are_no_standstill() -> None:
    queue = Queue(max_bytes=4)
    queue.put(P, 1, K, 1, 1, "a")
    queue.put(P, 2, L, 1, 3, "b")
    queue.get(C, 1, K, 5)
    assert queue.put(P, 3, K, 1, 2, "c") == []
    assert acts(queue.get(C, 2, L, 5)) == [(QueueAction.OUT_OF_BYTES, 1)]


# -- counted ----------------------------------------------------------------------------------------------------------


def test_so_many_items_are_waited_for_whatever_they_weigh() -> None:
    queue = weighted(5, 0)
    assert queue.get(C, 1, K, 3, counted=True) == []
    assert given(queue.put(P, 3, K, 7, 1, 7)) == [(C, [5, 0, 7])]
    assert acts(queue.get(C, 2, K, 1, nowait=True, counted=True)) == [(QueueAction.EMPTY, 2)]


def test_fewer_than_so_many_are_had_at_the_end_and_then_it_is_the_end() -> None:
    queue = weighted(5, 0)
    queue.get(C, 1, K, 3, counted=True)
    assert given(queue.close()) == [(C, [5, 0])]
    queue.taken(C, all_of(1))
    assert acts(queue.get(C, 2, K, 3, counted=True)) == [(QueueAction.ENDED, 2)]
    assert acts(queue.get(C, 3, K, 3, True, counted=True, partly=True)) == [(QueueAction.ENDED, 3)]
    assert queue.finished


def test_what_is_there_is_had_in_order_and_no_more_than_was_asked_for() -> None:
    queue = filled("a", "b", "c", "d")
    queue.get(D, 1, K)
    queue.cancel(D, 1)
    assert given(queue.get(C, 1, K, 3, True, counted=True, partly=True)) == [(C, ["a", "b", "c"])]
    assert given(queue.get(C, 2, K, 3, True, counted=True, partly=True)) == [(C, ["d"])]
    assert acts(queue.get(C, 3, K, 3, True, counted=True, partly=True)) == [(QueueAction.EMPTY, 3)]
    queue.taken(C, all_of(1, 2))
    assert queue.used == []


def test_those_that_wait_for_room_come_in_behind_what_was_there() -> None:
    queue = Queue(maxsize=2, max_bytes=2)
    for number in (1, 2, 3, 4):
        queue.put(P, number, K, nbytes=1, body=number)
    steps = queue.get(C, 1, K, 9, True, counted=True, partly=True)
    assert (given(steps), acts(steps)) == ([(C, [1, 2])], [(QueueAction.DELIVER, 1)])  # its bytes are not free yet
    assert acts(queue.taken(C, all_of(1))) == [(QueueAction.ACCEPTED, 3), (QueueAction.ACCEPTED, 4)]
    assert given(queue.get(C, 2, K, 9, True, counted=True, partly=True)) == [(C, [3, 4])]


def test_what_was_there_and_is_given_back_stands_before_what_came_later() -> None:
    queue = filled("a", "b")
    queue.get(C, 1, K, 9, True, counted=True, partly=True)
    queue.put(P, 3, K, nbytes=1, body="c")
    queue.get(D, 1, K, 3, counted=True)
    steps = queue.drop(C)
    assert given(steps) == [(D, ["a", "b", "c"])]
    assert [item.redelivered for item in steps[0][1].items] == [True, True, False]


def test_so_many_that_fill_all_bytes_are_an_error_that_names_their_number() -> None:
    queue = Queue(max_bytes=2)
    queue.get(C, 1, K, 5, counted=True)
    queue.put(P, 1, K, 0, 1, "a")
    queue.put(P, 2, K, 0, 1, "b")
    *_, (act, get) = queue.put(P, 3, K, 0, 1, "c")
    kind, text = refusal(act, get, "obs", 2)
    assert kind == "ValueError"
    assert text.startswith("get_many of 5 items on channel 'obs' had gathered 2 when its items filled max_bytes=2: ")


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_bytes_count_until_they_are_taken() -> None:
    queue = Queue(max_bytes=10)
    queue.put(P, 1, K, 0, 10, "a")
    queue.get(C, 1, K)
    assert queue.put(P, 2, K, 0, 10, "b") == []
    assert acts(queue.taken(C, all_of(1))) == [(QueueAction.ACCEPTED, 2)]


def test_an_item_larger_than_all_may_be_together_is_refused() -> None:
    assert acts(Queue(max_bytes=10).put(P, 1, K, 0, 11, "a")) == [(QueueAction.TOO_LARGE, 1)]


def test_a_large_put_is_overtaken_by_other_keys_but_not_for_ever() -> None:
    queue = Queue(max_bytes=10)
    queue.put(P, 1, K, 0, 6, "a")
    queue.put(P, 2, K, 0, 10, "large")
    number = 2
    get = 0
    for _ in range(100):
        number += 1
        if not queue.put(P, number, L, 0, 1, "small"):
            break
        get += 1
        queue.get(C, get, L)
        queue.taken(C, all_of(get))
    assert number == 2 + 10 + 1  # as many bytes as the queue may have, and no more
    queue.get(C, get + 1, K)
    assert acts(queue.taken(C, all_of(get + 1))) == [(QueueAction.ACCEPTED, 2)]


# -- the end ----------------------------------------------------------------------------------------------------------


def test_a_closed_queue_gives_what_it_has_and_then_ends() -> None:
    queue = filled("a")
    queue.close()
    assert acts(queue.put(P, 2, K, body="b")) == [(QueueAction.CLOSED, 2)]
    assert given(queue.get(C, 1, K)) == [(C, ["a"])]
    assert acts(queue.get(C, 2, K)) == [(QueueAction.ENDED, 2)]
    assert not queue.finished
    queue.taken(C, all_of(1))
    assert queue.finished


def test_puts_that_wait_for_room_come_to_nothing_when_the_queue_is_closed() -> None:
    queue = filled("a", maxsize=1)
    queue.put(P, 2, K, nbytes=1, body="b")
    queue.put(D, 1, K, nbytes=1)
    assert acts(queue.close()) == [(QueueAction.CLOSED, 2), (QueueAction.CLOSED, 1)]
    assert acts(queue.get(C, 1, K)) == [(QueueAction.DELIVER, 1)]
    queue.taken(C, all_of(1))
    assert queue.finished


def test_a_closed_queue_that_is_discarded_ends_every_get_at_once_and_has_nothing() -> None:
    for closed_before in False, True:
        queue = filled("a", "b", "c", max_bytes=4)
        queue.put(P, 4, K, nbytes=2, body="waits")
        queue.get(C, 1, K)  # is leased
        queue.get(C, 2, L, 5)  # waits
        if closed_before:
            assert acts(queue.close()) == [(QueueAction.CLOSED, 4), (QueueAction.ENDED, 2)]
            assert queue.close(discard=True) == []
        else:
            assert acts(queue.close(discard=True)) == [(QueueAction.CLOSED, 4), (QueueAction.ENDED, 2)]
        assert (queue.size(K), queue.peek(K), queue.budget.used) == (0, [], 0)
        assert queue.finished
        assert acts(queue.get(D, 1, K)) == [(QueueAction.ENDED, 1)]
        assert acts(queue.put(D, 2, K, body="d")) == [(QueueAction.CLOSED, 2)]
        assert queue.cancel(C, 1) == queue.drop(C) == []  # what was leased does not come back
        assert queue.size(K) == 0


def test_what_a_batch_had_gathered_is_discarded_with_the_rest() -> None:
    queue = weighted(1, 1)
    queue.get(C, 1, K, 5)
    queue.get(D, 1, K)
    assert acts(queue.close(discard=True)) == [(QueueAction.ENDED, 1), (QueueAction.ENDED, 1)]
    assert queue.finished


def test_the_end_waits_for_what_another_consumer_may_give_back() -> None:
    queue = filled("a")
    queue.get(C, 1, K)
    queue.get(D, 1, K)
    assert queue.close() == []
    assert given(queue.drop(C)) == [(D, ["a"])]
    queue = filled("a")
    queue.get(C, 1, K)
    queue.get(D, 1, K)
    queue.close()
    assert acts(queue.taken(C, all_of(1))) == [(QueueAction.ENDED, 1)]


def test_the_end_waits_for_what_an_earlier_batch_may_give_back() -> None:
    queue = weighted(1, 2)
    queue.get(D, 1, K)
    queue.get(C, 1, K, 5)  # gathers the second item; D may return the first
    queue.get(D, 2, K)
    assert queue.close() == []
    assert given(queue.cancel(C, 1)) == [(D, [2])]


def test_at_the_end_a_batch_gets_what_there_is() -> None:
    queue = weighted(1)
    queue.get(C, 1, K, 5)
    assert given(queue.close()) == [(C, [1])]


def test_a_thousand_keys_and_gets_cost_nothing_to_each_other() -> None:
    """Counts what is looked at, not seconds: one key's put touches one key's get."""
    queue = Queue()
    for number in range(1, 1001):
        queue.get(C, number, b"%d" % number)
    for number in reversed(range(1, 1001)):
        steps = queue.put(P, 1001 - number, b"%d" % number, body=number)
        assert acts(steps) == [(QueueAction.ACCEPTED, 1001 - number), (QueueAction.DELIVER, number)]


# -- puts that are done when they are sent ----------------------------------------------------------------------------


def test_sent_items_come_in_behind_others_and_outlive_their_producer() -> None:
    queue = Queue(max_bytes=2)
    for number in (1, 2, 3, 4):
        queue.put(P, number, K, nbytes=1, body=number, sent=True)  # the last two wait for room
    queue.put(P, 6, K, nbytes=1, body=6, sent=True)  # early: the one before is still on its way
    assert queue.drop(P) == []
    for number in (1, 2, 3, 4, 6):
        assert given(queue.get(C, queue.clients[C].expected if C in queue.clients else 1, K)) == [(C, [number])]
        queue.taken(C, all_of(queue.clients[C].expected - 1))


def test_sent_items_that_wait_for_room_come_in_with_the_close() -> None:
    queue = filled("a", max_bytes=3)
    queue.put(P, 2, L, nbytes=1, body="b", sent=True)
    queue.get(C, 1, L, 2)  # has one, and wants one more
    queue.put(P, 3, K, nbytes=1, body="c", sent=True)  # the channel is full, and nobody reads this key
    assert acts(queue.put(P, 4, L, nbytes=1, body="d", sent=True)) == []
    assert given(queue.close()) == [(C, ["b", "d"])]
    assert queue.counts().present == 4


def test_a_sent_item_that_comes_after_the_close_is_counted_as_dropped() -> None:
    queue = filled("a")
    queue.close()
    freed, closed = queue.put(P, 2, K, nbytes=ITEM_OVERHEAD_BYTES + 1, body="b", sent=True)
    assert freed == (QueueAction.FREED, (P, ITEM_OVERHEAD_BYTES + 1))
    assert acts([closed]) == [(QueueAction.CLOSED, 2)]
    assert (queue.counts().put, queue.counts().dropped) == (2, {TOO_LATE: 1})


def test_the_producer_hears_of_half_a_window_of_sent_bytes_at_once() -> None:
    queue = Queue()
    each = put_window.WINDOW_BYTES // 8
    told = [queue.put(P, number, K, nbytes=each, body="", sent=True) for number in range(1, 9)]
    assert [steps for steps in told if steps] == [[(QueueAction.FREED, (P, 4 * each))]] * 2


def test_a_put_is_taken_back_unless_it_was_answered() -> None:
    queue = filled("a", maxsize=1)
    queue.put(P, 2, K, body="b")
    for number in (1, 2, 2, 3):  # the last one before it comes
        assert queue.cancel(P, number) == []
    assert queue.put(P, 3, K, body="c") == []
    assert (queue.size(K), queue.waiting(K)) == (1, (0, 0))


# -- loops ------------------------------------------------------------------------------------------------------------

READ = {"counted": True, "partly": True, "stepwise": True}


def test_a_loop_has_what_is_there_item_by_item_and_the_rest_goes_back() -> None:
    queue = filled("a", "b", "c", "d")
    assert given(queue.get(C, 1, K, 3, shared=True, **READ)) == [(C, ["a", "b", "c"])]
    for count in (1, 2, 2, 1):  # a word that comes again says nothing new
        queue.taken(C, [(1, count)])
    assert (queue.counts().got, queue.counts().present) == (2, 2)
    queue.cancel(C, 1)
    assert [item.body for item in queue.peek(K)] == ["c", "d"]


def test_a_loop_that_waits_has_the_first_item_that_comes() -> None:
    queue = Queue()
    queue.get(C, 1, K, 3, **READ)
    assert given(queue.put(P, 1, K, body="a")) == [(C, ["a"])]


def test_a_loop_beside_other_consumers_has_one_item_at_a_time_unless_it_says_otherwise() -> None:
    queue = filled("a", "b", "c", "d")
    queue.get(C, 1, K, 2, shared=True, **READ)
    assert (QueueAction.SHARED, C) in queue.get(D, 1, L, nowait=True)
    assert given(queue.get(C, 2, K, 9, shared=True, **READ)) == [(C, ["c"])]
    queue.drop(D)
    queue.cancel(C, 2)
    assert given(queue.get(C, 3, K, 9, shared=True, **READ)) == [(C, ["c", "d"])]
    queue.cancel(C, 3)
    queue.get(D, 1, L, nowait=True)
    assert given(queue.get(C, 4, K, 9, **READ)) == [(C, ["c", "d"])]


# -- leases that are confirmed ----------------------------------------------------------------------------------------


def leased(queue: Queue, count: int) -> None:
    assert len(given(queue.get(C, 1, K, count, counted=True, lease_s=0.0))[0][1]) == count


def confirmed(queue: Queue, count: int, number: int = 1) -> bool:
    return queue.confirm(C, number, count, [])


def test_a_lease_is_over_when_all_its_items_are_confirmed() -> None:
    queue = filled("a", "b", "c")
    leased(queue, 2)
    queue.taken(C, all_of(1))  # no word of a get without a lease ends it
    assert confirmed(queue, 1)
    assert confirmed(queue, 1)
    assert not confirmed(queue, 1)
    assert (queue.counts().got, queue.counts().present, queue.budget.used) == (2, 1, 1)


@pytest.mark.parametrize("end", ["cancel", "drop", "lost"])
def test_what_is_not_confirmed_goes_back_to_its_place_and_cannot_be_confirmed_any_more(end: str) -> None:
    queue = filled("a", "b", "c", "d")
    leased(queue, 3)
    confirmed(queue, 1)
    queue.cancel(C, 1) if end == "cancel" else queue.drop(C, is_lost=end == "lost")
    assert [(item.body, item.redelivered) for item in queue.peek(K)] == [("b", True), ("c", True), ("d", False)]
    assert not confirmed(queue, 2)
    assert given(queue.get(D, 1, K)) == [(D, ["b"])]


def test_more_than_a_lease_has_cannot_be_confirmed() -> None:
    queue = filled("a", "b")
    leased(queue, 2)
    assert not confirmed(queue, 3)
    assert confirmed(queue, 2)
    queue.get(C, 2, K)
    queue.put(P, 3, K, body="c")
    assert not confirmed(queue, 1, 2), "a get is no lease"


def test_the_end_waits_for_a_lease_of_the_same_process() -> None:
    queue = filled("a")
    leased(queue, 1)
    queue.close()
    assert queue.get(C, 2, K) == []
    assert given(queue.cancel(C, 1)) == [(C, ["a"])]


def test_what_a_process_of_a_lost_node_may_have_had_is_never_delivered_again() -> None:
    queue = filled("a", "b", "c")
    queue.get(C, 1, K)
    queue.get(C, 2, K, 1, **READ)
    queue.drop(C, is_lost=True)
    assert [item.body for item in queue.peek(K)] == ["c"]
    counts = queue.counts()
    assert (counts.put, counts.got, counts.present, counts.dropped) == (3, 0, 1, {NODE_LOST: 2})


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_consumer_that_dies_with_items_and_a_waiting_get_leaves_a_closed_queue_to_the_others(is_lost: bool) -> None:
    queue = filled("a", "b")
    queue.get(C, 1, K, 2, stepwise=True)
    queue.get(C, 2, K, 2, stepwise=True)  # asked ahead
    queue.get(D, 1, K)
    queue.close()
    steps = queue.drop(C, is_lost=is_lost)
    if is_lost:
        assert acts(steps) == [(QueueAction.ENDED, 1)]
    else:
        assert given(steps) == [(D, ["a"])]
        queue.cancel(D, 1)
    counts = queue.counts()
    assert (counts.put, counts.got, counts.present, counts.dropped.get(NODE_LOST, 0)) == (
        2,
        0,
        0 if is_lost else 2,
        2 * is_lost,
    )
    assert queue.finished == is_lost

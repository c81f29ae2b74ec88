"""A channel's queue, without the channel: one claim at a time, and then everything at random."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlinf_async.core.lane import Get, Item
from rlinf_async.core.queue import Queue
from rlinf_async.core.steps import Act, Step

P, C, D = 1, 2, 3
"""A producer and two consumers."""
K, L = b"k", b"l"


def acts(steps: list[Step]) -> list[tuple[Act, int]]:
    return [(Act(act), what.number) for act, what in steps]


def given(steps: list[Step]) -> list[tuple[int, list[Any]]]:
    """(consumer, bodies) of every delivery."""
    return [(what.consumer, [item.body for item in what.items]) for act, what in steps if act == Act.DELIVER]


def filled(*bodies: Any, **options: Any) -> Queue:
    queue = Queue(**options)
    for number, body in enumerate(bodies, 1):
        assert acts(queue.put(P, number, K, nbytes=1, body=body)) == [(Act.ACCEPTED, number)]
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
    assert acts(queue.put(P, 3, L, body="c")) == [(Act.ACCEPTED, 3)]
    assert given(queue.get(C, 1, L)) == [(C, ["c"])]


def test_a_put_waits_for_room_and_takes_the_place_that_becomes_free() -> None:
    queue = filled("a", maxsize=1)
    assert queue.full(K)
    assert queue.put(P, 2, K, body="b") == []
    assert acts(queue.get(C, 1, K)) == [(Act.DELIVER, 1), (Act.ACCEPTED, 2)]


def test_put_nowait_on_a_full_key_is_refused_and_leaves_nothing() -> None:
    queue = filled("a", maxsize=1)
    assert acts(queue.put(P, 2, K, body="b", nowait=True)) == [(Act.FULL, 2)]
    assert given(queue.get(C, 1, K)) == [(C, ["a"])]
    assert queue.size(K) == 0


def test_get_nowait_on_an_empty_key_is_refused_and_leaves_nothing() -> None:
    queue = Queue()
    assert acts(queue.get(C, 1, K, nowait=True)) == [(Act.EMPTY, 1)]
    assert queue.used == []


def test_the_state_of_a_key_is_gone_when_it_is_empty_and_unused() -> None:
    queue = filled("a")
    queue.get(C, 1, K)
    assert queue.used == [K]  # it may come back
    queue.taken(C, [1])
    assert queue.used == []
    assert queue.bytes == 0


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
    queue.taken(C, [1])
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
    assert acts(queue.get(C, 1, K)) == [(Act.DELIVER, 1), (Act.ACCEPTED, 3)]


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
    assert not queue.parties


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_a_put_that_comes_twice_counts_once() -> None:
    queue = filled("a")
    assert queue.put(P, 1, K, body="a") == []
    assert queue.size(K) == 1


def test_what_comes_early_waits_for_its_turn() -> None:
    queue = Queue()
    assert queue.put(P, 2, K, body="b") == []
    assert acts(queue.put(P, 1, K, body="a")) == [(Act.ACCEPTED, 1), (Act.ACCEPTED, 2)]
    assert [item.body for item in queue.peek(K)] == ["a", "b"]


def test_what_was_cancelled_before_it_came_never_happens() -> None:
    queue = Queue()
    queue.get(C, 1, K)
    queue.cancel(C, 2)
    assert queue.get(C, 2, K) == []
    queue.cancel(C, 1)
    assert acts(queue.put(P, 1, K, body="a")) == [(Act.ACCEPTED, 1)]


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
    assert acts(queue.get(C, 1, K, 3)) == [(Act.TOO_HEAVY, 1)]
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
    assert acts(queue.put(P, 3, K, 1, 1, "c")) == [(Act.PARKED, 3), (Act.CRAMPED, 1)]
    assert [item.body for item in queue.peek(K)] == ["a", "b"]


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_bytes_count_until_they_are_taken() -> None:
    queue = Queue(max_bytes=10, slack=100)
    queue.put(P, 1, K, 0, 10, "a")
    queue.get(C, 1, K)
    assert queue.put(P, 2, K, 0, 10, "b") == []
    assert acts(queue.taken(C, [1])) == [(Act.ACCEPTED, 2)]


def test_an_item_larger_than_all_may_be_together_is_refused() -> None:
    assert acts(Queue(max_bytes=10).put(P, 1, K, 0, 11, "a")) == [(Act.TOO_LARGE, 1)]


def test_beyond_the_slack_a_body_waits_with_its_producer_until_it_is_pulled() -> None:
    queue = Queue(max_bytes=10, slack=3)
    queue.put(P, 1, K, 0, 10, "a")
    assert queue.put(P, 2, K, 0, 3, "b") == []
    assert acts(queue.put(P, 3, K, 0, 3, "c")) == [(Act.PARKED, 3)]
    assert queue.put(P, 4, K, 0, 3) == []  # only announced
    queue.get(C, 1, K)
    assert acts(queue.taken(C, [1])) == [(Act.ACCEPTED, 2), (Act.PULL, 3)]
    assert acts(queue.supply(P, 3, "c")) == [(Act.ACCEPTED, 3), (Act.PULL, 4)]
    assert acts(queue.supply(P, 4, "d")) == [(Act.ACCEPTED, 4)]
    assert [item.body for item in queue.peek(K)] == ["b", "c", "d"]


def test_room_that_was_promised_is_free_again_when_the_producer_dies() -> None:
    queue = Queue(max_bytes=10, slack=0)
    queue.put(P, 1, K, 0, 10)
    assert queue.bytes == 10
    queue.put(D, 1, L, 0, 10)
    assert acts(queue.drop(P)) == [(Act.PULL, 1)]
    assert acts(queue.supply(D, 1, "d")) == [(Act.ACCEPTED, 1)]


def test_a_large_put_is_overtaken_by_other_keys_but_not_for_ever() -> None:
    queue = Queue(max_bytes=10, slack=100)
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
        queue.taken(C, [get])
    assert number == 2 + 10 + 1  # as many bytes as the queue may have, and no more
    queue.get(C, get + 1, K)
    assert acts(queue.taken(C, [get + 1])) == [(Act.ACCEPTED, 2)]


# -- the end ----------------------------------------------------------------------------------------------------------


def test_a_closed_queue_gives_what_it_has_and_then_ends() -> None:
    queue = filled("a")
    queue.close()
    assert acts(queue.put(P, 2, K, body="b")) == [(Act.CLOSED, 2)]
    assert given(queue.get(C, 1, K)) == [(C, ["a"])]
    assert acts(queue.get(C, 2, K)) == [(Act.ENDED, 2)]
    assert not queue.finished
    queue.taken(C, [1])
    assert queue.finished


def test_puts_that_waited_when_the_queue_was_closed_still_go_in() -> None:
    queue = filled("a", maxsize=1)
    queue.put(P, 2, K, body="b")
    assert queue.close() == []
    assert acts(queue.get(C, 1, K)) == [(Act.DELIVER, 1), (Act.ACCEPTED, 2)]


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
    assert acts(queue.taken(C, [1])) == [(Act.ENDED, 1)]


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
        assert acts(steps) == [(Act.ACCEPTED, 1001 - number), (Act.DELIVER, number)]


# -- everything at random ---------------------------------------------------------------------------------------------


HOW = ["wait", "wait", "announced", "nowait"]
WIRED = st.booleans()


class Process:
    """What a producer or consumer knows, and what it has on the wire."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.said = 0
        self.wire: list[tuple[str, int, tuple[Any, ...]]] = []
        self.puts: dict[int, tuple[bytes, int]] = {}
        """Puts without an answer: key and size."""
        self.gets: set[int] = set()
        """Gets without an answer."""
        self.has: dict[int, list[Item]] = {}
        """What was delivered and is not taken yet, by get."""
        self.took: dict[int, list[tuple[int, int]]] = {}
        self.gave_back: set[tuple[int, int]] = set()


class Histories(RuleBasedStateMachine):
    """Processes that put, get, cancel, die and are replaced, on wires that drop, double and reorder what is said.

    What is dropped is said again, as after a reconnection; answers are not lost while a process lives.
    """

    @initialize(maxsize=st.sampled_from([0, 1, 3]), max_bytes=st.sampled_from([0, 5, 8]), slack=st.sampled_from([0, 4]))
    def start(self, maxsize: int, max_bytes: int, slack: int) -> None:
        self.gone: set[int] = set()
        self.queue = Queue(maxsize, max_bytes, self.gone, slack)
        self.processes = {number: Process(number) for number in (1, 2, 3)}
        self.newest = 3
        self.attempted: set[tuple[int, int]] = set()
        self.accepted: set[tuple[int, int]] = set()
        self.taken: list[tuple[int, int]] = []
        self.handed_out: set[tuple[int, int]] = set()
        self.first_times: dict[tuple[int, bytes], int] = {}
        """The number of the last item of a producer under a key that was delivered for the first time."""
        self.key_of: dict[tuple[int, int], bytes] = {}
        self.places: dict[tuple[int, int], int] = {}
        """The order in which items were accepted."""

    who = st.integers(0, 2)
    keys = st.sampled_from([K, L])

    def process(self, who: int) -> Process:
        return list(self.processes.values())[who]

    # what processes do

    @rule(who=who, key=keys, nbytes=st.integers(1, 4), weight=st.integers(0, 2), how=st.sampled_from(HOW), wired=WIRED)
    def put(self, who: int, key: bytes, nbytes: int, weight: int, how: str, wired: bool) -> None:
        process = self.process(who)
        process.said += 1
        process.puts[process.said] = (key, nbytes)
        self.attempted.add((process.number, process.said))
        body = None if how == "announced" else (process.number, process.said)
        self.send(process, wired, "put", process.said, (key, weight, nbytes, body, how == "nowait"))

    @rule(who=who, key=keys, batch=st.sampled_from([None, None, None, "nowait", 1, 3]), wired=WIRED)
    def get(self, who: int, key: bytes, batch: Any, wired: bool) -> None:
        process = self.process(who)
        process.said += 1
        process.gets.add(process.said)
        nowait = batch == "nowait"
        self.send(process, wired, "get", process.said, (key, None if nowait else batch, nowait))

    @rule(who=who, which=st.integers(0, 20), wired=WIRED)
    def take(self, who: int, which: int, wired: bool) -> None:
        process = self.process(who)
        if process.has:
            number = list(process.has)[which % len(process.has)]
            self.have(process, number, wired)

    def have(self, process: Process, number: int, wired: bool) -> None:
        process.took[number] = [(item.producer, item.number) for item in process.has.pop(number)]
        self.taken += process.took[number]
        self.send(process, wired, "taken", number)

    @rule(who=who, which=st.integers(0, 20), wired=WIRED)
    def cancel(self, who: int, which: int, wired: bool) -> None:
        process = self.process(who)
        open_ones = [*process.puts, *process.gets, *process.has]
        if open_ones:
            number = open_ones[which % len(open_ones)]
            process.gets.discard(number)
            process.gave_back |= {(item.producer, item.number) for item in process.has.pop(number, [])}
            if number in process.puts:
                del process.puts[number]
            self.send(process, wired, "cancel", number)

    @rule(who=who)
    def kill(self, who: int) -> None:
        process = self.process(who)
        del self.processes[process.number]
        self.gone.add(process.number)
        for what, number, _ in process.wire:
            if what == "taken":  # nobody but the dead process knows that it had them
                for identity in process.took[number]:
                    self.taken.remove(identity)
        self.follow(self.queue.drop(process.number))
        for what, number, facts in process.wire:  # what was still on its way
            self.say(process.number, what, number, facts)
        self.newest += 1
        self.processes[self.newest] = Process(self.newest)

    @precondition(lambda self: not self.queue.closed)
    @rule(sure=st.integers(0, 12))
    def close(self, sure: int) -> None:
        if sure == 0:
            self.follow(self.queue.close())

    def send(self, process: Process, wired: bool, what: str, number: int, facts: tuple[Any, ...] = ()) -> None:
        """What is not ``wired`` arrives at once, and overtakes whatever is on the wire."""
        if wired:
            process.wire.append((what, number, facts))
        else:
            self.say(process.number, what, number, facts)

    # what the wire does

    @rule(who=who, fate=st.sampled_from(["all", "twice", "late", "overtaken"]))
    def transmit(self, who: int, fate: str) -> None:
        """What is on the wire arrives: all of it, or one thing twice, or one that was lost and is said again later, or
        the latest before all others."""
        process = self.process(who)
        if fate == "all":
            self.everything_arrives()
        elif process.wire:
            which = process.wire.pop(-1 if fate == "overtaken" else 0)
            if fate == "late":
                process.wire.append(which)
            else:
                self.say(process.number, *which)
            if fate == "twice":
                self.say(process.number, *which)

    def everything_arrives(self) -> None:
        for process in self.processes.values():
            while process.wire:
                self.say(process.number, *process.wire.pop(0))

    def say(self, who: int, what: str, number: int, facts: tuple[Any, ...]) -> None:
        if what == "put":
            self.follow(self.queue.put(who, number, *facts))
        elif what == "get":
            self.follow(self.queue.get(who, number, *facts))
        elif what == "taken":
            self.follow(self.queue.taken(who, [number]))
        elif what == "supply":
            self.follow(self.queue.supply(who, number, *facts))
        else:
            self.follow(self.queue.cancel(who, number))

    # what follows

    def follow(self, steps: list[Step]) -> None:
        for act, what in steps:
            who = what.producer if isinstance(what, Item) else what.consumer
            process = self.processes.get(who)
            if isinstance(what, Item):
                self.follow_item(act, what, process)
            elif process is not None:
                self.follow_get(act, what, process)

    def follow_item(self, act: int, item: Item, process: Process | None) -> None:
        identity = (item.producer, item.number)
        assert identity in self.attempted, "Q-I: an item that nobody has put"
        if act == Act.ACCEPTED:
            assert identity not in self.accepted, "an item was accepted twice"
            self.accepted.add(identity)
            self.key_of[identity] = item.key
            self.places[identity] = len(self.places)
        if process is None:
            return
        if act == Act.PULL and item.number in process.puts:
            process.wire.append(("supply", item.number, ((item.producer, item.number),)))
        elif act not in (Act.PULL, Act.PARKED):
            process.puts.pop(item.number, None)

    def follow_get(self, act: int, get: Get, process: Process) -> None:
        if act == Act.DELIVER:
            assert get.items, "nothing was delivered"
            last: dict[bytes, int] = {}
            for item in get.items:
                identity = (item.producer, item.number)
                assert identity in self.accepted, "Q-I: delivered and never accepted"
                assert identity not in self.taken, "Q-III: delivered after somebody had taken it"
                assert item.redelivered == (identity in self.handed_out), (
                    "Q-III: a second delivery is flagged, no first"
                )
                if not item.redelivered:
                    of = (item.producer, item.key)
                    assert self.first_times.get(of, 0) < item.number, "Q-IV: out of order"
                    self.first_times[of] = item.number
                assert last.get(item.key, -1) < item.place, "Q-IV: a batch out of order"
                last[item.key] = item.place
                self.handed_out.add(identity)
            if get.number in process.gets:
                process.gets.discard(get.number)
                process.has[get.number] = list(get.items)
            else:  # it has been cancelled
                process.gave_back |= {(item.producer, item.number) for item in get.items}
        else:
            assert get.number not in process.has
            if act == Act.ENDED:
                own = {(item.producer, item.number) for items in process.has.values() for item in items}
                left = self.accepted - set(self.taken) - own - process.gave_back
                assert not [identity for identity in left if self.key_of[identity] == get.key], "ended too early"
            process.gets.discard(get.number)

    # what is always so

    def contents(self) -> dict[tuple[int, int], Item]:
        found: dict[tuple[int, int], Item] = {}
        items = [item for key in self.queue.used for item in self.queue.peek(key)]
        for party in self.queue.parties.values():
            items += [item for get in party.gets.values() for item in get.items]
        for item in items:
            assert (item.producer, item.number) not in found, "one item in two places"
            found[item.producer, item.number] = item
        return found

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "queue"):
            contents = self.contents()
            missing = self.accepted - set(contents) - set(self.taken)
            assert not missing, f"Q-II: {missing} lost"
            assert len(self.taken) == len(set(self.taken)), "Q-III: taken twice"

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "queue"):
            return
        queue = self.queue
        for key in queue.used:
            lane = queue._lanes[key]
            assert not queue.maxsize or len(lane.items) <= queue.maxsize, "Q-V: too many items"
            assert not lane.is_idle(), "an idle key was not forgotten"
            places = [self.places[item.producer, item.number] for item in queue.peek(key)]
            assert places == sorted(places), "Q-IV: something came back to another place"
        waiting = [item for party in queue.parties.values() for item in party.puts.values()]
        promised = sum(item.nbytes for item in waiting if item.pulled)
        assert queue.bytes == promised + sum(item.nbytes for item in self.contents().values())
        assert not queue.max_bytes or queue.bytes <= queue.max_bytes, "Q-V: too many bytes"
        assert queue.waiting_bytes == sum(item.nbytes for item in waiting if item.body is not None and not item.pulled)
        assert queue.waiting_bytes <= queue._slack, "bodies that wait here are more than the slack"

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if not hasattr(self, "queue"):
            return
        for key in self.queue.used:
            lane = self.queue._lanes[key]
            assert not (lane.gets and lane.size), "a get waits beside an item"
            if lane.puts and next(iter(self.queue._cramped), lane) is lane:
                item = next(iter(lane.puts))
                full = self.queue.maxsize and lane.size >= self.queue.maxsize
                cramped = self.queue.max_bytes and self.queue.bytes + item.nbytes > self.queue.max_bytes
                assert full or cramped or item.pulled, "a put waits beside room"

    def teardown(self) -> None:
        """Everything that was said arrives, everything is taken: then nothing is left, and nobody waits."""
        if not hasattr(self, "queue"):
            return
        self.everything_arrives()
        self.follow(self.queue.close())
        for _ in range(1000):
            self.everything_arrives()
            held = [process for process in self.processes.values() if process.has]
            for process in held:
                for number in list(process.has):
                    self.have(process, number, True)
            if held:
                continue
            if not self.queue.used:
                break
            process = self.process(0)
            for key in self.queue.used:
                process.said += 1
                process.gets.add(process.said)
                process.wire.append(("get", process.said, (key, None, False)))
        assert self.queue.finished
        for process in self.processes.values():
            assert not process.gets, "a get never ended"
            assert not process.puts, "a put never ended"
        assert set(self.taken) == self.accepted
        assert len(self.taken) == len(self.accepted)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=300, stateful_step_count=50, derandomize=True, deadline=None)

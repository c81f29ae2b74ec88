"""Queue state against a model: random histories."""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlinf_async._channels.state.actions import QueueAction, Step
from rlinf_async._channels.state.queue import Queue
from rlinf_async._channels.state.queue_client import Demand, Item

HOW = ["wait", "wait", "sent", "nowait"]
BATCHES: list[tuple[Any, ...]] = [
    (None, False), (None, False), (None, False), (None, True), (1, False), (3, False), (3, True),
    (2, False, True), (2, True, True), (2, True, True, True), (1 << 60, True, True, True),
    (3, False, True, True, False, True), (3, False, True, True, True, True),
    (1, False, True, False, False, False, 0.0), (2, False, True, False, False, False, 9.0),
]  # fmt: skip
"""The arguments of ``Queue.get`` from ``target`` on; the last four are of loops and of leases."""
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
        self.took_of: dict[int, int] = {}
        """How many items of a get it has taken, as it says."""
        self.stepwise: set[int] = set()
        """Gets of which one item is taken after the other."""
        self.leases: set[int] = set()
        self.gave_back: set[tuple[int, int]] = set()


class Histories(RuleBasedStateMachine):
    """Processes that put, get, cancel, die and are replaced, on wires that drop, double and reorder what is said.

    What is dropped is said again, as after a reconnection; answers are not lost while a process lives.
    """

    @initialize(maxsize=st.sampled_from([0, 1, 3]), max_bytes=st.sampled_from([0, 5, 8]))
    def start(self, maxsize: int, max_bytes: int) -> None:
        self.gone: set[int] = set()
        self.queue = Queue(maxsize, max_bytes, self.gone)
        self.processes = {number: Process(number) for number in (1, 2, 3)}
        self.newest = 3
        self.attempted: set[tuple[int, int]] = set()
        self.accepted: set[tuple[int, int]] = set()
        self.taken: list[tuple[int, int]] = []
        self.handed_out: set[tuple[int, int]] = set()
        self.first_times: dict[tuple[int, bytes], int] = {}
        """The number of the last item of a producer under a key that was delivered for the first time."""
        self.key_of: dict[tuple[int, int], bytes] = {}
        self.sent: set[tuple[int, int]] = set()
        self.late: set[tuple[int, int]] = set()
        """Sent items that came after the end, or not at all, with their node."""
        self.discarded: set[tuple[int, int]] = set()
        """Items that were thrown away, or had been handed to a process of a lost node."""
        self.is_discarded = False

    who = st.integers(0, 2)
    keys = st.sampled_from([b"k", b"l"])

    def process(self, who: int) -> Process:
        return list(self.processes.values())[who]

    # what processes do

    @rule(who=who, key=keys, nbytes=st.integers(1, 4), weight=st.integers(0, 2), how=st.sampled_from(HOW), wired=WIRED)
    def put(self, who: int, key: bytes, nbytes: int, weight: int, how: str, wired: bool) -> None:
        process = self.process(who)
        process.said += 1
        identity = (process.number, process.said)
        self.attempted.add(identity)
        self.key_of[identity] = key
        if how == "sent":
            self.sent.add(identity)
        else:
            process.puts[process.said] = (key, nbytes)
        self.send(process, wired, "put", process.said, (key, weight, nbytes, identity, how == "nowait", how == "sent"))

    @rule(who=who, key=keys, batch=st.sampled_from(BATCHES), wired=WIRED)
    def get(self, who: int, key: bytes, batch: tuple[Any, ...], wired: bool) -> None:
        process = self.process(who)
        process.said += 1
        process.gets.add(process.said)
        if len(batch) == 6:
            process.stepwise.add(process.said)
        elif len(batch) == 7:
            process.leases.add(process.said)
        self.send(process, wired, "get", process.said, (key, *batch))

    @rule(who=who, which=st.integers(0, 20), wired=WIRED)
    def take(self, who: int, which: int, wired: bool) -> None:
        process = self.process(who)
        if process.has:
            number = list(process.has)[which % len(process.has)]
            self.have(process, number, wired)

    def have(self, process: Process, number: int, wired: bool) -> None:
        count = 1 if number in process.stepwise | process.leases else len(process.has[number])
        now, left = process.has[number][:count], process.has.pop(number)[count:]
        if left:
            process.has[number] = left
        if number in process.leases:
            # The block ends when the queue has answered, so this word is never on its way when the holder dies.
            steps: list[Step] = []
            for early in [each for each in process.wire if each[1] <= number]:
                process.wire.remove(early)
                self.say(process.number, *early)
            assert self.queue.confirm(process.number, number, count, steps) or self.is_discarded
            self.taken += [(item.producer, item.number) for item in now]
            self.follow(steps)
            return
        took = [(item.producer, item.number) for item in now]
        process.took.setdefault(number, []).extend(took)
        self.taken += took
        took_of = process.took_of[number] = process.took_of.get(number, 0) + count
        self.send(process, wired, "taken", number, (took_of,))

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

    @rule(who=who, lost=st.booleans())
    def kill(self, who: int, lost: bool) -> None:
        """A process is killed, and what it has said arrives; or its node is lost, and with it what was on the wire."""
        process = self.process(who)
        if lost:
            self.late |= {(process.number, number) for what, number, _ in process.wire if what == "put"}
            for number, items in process.has.items():
                if number not in process.leases:
                    self.discarded |= {(item.producer, item.number) for item in items}
        else:
            wire, process.wire = process.wire, []
            for word in wire:
                self.say(process.number, *word)
        party = self.queue.clients.get(process.number)
        if lost and party is not None:
            held = [get for get in party.gets.values() if get.delivered and get.lease_s is None]
            self.discarded |= {(item.producer, item.number) for get in held for item in get.items} - set(self.taken)
        del self.processes[process.number]
        self.gone.add(process.number)
        self.follow(self.queue.drop(process.number, is_lost=lost))
        for what, number, facts in process.wire:  # what was still on its way
            self.say(process.number, what, number, facts)
        self.newest += 1
        self.processes[self.newest] = Process(self.newest)

    @precondition(lambda self: not self.queue.closed)
    @rule(sure=st.integers(0, 12))
    def close(self, sure: int) -> None:
        if sure == 0:
            self.follow(self.queue.close())

    @precondition(lambda self: not self.is_discarded)
    @rule(sure=st.integers(0, 25))
    def discard(self, sure: int) -> None:
        if sure == 0:
            self.is_discarded = True
            self.discarded |= (self.accepted | self.sent) - set(self.taken)
            self.follow(self.queue.close(discard=True))

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
            self.follow(self.queue.taken(who, [(number, *facts)]))
        else:
            self.follow(self.queue.cancel(who, number))

    # what follows

    def follow(self, steps: list[Step]) -> None:
        for act, what in steps:
            if act in (QueueAction.SHARED, QueueAction.FREED):
                continue
            who = what.producer if isinstance(what, Item) else what.consumer
            process = self.processes.get(who)
            if isinstance(what, Item):
                self.follow_item(act, what, process)
            elif process is not None:
                self.follow_get(act, what, process)

    def follow_item(self, act: int, item: Item, process: Process | None) -> None:
        identity = (item.producer, item.number)
        assert identity in self.attempted, "Q-I: an item that nobody has put"
        if act == QueueAction.ACCEPTED:
            assert identity not in self.accepted, "an item was accepted twice"
            assert not self.queue.closed, "an item was accepted after the end"
            self.accepted.add(identity)
        elif act == QueueAction.CLOSED and item.sent:
            self.late.add(identity)
        if process is None:
            return
        process.puts.pop(item.number, None)

    def follow_get(self, act: int, get: Demand, process: Process) -> None:
        if act == QueueAction.DELIVER:
            assert get.items, "nothing was delivered"
            if get.counted:
                assert len(get.items) == get.target or get.partly or self.queue.closed, "too few, or too many"
                assert len(get.items) <= (get.target or 0), "too many"
            last: dict[bytes, int] = {}
            for item in get.items:
                identity = (item.producer, item.number)
                assert identity in self.accepted | self.sent, "Q-I: delivered and never accepted"
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
            assert act != QueueAction.EMPTY or not get.partly or not self.queue.size(get.key), "something was there"
            assert act != QueueAction.OUT_OF_BYTES or not get.partly, "what does not wait was in the way"
            assert get.number not in process.has
            if act == QueueAction.ENDED:
                own = {(item.producer, item.number) for items in process.has.values() for item in items}
                left = self.accepted - set(self.taken) - own - process.gave_back - self.discarded
                assert not [identity for identity in left if self.key_of[identity] == get.key], "ended too early"
            process.gets.discard(get.number)

    # what is always so

    def contents(self) -> dict[tuple[int, int], Item]:
        found: dict[tuple[int, int], Item] = {}
        items = [item for key in self.queue.used for item in self.queue.peek(key)]
        for client in self.queue.clients.values():
            items += [item for get in client.gets.values() for item in get.items]
        for item in items:
            assert (item.producer, item.number) not in found, "one item in two places"
            found[item.producer, item.number] = item
        return found

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "queue"):
            contents = self.contents()
            missing = self.accepted - set(contents) - set(self.taken) - self.discarded
            assert not missing, f"Q-II: {missing} lost"
            assert len(self.taken) == len(set(self.taken)), "Q-III: taken twice"

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "queue"):
            return
        queue, budget = self.queue, self.queue.budget
        for key in queue.used:
            key_queue = queue._keys[key]
            assert not queue.maxsize or queue.closed or len(key_queue.items) <= queue.maxsize, "Q-V: too many items"
            assert not (queue.closed and key_queue.puts), "a put waits for room that a closed queue may never have"
            assert not key_queue.is_idle(), "an idle key was not forgotten"
            places = [item.place for item in queue.peek(key)]
            assert places == sorted(places), "Q-IV: something came back to another place"
        assert budget.used == sum(item.nbytes for item in self.contents().values())
        assert not budget.max_bytes or queue.closed or budget.used <= budget.max_bytes, "Q-V: too many bytes"

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if not hasattr(self, "queue"):
            return
        for key in self.queue.used:
            key_queue = self.queue._keys[key]
            assert not (key_queue.gets and key_queue.size), "a get waits beside an item"
            if key_queue.puts and next(iter(self.queue.budget.blocked), key) == key:
                item = next(iter(key_queue.puts))
                full = self.queue.maxsize and key_queue.size >= self.queue.maxsize
                blocked = self.queue.budget.max_bytes and not self.queue.budget.fits(item.nbytes)
                assert full or blocked, "a put waits beside room"

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
        assert (self.accepted | self.sent) - set(self.taken) - self.discarded <= self.late
        assert len(self.taken) == len(set(self.taken))


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=200, stateful_step_count=50, derandomize=True, deadline=None)

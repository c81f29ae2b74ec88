"""Queue state against a model: random histories."""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlinf_async._channels.state.actions import Act, Step
from rlinf_async._channels.state.queue import Queue
from rlinf_async._channels.state.queue_client import Get, Item

HOW = ["wait", "wait", "announced", "nowait"]
BATCHES: list[tuple[Any, ...]] = [
    (None, False), (None, False), (None, False), (None, True), (1, False), (3, False), (3, True),
    (2, False, True), (2, True, True), (2, True, True, True), (1 << 60, True, True, True),
]  # fmt: skip
"""What a get wants, whether it must be there, whether it is counted, and whether fewer will do."""
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

    @initialize(
        maxsize=st.sampled_from([0, 1, 3]), max_bytes=st.sampled_from([0, 5, 8]), max_buffered=st.sampled_from([0, 4])
    )
    def start(self, maxsize: int, max_bytes: int, max_buffered: int) -> None:
        self.gone: set[int] = set()
        self.queue = Queue(maxsize, max_bytes, self.gone, max_buffered)
        self.processes = {number: Process(number) for number in (1, 2, 3)}
        self.newest = 3
        self.attempted: set[tuple[int, int]] = set()
        self.accepted: set[tuple[int, int]] = set()
        self.taken: list[tuple[int, int]] = []
        self.handed_out: set[tuple[int, int]] = set()
        self.first_times: dict[tuple[int, bytes], int] = {}
        """The number of the last item of a producer under a key that was delivered for the first time."""
        self.key_of: dict[tuple[int, int], bytes] = {}
        self.discarded: set[tuple[int, int]] = set()
        self.is_discarded = False
        self.places: dict[tuple[int, int], int] = {}
        """The order in which items were accepted."""

    who = st.integers(0, 2)
    keys = st.sampled_from([b"k", b"l"])

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

    @rule(who=who, key=keys, batch=st.sampled_from(BATCHES), wired=WIRED)
    def get(self, who: int, key: bytes, batch: tuple[Any, ...], wired: bool) -> None:
        process = self.process(who)
        process.said += 1
        process.gets.add(process.said)
        self.send(process, wired, "get", process.said, (key, *batch))

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
                    if self.is_discarded:  # it comes back to a queue that keeps nothing
                        self.discarded.add(identity)
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

    @precondition(lambda self: not self.is_discarded)
    @rule(sure=st.integers(0, 25))
    def discard(self, sure: int) -> None:
        if sure == 0:
            self.is_discarded = True
            self.discarded = self.accepted - set(self.taken)
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
            assert not self.queue.closing, "an item was accepted after the end"
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
            if get.counted:
                assert len(get.items) == get.target or get.partly or self.queue.closed, "too few, or too many"
                assert len(get.items) <= (get.target or 0), "too many"
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
            assert act != Act.EMPTY or not get.partly or not self.queue.size(get.key), "something was there"
            assert act != Act.OUT_OF_BYTES or not get.partly, "what does not wait was in the way"
            assert get.number not in process.has
            if act == Act.ENDED:
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
            assert not queue.maxsize or len(key_queue.items) <= queue.maxsize, "Q-V: too many items"
            assert not key_queue.is_idle(), "an idle key was not forgotten"
            places = [self.places[item.producer, item.number] for item in queue.peek(key)]
            assert places == sorted(places), "Q-IV: something came back to another place"
        waiting = [item for client in queue.clients.values() for item in client.puts.values()]
        promised = sum(item.nbytes for item in waiting if item.pulled)
        assert budget.used == promised + sum(item.nbytes for item in self.contents().values())
        assert not budget.max_bytes or budget.used <= budget.max_bytes, "Q-V: too many bytes"
        assert budget.buffered == sum(item.nbytes for item in waiting if item.body is not None and not item.pulled)
        assert budget.buffered <= budget.max_buffered, "bodies that wait here are more than may wait here"

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
                assert full or blocked or item.pulled, "a put waits beside room"

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
        assert set(self.taken) | self.discarded == self.accepted
        assert len(self.taken) == len(set(self.taken))


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=300, stateful_step_count=50, derandomize=True, deadline=None)

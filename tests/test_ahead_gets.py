"""Gets ahead of their callers, between processes and a daemon whose wires are held in the hand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from launcher.channels import Channels
from launcher.endpoint import Endpoint
from launcher.router import Router
from rlinf_async.core import codec, frames, read_ahead
from rlinf_async.core.lane import Get as QueuedGet
from rlinf_async.core.steps import Act, Step
from rlinf_async.errors import ClosedError, EndOfChannel
from rlinf_async.remote_queue import RemoteQueue
from rlinf_async.wish import Get, Put, Question

NUMBER = 5
"""Of the one channel."""

K, L = b"k", b"l"
WINDOW = 4


class Loop:
    """Remembers what is to be called."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.timers: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        self.soon.append(lambda: callback(*args))

    call_soon_threadsafe = call_soon

    def call_later(self, seconds: float, callback: Callable[..., None], *args: Any) -> None:
        self.timers.append(lambda: callback(*args))

    def turn(self) -> None:
        for _ in range(len(self.soon)):
            self.soon.popleft()()

    def time_passes(self) -> None:
        timers, self.timers = self.timers, []
        for call in timers:
            call()


class Process:
    """One that uses the channel; what it says and is told stays on the wire until it is moved."""

    def __init__(self, daemon: Daemon) -> None:
        self.seat: Endpoint = daemon.router.new_endpoint("worker")
        self.seat.connection = self  # type: ignore[assignment]
        self.queued_bytes = 0
        self.down: deque[Any] = deque()
        self.up: deque[Any] = deque()
        self.loop = Loop()
        self.closed: Exception | None = None
        self.unsent: dict[Any, None] = {}
        self.queue = RemoteQueue(self, lambda: None, 0, NUMBER, "obs", 0)  # type: ignore[arg-type]
        self.queue._company.gathers = self._gathers  # type: ignore[method-assign]
        self.in_a_coroutine = True
        self.is_stopped = False
        self.said = 0
        self.gets: list[Get[Any]] = []
        self._daemon = daemon
        daemon.processes.append(self)

    @property
    def endpoint(self) -> int:
        return self.seat.id

    @property
    def ahead(self) -> Any:
        return self.queue._ahead._state

    # as a client

    def send(self, frame: Any, fds: Any = (), *, on_left: Callable[[], None] | None = None, **_: Any) -> None:
        if frame[2] == self.endpoint:
            self.up.append(list(frame))
            if on_left is not None:
                on_left()
        else:
            self.down.append(list(frame))

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.loop.call_later(seconds, callback)

    def hear_out(self) -> None:
        self.says()

    def _gathers(self) -> bool:
        if self.in_a_coroutine and not self.loop.soon:
            self.loop.call_soon(self.queue.flush)
        return self.in_a_coroutine

    # the wires

    def says(self, count: int = 1 << 30) -> None:
        while self.up and count:
            count -= 1
            self._daemon.router.from_endpoint(self.seat, self.up.popleft(), [])

    def hears(self, count: int = 1 << 30) -> None:
        while self.down and count:
            count -= 1
            frame = self.down.popleft()
            if frame[0] == frames.GIVE:
                self.queue.on_give(frame, [])
            elif frame[5] == "gone":
                self.queue.end(frame[6])
            else:
                self.queue.on_word(frame[5], frame[6])

    # its callers

    def put(self, value: Any, key: bytes = K) -> Put:
        encoded = codec.encode(value)
        wish = Put("obs", key, key, 0, encoded, encoded.nbytes, frames.WAIT, None)
        self.queue.start(wish)
        return wish

    def get(self, key: bytes = K, target: int | None = None) -> Get[Any]:
        wish: Get[Any] = Get("get() from", "obs", key, key, target, None)
        self.queue.start(wish)
        return wish

    def ask(self, word: str = "size", key: bytes = K) -> Question:
        wish = Question("qsize() of", "obs", key, key, word, lambda found: found)
        self.queue.start(wish)
        return wish


class Daemon:
    def __init__(self) -> None:
        self.gone: set[int] = set()
        self.processes: list[Process] = []
        self.loop = Loop()
        self.router = Router(self.loop, 0, lambda *_: None)  # type: ignore[arg-type]
        self.channels = Channels(self.loop, self.router, self.gone, budget=1 << 30)  # type: ignore[arg-type]
        hosting = self.channels.do_host_channel(0, 1, {"number": NUMBER, "name": "obs", "maxsize": 0, "max_bytes": 0})
        with pytest.raises(StopIteration):
            hosting.send(None)
        self.queue = self.channels._hosted[NUMBER].queue

    def close(self) -> None:
        with pytest.raises(StopIteration):
            self.channels.do_close_channel(0, 1, {"number": NUMBER}).send(None)


def settle(daemon: Daemon) -> None:
    """Everything that is on the wires arrives."""
    processes = [each for each in daemon.processes if each.endpoint not in daemon.gone and not each.is_stopped]
    while any(process.up or process.down or process.loop.soon for process in processes) or daemon.loop.soon:
        for process in processes:
            process.loop.turn()
            process.says()
        daemon.loop.turn()
        for process in processes:
            process.hears()


def had(daemon: Daemon, process: Process, key: bytes = K) -> Any:
    """One item, all by itself."""
    get = process.get(key)
    settle(daemon)
    return get.wait(0)


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """After two items four gets are sent ahead, however slow this machine is."""
    with pytest.MonkeyPatch.context() as patch:
        make_eager(patch)
        yield


def make_eager(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(read_ahead, "SOON", 1e9)
    patch.setattr(read_ahead, "IDLE", 1e9)
    patch.setattr(read_ahead, "SHY", 0.0)
    patch.setattr(read_ahead, "STREAK", 2)
    patch.setattr(read_ahead, "WINDOW", WINDOW)


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def consumer(daemon: Daemon) -> Process:
    """It has had 0, 1 and 2; 3, 4, 5, 6 have come ahead, and 7, 8, 9 have been put."""
    producer, consumer = Process(daemon), Process(daemon)
    for value in range(10):
        producer.put(value)
    settle(daemon)
    assert [had(daemon, consumer) for _ in range(3)] == [0, 1, 2]
    settle(daemon)
    assert len(consumer.ahead.open[K].arrived) == WINDOW
    return consumer


# -- one after the other ----------------------------------------------------------------------------------------------


def test_an_item_that_is_there_needs_no_daemon(daemon: Daemon, consumer: Process) -> None:
    assert consumer.get().wait(0) == 3
    assert not consumer.up
    assert consumer.get().wait(0) == 4
    (frame,) = consumer.up
    assert frame[5] == "wishes"
    puts, gets, taken = frame[6]
    assert (puts, len(gets), len(taken)) == ([], WINDOW // 2, 1)
    consumer.loop.turn()
    assert consumer.up[-1][5] == "taken"


def test_outside_a_coroutine_each_is_acknowledged_before_it_is_had(daemon: Daemon, consumer: Process) -> None:
    consumer.in_a_coroutine = False
    get = consumer.get()
    assert get.wait(0) == 3
    assert consumer.up.pop()[5:] == ["taken", [get.number]]


def test_what_this_process_asks_besides_has_everything_given_back_first(daemon: Daemon, consumer: Process) -> None:
    for ask, answer in (
        (lambda: consumer.ask("size"), (7, False)),
        (lambda: consumer.get(target=frames.NOW), 4),
        (lambda: consumer.get(target=0), [6]),
    ):
        wish = ask()
        assert consumer.up[0][5] == "gave_back"
        settle(daemon)
        assert wish.wait(0) == answer
        assert not consumer.ahead.open
        consumer.ahead._windows[K].streak = 2
        assert had(daemon, consumer) in (3, 5, 7)
        settle(daemon)
        assert consumer.ahead.open


def test_another_keys_business_is_its_own(daemon: Daemon, consumer: Process) -> None:
    consumer.ask("size", L)
    assert consumer.up.pop()[5] == "size"
    assert consumer.ahead.open


def test_a_get_that_is_cancelled_gives_back_all_that_comes_after_it(daemon: Daemon, consumer: Process) -> None:
    get = consumer.get()
    assert get.done()
    get._return()  # its task was cancelled before it resumed
    assert [had(daemon, consumer) for _ in range(7)] == list(range(3, 10))
    settle(daemon)
    get = consumer.get()
    assert not get.done()
    get.give_up(ClosedError("nobody waits any more"))
    settle(daemon)
    assert daemon.queue.used == []


def test_a_get_that_everybody_forgets_does_so_too(daemon: Daemon, consumer: Process) -> None:
    consumer.get()
    settle(daemon)
    assert [had(daemon, consumer) for _ in range(3)] == [3, 4, 5]


def test_a_put_that_is_given_up_is_withdrawn_whatever_is_ahead(daemon: Daemon, consumer: Process) -> None:
    put = consumer.put("unwanted")
    put._done = False  # as if there were no room for it yet
    put.give_up(ClosedError("not wanted"))
    assert consumer.up.pop()[5:] == ["cancel", [put.number]]
    assert consumer.ahead.open


def test_who_stops_asking_gives_back_after_a_moment(
    daemon: Daemon, consumer: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer.loop.time_passes()
    assert consumer.ahead.open
    monkeypatch.setattr(read_ahead, "IDLE", -1.0)
    consumer.loop.time_passes()
    settle(daemon)
    assert not consumer.ahead.open
    assert not consumer.loop.timers
    assert daemon.queue.size(K) == 7


def test_nobody_has_what_lay_there_while_its_process_was_stopped(
    daemon: Daemon, consumer: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Process(daemon)
    consumer.is_stopped = True
    get = other.get()
    settle(daemon)
    assert not get.done()
    daemon.loop.time_passes()
    settle(daemon)
    assert (get.wait(0), get.redelivered) == (3, True)
    with monkeypatch.context() as patch:
        patch.setattr(read_ahead, "IDLE", -1.0)  # it goes on
        late = consumer.get()
    consumer.is_stopped = False
    settle(daemon)
    assert late.wait(0) == 4


def test_at_the_end_everything_is_had_and_then_there_is_nothing(daemon: Daemon, consumer: Process) -> None:
    daemon.close()
    assert [had(daemon, consumer) for _ in range(6)] == list(range(3, 9))
    assert len(consumer.ahead.open[K].numbers) == 1  # of the others nothing will come
    assert had(daemon, consumer) == 9
    with pytest.raises(EndOfChannel):
        had(daemon, consumer)
    assert not consumer.ahead.open


def test_with_the_channel_goes_what_nobody_has_had(daemon: Daemon, consumer: Process) -> None:
    consumer.queue.fail(ClosedError("gone"))
    with pytest.raises(ClosedError, match="gone"):
        consumer.get().wait(0)
    assert not consumer.ahead.open


def test_a_bounded_queue_has_none(daemon: Daemon) -> None:
    for bounds in ((0, 1), (1 << 20, 0)):
        process = Process(daemon)
        process.queue = RemoteQueue(process, lambda: None, 0, NUMBER, "obs", *bounds)  # type: ignore[arg-type]
        for number in range(10):
            process.put(number)
            assert had(daemon, process) == number
        assert not process.ahead.open


def test_a_caller_that_never_has_to_wait_lets_others_run(daemon: Daemon, consumer: Process) -> None:
    consumer.queue._ahead._paused_at = 0.0
    waiting = consumer.get().__await__()
    assert next(waiting) is None
    with pytest.raises(StopIteration) as found:
        next(waiting)
    assert found.value.value == 3
    consumer.queue._ahead._paused_at = 0.0
    waiting = consumer.get().__await__()
    next(waiting)
    with pytest.raises(asyncio.CancelledError):
        waiting.throw(asyncio.CancelledError())
    assert had(daemon, consumer) == 4


# -- everything at random ---------------------------------------------------------------------------------------------


class Histories(RuleBasedStateMachine):
    """Processes get one by one or several at a time, put, ask, give up, stop asking, do not answer and are killed."""

    @initialize()
    def start(self) -> None:
        self.patch = pytest.MonkeyPatch()
        make_eager(self.patch)
        self.daemon = Daemon()
        self.processes = [Process(self.daemon) for _ in range(3)]
        self.values = 0
        self.done: set[int] = set()
        """Items whose puts have returned."""
        self.had: dict[int, int] = {}
        """Items that somebody has had, with how often."""
        self.had_by_the_dead: set[int] = set()
        self.places: dict[int, int] = {}
        self.latest: dict[tuple[int, int, bytes], int] = {}
        self.has_forfeited = False
        original = self.daemon.channels._follow

        def follow(hosted: Any, steps: list[Step]) -> None:
            for act, what in steps:
                self.judge(act, what)
            original(hosted, steps)

        self.daemon.channels._follow = follow  # type: ignore[method-assign]

    who = st.integers(0, 2)
    keys = st.sampled_from([K, K, K, L])

    # what the daemon does

    def hidden(self, key: bytes, but: int) -> list[int]:
        """Places of the items that lie in a window, and nobody knows of."""
        found = []
        for process in self.processes:
            party = self.daemon.queue.parties.get(process.endpoint)
            window = process.ahead.open.get(key)
            if party is not None and window is not None and process.endpoint != but:
                gets = [party.gets.get(number) for number in window.numbers]
                found += [item.place for get in gets if get is not None and get.delivered for item in get.items]
        return found

    def judge(self, act: int, what: Any) -> None:
        if self.has_forfeited:
            return
        if act in (Act.ANSWER, Act.EMPTY):
            assert not self.hidden(what.key, 0), "an answer that is not the truth"
        elif act == Act.DELIVER and isinstance(what, QueuedGet) and not what.ahead:
            lowest = min(self.hidden(what.key, what.consumer), default=1 << 60)
            assert what.items[0].place < lowest, "somebody got past what another hides"

    # what processes do

    @rule(who=who, key=keys, count=st.integers(1, 6))
    def put(self, who: int, key: bytes, count: int) -> None:
        for _ in range(count):
            self.values += 1
            value = self.values
            put = self.processes[who].put((who, value), key)
            put._follow(lambda value=value: self.done.add(value))  # type: ignore[misc]

    @rule(who=who, key=keys, count=st.integers(1, 6), hasty=st.booleans())
    def get_one_by_one(self, who: int, key: bytes, count: int, hasty: bool) -> None:
        process = self.processes[who]
        process.in_a_coroutine = not hasty
        for _ in range(count):
            if any(get.key == key for get in process.gets):
                return
            process.gets.append(process.get(key))
            self.exchange(process)
            self.resume(process)

    @rule(who=who, key=keys, kind=st.sampled_from([None, None, None, frames.NOW, 0]))
    def get(self, who: int, key: bytes, kind: int | None) -> None:
        self.processes[who].gets.append(self.processes[who].get(key, kind))

    @rule(who=who)
    def callers_resume(self, who: int) -> None:
        self.resume(self.processes[who])

    def resume(self, process: Process) -> None:
        gets, process.gets = process.gets, []
        for get in gets:
            if not get.done():
                process.gets.append(get)
            elif get._error is None:
                value = get.wait(0)
                self.take(process, get, value[0] if get.is_batch else value)

    def take(self, process: Process, get: Get[Any], value: tuple[int, int]) -> None:
        who, identity = value
        before = self.had.get(identity, 0)
        if not self.has_forfeited:
            assert not before or identity in self.had_by_the_dead, "had twice"
        assert not before or get.redelivered or self.has_forfeited, "had twice and not flagged"
        self.had[identity] = before + 1
        if not get.redelivered:
            line = (process.endpoint, who, get.key)
            assert self.latest.get(line, 0) < identity, "out of order"
            self.latest[line] = identity

    @rule(who=who, which=st.integers(0, 5))
    def give_up(self, who: int, which: int) -> None:
        gets = self.processes[who].gets
        if gets:
            get = gets.pop(which % len(gets))
            get.give_up(ClosedError("not wanted any more"))
            get._return()

    @rule(who=who, which=st.integers(0, 5))
    def forget(self, who: int, which: int) -> None:
        gets = self.processes[who].gets
        done = [get for get in gets if get.done()]
        if done:
            gets.remove(done[which % len(done)])

    @rule(who=who, key=keys, word=st.sampled_from(["size", "peek"]))
    def ask(self, who: int, key: bytes, word: str) -> None:
        self.processes[who].ask(word, key)

    @rule(who=who)
    def a_moment_passes(self, who: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(read_ahead, "IDLE", -1.0)
            self.processes[who].loop.time_passes()

    @rule(who=who)
    def kill(self, who: int) -> None:
        process = self.processes[who]
        process.says()  # the kernel has it
        process.closed = ClosedError("dead")
        taken = set(process.queue._company.taken)
        party = self.daemon.queue.parties.get(process.endpoint)
        if party is not None:
            for number, get in party.gets.items():
                if number in taken:
                    self.had_by_the_dead |= {self.identity(item) for item in get.items}
        self.daemon.gone.add(process.endpoint)
        self.daemon.channels.drop_party(process.endpoint)
        self.processes[who] = Process(self.daemon)

    def identity(self, item: Any) -> int:
        identity: int = codec.decode(item.body)[1]
        return identity

    # the wires

    @rule(who=who, count=st.integers(1, 4))
    def says(self, who: int, count: int) -> None:
        self.processes[who].says(count)

    @rule(who=who, count=st.integers(1, 4))
    def hears(self, who: int, count: int) -> None:
        self.processes[who].hears(count)

    @rule(who=who)
    def turn(self, who: int) -> None:
        self.processes[who].loop.turn()

    @rule()
    def the_daemons_turn(self) -> None:
        self.daemon.loop.turn()

    @rule(who=who)
    def both_ways(self, who: int) -> None:
        self.exchange(self.processes[who])

    def exchange(self, process: Process) -> None:
        for _ in range(3):
            process.loop.turn()
            process.says()
            self.daemon.loop.turn()
            process.hears()

    @precondition(lambda self: any(not process.gets for process in self.processes))
    @rule(sure=st.integers(0, 3))
    def patience_is_at_an_end(self, sure: int) -> None:
        if sure == 0:
            self.has_forfeited |= any(lane.turn for lane in self.daemon.queue._lanes.values())
            self.daemon.loop.time_passes()

    def teardown(self) -> None:
        """Everything is heard and everything had; then nothing is left."""
        if not hasattr(self, "daemon"):
            return
        try:
            self.end()
        finally:
            self.patch.undo()

    def end(self) -> None:
        last = Process(self.daemon)
        everybody = [*self.processes, last]
        for _ in range(10):
            settle(self.daemon)
            for process in everybody:
                self.resume(process)
        for process in everybody:
            for get in process.gets:
                assert not get.done()
                assert not self.daemon.queue.size(get.key), "a get waits beside an item"
                get.give_up(ClosedError("the end"))
            process.gets.clear()
        settle(self.daemon)
        for key in (K, L):
            size = last.ask("size", key)
            settle(self.daemon)
            for _ in range(size.wait(0)[0]):
                last.gets.append(last.get(key))
                settle(self.daemon)
                self.resume(last)
                assert not last.gets, "something that was counted cannot be had"
        lost = self.done - set(self.had)
        assert not lost, f"{lost} lost"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(read_ahead, "IDLE", -1.0)
            for process in everybody:
                process.loop.time_passes()
        settle(self.daemon)
        assert self.daemon.queue.used == [], "something is kept for nobody"
        assert not any(party.gets or party.asleep for party in self.daemon.queue.parties.values())


Histories.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None, derandomize=True)
TestHistories = Histories.TestCase

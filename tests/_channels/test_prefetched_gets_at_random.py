"""Random use of prefetched gets: no item is lost, kept or delivered twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rlinf_async._channels.request import Get
from rlinf_async._channels.state import prefetch_window
from rlinf_async._channels.state.actions import Act, Step
from rlinf_async._channels.state.queue_client import Get as QueuedGet
from rlinf_async._core import codec, frames
from rlinf_async.errors import ClosedError
from tests._support.hand_driven_channel import Daemon, K, L, Process, make_eager, settle

ALL = [1 << 60, frames.SOME]
"""What a get wants that takes everything that is there."""


class Histories(RuleBasedStateMachine):
    """Processes get one by one, or keep several gets in flight, put, ask, give up, stop asking, do not answer and are
    killed.
    """

    @initialize()
    def start(self) -> None:
        self.patch = pytest.MonkeyPatch()
        make_eager(self.patch)
        self.patch.setattr(prefetch_window, "MAX_WINDOW", 3 * prefetch_window.WINDOW)
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
            client = self.daemon.queue.clients.get(process.endpoint)
            window = process.windows.open.get(key)
            if client is not None and window is not None and process.endpoint != but:
                gets = [client.gets.get(number) for number in window.numbers]
                found += [item.place for get in gets if get is not None and get.delivered for item in get.items]
        return found

    def judge(self, act: int, what: Any) -> None:
        if self.has_forfeited:
            return
        if act in (Act.ANSWER, Act.EMPTY):
            assert not self.hidden(what.key, 0), "an answer that is not the truth"
        elif act == Act.DELIVER and isinstance(what, QueuedGet) and not what.prefetched:
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

    @rule(who=who, key=keys, in_flight=st.integers(2, 6), count=st.integers(1, 12), hasty=st.booleans())
    def keep_gets_in_flight(self, who: int, key: bytes, in_flight: int, count: int, hasty: bool) -> None:
        """For each item that is had another one is asked for; the last that come are not had yet."""
        process, producer = self.processes[who], (who + 1) % 3
        process.in_a_coroutine = not hasty
        for _ in range(count):
            self.resume(process)
            while sum(get.key == key for get in process.gets) < in_flight:
                process.gets.append(process.get(key))
            self.put(producer, key, in_flight)
            self.exchange(self.processes[producer])
            self.exchange(process)

    @rule(
        who=who,
        key=keys,
        kind=st.sampled_from([None, None, None, frames.NOW, 0, [2, frames.WAIT], [3, frames.SOME], ALL]),
    )
    def get(self, who: int, key: bytes, kind: Any) -> None:
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
                for one in value if get.is_batch else [value]:
                    self.take(process, get, one)

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
            patch.setattr(prefetch_window, "IDLE_S", -1.0)
            self.processes[who].loop.time_passes()

    @rule(who=who)
    def kill(self, who: int) -> None:
        process = self.processes[who]
        process.says()  # the kernel has it
        process.closed = ClosedError("dead")
        taken = set(process.queue._batching.taken)
        client = self.daemon.queue.clients.get(process.endpoint)
        if client is not None:
            for number, get in client.gets.items():
                if number in taken:
                    self.had_by_the_dead |= {self.identity(item) for item in get.items}
        self.daemon.gone.add(process.endpoint)
        self.daemon.channels.drop_client(process.endpoint)
        self.processes[who] = Process(self.daemon)

    def identity(self, item: Any) -> int:
        identity: int = codec.decode(item.body)[1]
        return identity

    # the wires

    @rule(who=who, count=st.integers(1, 4))
    def says(self, who: int, count: int) -> None:
        self.processes[who].says(count)

    @rule(who=who, count=st.integers(1, 4))
    def receive(self, who: int, count: int) -> None:
        self.processes[who].receive(count)

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
            process.receive()

    @precondition(lambda self: any(not process.gets for process in self.processes))
    @rule(sure=st.integers(0, 3))
    def patience_is_at_an_end(self, sure: int) -> None:
        if sure == 0:
            self.has_forfeited |= any(hold.turn for hold in self.daemon.prefetch._holds.values())
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
                assert not self.hidden(get.key, process.endpoint) or self.has_forfeited, "a get waits for hidden items"
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
            patch.setattr(prefetch_window, "IDLE_S", -1.0)
            for process in everybody:
                process.loop.time_passes()
        settle(self.daemon)
        assert self.daemon.queue.used == [], "something is kept for nobody"
        assert not any(client.gets for client in self.daemon.queue.clients.values())


Histories.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None, derandomize=True)
TestHistories = Histories.TestCase

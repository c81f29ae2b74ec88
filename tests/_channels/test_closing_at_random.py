"""Random closes of a channel: every request ends, every accepted put is delivered or discarded."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from rlinf_async._channels.reading import ChannelItems
from rlinf_async._channels.request import Confirmation, Get, Put, QueueQuery
from rlinf_async._core import frames
from rlinf_async.errors import ClosedError, EndOfChannel, LeaseLost
from tests._support.hand_driven_channel import Daemon, K, L, Process, settle


class Histories(RuleBasedStateMachine):
    """Processes put, get, ask, give up and are killed, and somebody closes the channel, once or twice."""

    @initialize()
    def start(self) -> None:
        self.daemon = Daemon()
        self.queue = self.daemon.queue
        self.processes = [Process(self.daemon) for _ in range(3)]
        self.values = 0
        self.puts: list[tuple[Put, int]] = []
        """Those of the living, and what they put."""
        self.questions: list[QueueQuery] = []
        self.had: list[int] = []
        self.leases: list[tuple[Process, Get[Any], list[int]]] = []
        self.loops: list[tuple[Process, ChannelItems]] = []
        self.confirmations: list[tuple[Process, Confirmation, list[int]]] = []
        self.is_closed = self.is_discarded = False

    who = st.integers(0, 2)
    keys = st.sampled_from([K, K, L])

    @rule(who=who, key=keys, count=st.integers(1, 6))
    def put(self, who: int, key: bytes, count: int) -> None:
        for _ in range(count):
            self.values += 1
            self.puts.append((self.processes[who].put(self.values, key), self.values))

    @rule(who=who, key=keys, count=st.integers(1, 4))
    def get_one_by_one(self, who: int, key: bytes, count: int) -> None:
        process = self.processes[who]
        for _ in range(count):
            process.gets.append(process.get(key))
            process.loop.turn()
            process.says()
            self.daemon.loop.turn()
            process.receive()
            self.resume(process)

    @rule(who=who, key=keys, kind=st.sampled_from([None, frames.NOW, 3, [2, frames.WAIT], [2, frames.SOME]]))
    def get(self, who: int, key: bytes, kind: Any) -> None:
        self.processes[who].gets.append(self.processes[who].get(key, kind))

    @rule(who=who, key=keys)
    def ask(self, who: int, key: bytes) -> None:
        self.questions.append(self.processes[who].ask("size", key))

    @rule(who=who)
    def callers_resume(self, who: int) -> None:
        self.resume(self.processes[who])

    @rule(who=who, key=keys, count=st.integers(1, 3), seconds=st.sampled_from([0.0, 1.0]))
    def lease(self, who: int, key: bytes, count: int, seconds: float) -> None:
        self.processes[who].gets.append(self.processes[who].get(key, [count, frames.LEASE, seconds]))

    @rule(which=st.integers(0, 5), ends_well=st.booleans())
    def end_a_lease(self, which: int, ends_well: bool) -> None:
        if self.leases:
            process, lease, items = self.leases.pop(which % len(self.leases))
            if ends_well:
                self.confirmations.append((process, process.confirm(lease, len(items)), items))
            else:
                process.queue.withdraw(lease)

    @rule()
    def time_passes(self) -> None:
        for process in self.processes:
            process.loop.time_passes()
        self.daemon.loop.time_passes()

    @rule(who=who, key=keys)
    def begin_a_loop(self, who: int, key: bytes) -> None:
        loop = self.processes[who].read(key)
        self.step(loop)
        self.loops.append((self.processes[who], loop))

    @rule(which=st.integers(0, 5), breaks=st.booleans())
    def go_on_with_a_loop(self, which: int, breaks: bool) -> None:
        if self.loops:
            process, loop = self.loops.pop(which % len(self.loops))
            self.step(loop)
            if not breaks:
                self.loops.append((process, loop))

    def step(self, loop: ChannelItems) -> None:
        """It has its next item, if that is there."""
        due = loop._due()
        if due is None or due.done():
            with contextlib.suppress(EndOfChannel):
                if due is not None:
                    loop._arrived(due)
                self.had += loop._take()

    def resume(self, process: Process) -> None:
        for confirmation in [each for each in self.confirmations if each[0] is process and each[1].done()]:
            self.confirmations.remove(confirmation)
            _, work, items = confirmation
            if work._error is None:
                self.had += items
            else:
                assert type(work._error) is LeaseLost
        gets, process.gets = process.gets, []
        for get in gets:
            if not get.done():
                process.gets.append(get)
            elif get._error is None:
                value = get.wait(0)
                if get.is_lease:
                    self.leases.append((process, get, value))
                    continue
                self.had += value if get.is_batch else [value]

    @rule(who=who, which=st.integers(0, 5))
    def give_up(self, who: int, which: int) -> None:
        gets = self.processes[who].gets
        if gets:
            get = gets.pop(which % len(gets))
            get.abandon(ClosedError("not wanted any more"))
            get._return()

    @rule(who=who)
    def kill(self, who: int) -> None:
        process = self.processes[who]
        self.daemon.kill(process)
        # The answers are never heard, but items that were confirmed in time are out of the channel.
        refused = {-frame[6][0] for frame in process.down if frame[0] == frames.QUEUE and frame[5] == "failed"}
        for holder, work, items in self.confirmations:
            if holder is process and work.number not in refused and not isinstance(work._error, LeaseLost):
                self.had += items
        self.confirmations = [each for each in self.confirmations if each[0] is not process]
        self.leases = [each for each in self.leases if each[0] is not process]
        self.loops = [each for each in self.loops if each[0] is not process]
        self.puts = [(put, value) for put, value in self.puts if put.done() or put.destination is not process.queue]
        self.questions = [asked for asked in self.questions if asked.destination is not process.queue]
        self.processes[who] = Process(self.daemon)

    @rule(sure=st.integers(0, 6), discard=st.booleans())
    def close(self, sure: int, discard: bool) -> None:
        if sure == 0:
            self.is_closed = True
            self.is_discarded |= discard
            self.daemon.close(discard=discard)

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

    def teardown(self) -> None:
        if not hasattr(self, "daemon"):
            return
        self.end()

    def end(self) -> None:
        if not self.is_closed:
            self.daemon.close()
        last = Process(self.daemon)
        while self.loops:
            self.loops.pop()
        settle(self.daemon)
        for _ in range(self.values + 1):
            for key in K, L:
                last.gets.append(last.get(key))
            for process in (*self.processes, last):
                settle(self.daemon)
                self.resume(process)
                while self.leases:
                    self.end_a_lease(0, True)
        for process in (*self.processes, last):
            assert not process.gets, "a get that never ends"
            assert not process.queue._puts, "a put that is kept for nobody"
            assert not process.giving_back.open, "answers that wait for ever"
        assert all(asked.done() for asked in self.questions), "a question that is never answered"
        assert not self.daemon.channels._hosted
        twice = {value for value in self.had if self.had.count(value) > 1}
        assert not twice, "had twice"
        for put, value in self.puts:
            put.observed = True
            assert put.done(), "a put that never ends"
            if put._error is None:
                assert value in self.had or self.is_discarded, f"{value} is lost"
            else:
                assert type(put._error) is ClosedError
                assert value not in self.had, f"{value} was refused"
        self.late_comers()

    def late_comers(self) -> None:
        late = Process(self.daemon)
        requests: list[tuple[Put | Get[Any], type[Exception]]] = [
            (late.put("x"), ClosedError),
            (late.get(), EndOfChannel),
            (late.get(target=frames.NOW), EndOfChannel),
            (late.get(target=[2, frames.WAIT]), EndOfChannel),
            (late.get(target=[2, frames.SOME]), EndOfChannel),
        ]
        settle(self.daemon)
        for request, error in requests:
            with pytest.raises(error) as refused:
                request.wait(0)
            assert type(refused.value) is error


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
TestHistories = Histories.TestCase

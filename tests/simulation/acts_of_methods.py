"""Acts of device locks, and of methods that run beside others."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from tests.simulation import crew, subject
from tests.simulation.families import CREW
from tests.simulation.judgement import Violation
from tests.simulation.operations import all_of
from tests.simulation.stage import Stage

_SETTLED_S: Final = 0.3
"""Seconds in which calls that have room begin."""


class MethodActs(Stage):
    """Locks and concurrent methods."""

    async def do_l_hold(
        self, rank: int, devices: Sequence[int], seconds: float, timeout: float | None, times: int
    ) -> None:
        nonce = next(self.nonces)
        name = f"rank {rank} with devices {devices}"
        # A coroutine that holds a device across such a wait could not let go while another method of its rank blocks.
        is_crossed = any(step.kind == "v_stands" and step.facts == ("locks",) for step in self.program.steps)
        if times or is_crossed:
            self.script(name, (CREW, rank), "hold", nonce, list(devices), seconds, timeout, times or 1)
        else:
            self.script(name, (CREW, rank), "hold_blocking", nonce, list(devices), seconds)

    async def do_l_behind(self) -> None:
        if self.program.is_calm and len(self.program.placement[CREW]) > 2:
            self.start("one behind one that gives up", self.wait_behind())

    async def wait_behind(self) -> None:
        """A free device is given on when one gives up that has waited for it and another one, which is held."""
        plans: tuple[tuple[Any, ...], ...] = (([0], 12.0, None, 1), ([0, 1], 0.0, 1.0, 1), ([1], 0.0, 6.0, 1))
        nonces = [next(self.nonces) for _ in plans]
        for rank, plan in enumerate(plans):
            self.script(f"rank {rank} with devices {plan[0]}", (CREW, rank), "hold", nonces[rank], *plan)
            await asyncio.sleep(0.1)
        await asyncio.sleep(10.0)
        (last,) = [each for each in subject.BOOK if each.kind == "l_hold" and each.facts[0] == nonces[2]]
        if last.value != "held":
            self.hung.append(Violation("hang", f"{last}, and device 1 is free"))

    async def do_l_waver(self, rank: int, devices: Sequence[int], times: int, seed: int) -> None:
        name = f"rank {rank} changes its mind about devices {devices}"
        self.script(name, (CREW, rank), "want_briefly", list(devices), times, seed)

    async def do_l_pair(self, rank: int, devices: Sequence[int]) -> None:
        self.script(f"rank {rank} wants devices {devices} twice", (CREW, rank), "hold_twice", list(devices))

    async def do_m_silent(self, rank: int, seconds: float) -> None:
        if self.program.is_calm:
            self.start(f"calls that rank {rank} does not answer", self.be_silent(rank, seconds))

    async def be_silent(self, rank: int, seconds: float) -> None:
        """Of two calls that are begun at once one is answered; the other one is given up, and not waited for.

        Calls before them wait for each other, and their rank answers one after the other: it is not silent.
        """
        loop = asyncio.get_running_loop()
        pool = self.groups[CREW][rank].any(stall_timeout=1.0)
        turns = [subject.begin("driver", "m_turn", next(self.nonces), rank) for _ in range(4)]
        await all_of([self.follow(turn, pool.block(turn.facts[0], 0.4)) for turn in turns])
        self.hung += [Violation("stall", f"{turn}, among answers") for turn in turns if turn.error is not None]
        nonces, began = [next(self.nonces), next(self.nonces)], loop.time()
        calls = [subject.begin("driver", "m_silent", nonce, rank) for nonce in nonces]
        await all_of(
            [self.follow(calls[0], pool.serve(nonces[0], seconds)), self.follow(calls[1], pool.serve(nonces[1], 30.0))]
        )
        if calls[0].error is not None or calls[1].error is None or loop.time() - began > seconds + 3.0:
            self.hung.append(Violation("stall", f"{calls} ended after {loop.time() - began:.1f} s"))

    async def do_m_look(self, rank: int, seconds: float, calls: int) -> None:
        self.start(f"calls beside one that blocks rank {rank}", self.look_beside(rank, seconds, calls))

    async def look_beside(self, rank: int, seconds: float, calls: int) -> None:
        """Calls of a concurrent method end while another method blocks; a call behind it, when it has."""
        loop, member = asyncio.get_running_loop(), self.groups[CREW][rank]
        nonce = next(self.nonces)
        target = f"{CREW}:{rank}"
        blocking = subject.begin("driver", "call", nonce, target)
        blocked = asyncio.ensure_future(subject.follow(blocking, member.block(nonce, seconds)))
        await asyncio.sleep(0)
        began = loop.time()
        nonces = [next(self.nonces) for _ in range(calls)]
        looks = [subject.begin("driver", "m_call", number, target) for number in nonces]
        await all_of([self.follow(look, member.look(look.facts[0])) for look in looks])
        if self.program.is_calm and loop.time() - began > seconds / 2:
            self.hung.append(Violation("beside", f"calls beside one of {seconds:g} s took {loop.time() - began:g} s"))
        for look, number in zip(looks, nonces, strict=True):
            if look.error is None and look.value[0][0] != number:
                self.hung.append(Violation("foreign", f"{look} is the answer of another call"))
        await blocked

    @staticmethod
    def follow(operation: subject.Operation, awaitable: Awaitable[object]) -> asyncio.Task[None]:
        return asyncio.ensure_future(subject.follow(operation, awaitable, lambda value: value))

    async def do_m_meet(self, rank: int, count: int) -> None:
        """They end only if all of them run at once."""
        nonce = next(self.nonces)
        for _ in range(count):
            operation = subject.begin("driver", "m_meet", nonce, f"{CREW}:{rank}")
            self.start(f"one of {count} calls that meet at rank {rank}", self.meet(operation, rank, count))

    async def meet(self, operation: subject.Operation, rank: int, count: int) -> None:
        """A group that is closed, or whose launch has failed, refuses the call itself."""
        await subject.follow(operation, self.groups[CREW][rank].meet(operation.facts[0], count))

    async def do_m_stay(self, rank: int, seconds: float) -> None:
        self.start(f"a concurrent call of rank {rank} that is given up", self.stay(rank, seconds))

    async def stay(self, rank: int, seconds: float) -> None:
        nonce, member = next(self.nonces), self.groups[CREW][rank]
        operation = subject.begin("driver", "m_stay", nonce, f"{CREW}:{rank}")
        task = self.follow(operation, member.stay(nonce))
        try:
            await asyncio.wait([task], timeout=seconds)
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def do_m_crowd(self, seed: int) -> None:
        self.start("calls that any rank takes", self.crowd(random.Random(seed)))

    async def crowd(self, rng: random.Random) -> None:
        """More calls of any rank than have room, of views that overlap; some that wait are given up."""
        size = len(self.program.placement[CREW])
        await self.groups[CREW]
        tasks = [self.call_in_crowd((0, size), 1, 6.0) for _ in range(size)]
        try:
            for _ in range(rng.choice((2, 4))):
                first = rng.randrange(size)
                views = ((0, size), (0, size), (first, rng.randrange(first, size) + 1))
                for _ in range(rng.choice((1, 2, 4))):
                    seconds = rng.choice((0.2, 3.0, 6.0))
                    tasks.append(self.call_in_crowd(rng.choice(views), rng.choice((1, 1, 2, 3)), seconds))
                await self.look_for_room()
                waiting = [task for task in tasks if not task.done()]
                if waiting:
                    rng.choice(waiting[size:] or waiting).cancel()
                await self.look_for_room()
        finally:
            await all_of(tasks)

    def call_in_crowd(self, view: tuple[int, int], limit: int, seconds: float) -> asyncio.Task[None]:
        nonce = next(self.nonces)
        operation = subject.begin("driver", "m_any", nonce, limit, list(range(*view)))
        return self.follow(operation, self.groups[CREW][slice(*view)].any(in_flight=limit).serve(nonce, seconds))

    async def look_for_room(self) -> None:
        """Once nothing changes for a while: the first of the calls that wait for a rank has no room there."""
        await asyncio.sleep(_SETTLED_S)
        before = self.find_room()
        await asyncio.sleep(_SETTLED_S)
        if self.program.is_calm and before == self.find_room():
            self.hung += [Violation("room", text) for text in before[1]]

    def find_room(self) -> tuple[int, list[str]]:
        """Return the count of what was noted and has ended, and the calls that wait where they have room."""
        calls = [each for each in subject.BOOK if each.kind == "m_any"]
        served = [each for each in subject.BOOK if each.kind == "m_serve"]
        begun = {each.facts[0] for each in served}
        open_ = Counter(each.who for each in served if not each.ended)
        found, passed = [], set()
        for call in calls:
            nonce, limit, ranks = call.facts
            if call.ended or nonce in begun:
                continue
            free = [rank for rank in set(ranks) - passed if open_[f"{CREW}:{rank}"] < limit]
            found += [f"{call} has room at rank {rank}" for rank in free]
            passed |= set(ranks)
        return len(calls) + len(served) + sum(each.ended for each in (*calls, *served)), found

    async def do_m_refuse(self, rank: int) -> None:
        self.start(f"a concurrent call of rank {rank} that raises", self.refuse(next(self.nonces), rank))

    async def refuse(self, nonce: int, rank: int) -> None:
        operation = subject.begin("driver", "m_refuse", nonce, f"{CREW}:{rank}")
        await subject.follow(operation, self.groups[CREW][rank].refuse(nonce))
        crew.excuse(operation, "LookupError")

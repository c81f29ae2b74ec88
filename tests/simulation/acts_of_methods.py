"""Acts of device locks, and of methods that run beside others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from tests.faults.journal import all_of
from tests.faults.judgement import Violation
from tests.simulation import crew, subject
from tests.simulation.families import CREW
from tests.simulation.stage import Stage


class MethodActs(Stage):
    """Locks and concurrent methods."""

    async def do_l_hold(
        self, rank: int, devices: Sequence[int], seconds: float, timeout: float | None, times: int
    ) -> None:
        nonce = next(self.nonces)
        name = f"rank {rank} with devices {devices}"
        if times:
            self.script(name, (CREW, rank), "hold", nonce, list(devices), seconds, timeout, times)
        else:
            self.script(name, (CREW, rank), "hold_blocking", nonce, list(devices), seconds)

    async def do_l_waver(self, rank: int, devices: Sequence[int], times: int, seed: int) -> None:
        name = f"rank {rank} changes its mind about devices {devices}"
        self.script(name, (CREW, rank), "want_briefly", list(devices), times, seed)

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
        nonce, member = next(self.nonces), self.groups[CREW][rank]
        for _ in range(count):
            operation = subject.begin("driver", "m_meet", nonce, f"{CREW}:{rank}")
            self.start(
                f"one of {count} calls that meet at rank {rank}", subject.follow(operation, member.meet(nonce, count))
            )

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

    async def do_m_refuse(self, rank: int) -> None:
        nonce, member = next(self.nonces), self.groups[CREW][rank]
        operation = subject.begin("driver", "m_refuse", nonce, f"{CREW}:{rank}")
        self.start(f"a concurrent call of rank {rank} that raises", self.refuse(operation, member.refuse(nonce)))

    async def refuse(self, operation: subject.Operation, awaitable: Awaitable[object]) -> None:
        await subject.follow(operation, awaitable)
        crew.excuse(operation, "LookupError")

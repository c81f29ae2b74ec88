"""Acts of calls: of one rank, of all, of any; streams, groups that come and go, background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from rlinf_async import NodePlacementStrategy
from tests.simulation import subject
from tests.simulation.families import CREW
from tests.simulation.judgement import Violation
from tests.simulation.operations import all_of
from tests.simulation.stage import Stage
from tests.simulation.subject import Subject


class CallActs(Stage):
    """Calls."""

    async def do_call(self, who: tuple[str, int], kind: str, size: int, times: int) -> None:
        group, rank = who
        for _ in range(times):
            nonce = next(self.nonces)
            if kind == "again":
                self.start(f"a call of {group}:{rank} that is made again", self.call_again(group, rank, nonce, size))
                continue
            work = subject.echo(
                "driver", self.groups[group], group, rank, nonce, size, later=None if kind == "def" else 0.02
            )
            self.start(f"a call of {group}:{rank}", work)

    async def call_again(self, group: str, rank: int, nonce: int, size: int) -> None:
        """An idempotent call: it outlives its worker where that is started again."""
        operation = subject.begin("driver", "again", nonce, f"{group}:{rank}")
        await subject.follow(
            operation, self.groups[group][rank].echo_again(nonce, size, 0.02), subject.is_echo(nonce, size)
        )
        if operation.error is None or not self.program.restart[group] or self.node_died:
            return
        closes = any(step.kind == "h_close" for step in self.program.steps)
        if operation.error[0] == "WorkerDied" and not (group == CREW and closes):
            self.hung.append(Violation("death", f"{operation} was not made again"))

    async def do_burst(self, who: tuple[str, int], times: int) -> None:
        self.start(f"a burst of calls of {who}", self.burst(*who, times))

    async def burst(self, group: str, rank: int, times: int) -> None:
        """Calls with short pauses between them, of which many are open at once."""
        calls = []
        for _ in range(times):
            later = self.random.choice((None, 0.0, 0.003))
            size = self.random.choice((10, 70_000))
            work = subject.echo("driver", self.groups[group], group, rank, next(self.nonces), size, later)
            calls.append(asyncio.ensure_future(work))
            await asyncio.sleep(self.random.choice((0.0, 0.0005, 0.002)))
        await all_of(calls)

    async def do_give_up(self, who: tuple[str, int]) -> None:
        self.start(f"a call of {who} that is given up", self.give_up(*who, next(self.nonces)))

    async def give_up(self, group: str, rank: int, nonce: int) -> None:
        """A call is cancelled among others, and what is called next finds it so."""
        member = self.groups[group][rank]

        def call() -> None:
            work = subject.echo("driver", self.groups[group], group, rank, next(self.nonces), 10, None)
            self.start(f"a call of {group}:{rank} beside one that is given up", work)

        waiting = member.wait_long(nonce)
        (before,) = await member.token()
        asyncio.get_running_loop().call_later(self.random.choice((0.0099, 0.01)), call)
        try:
            async with asyncio.timeout(0.01):
                await waiting
        except TimeoutError:
            pass
        call()
        ((after, cancelled),) = await member.was_cancelled(nonce)
        if before == after and not cancelled:
            self.hung.append(Violation("order", f"a call of {group}:{rank} began before an earlier one was cancelled"))

    async def do_call_all(self, group: str, times: int) -> None:
        for _ in range(times):
            self.start(f"a call of all of {group}", self.call_all(group, next(self.nonces)))

    async def call_all(self, group: str, nonce: int) -> None:
        await subject.follow(subject.begin("driver", "all", nonce), self.groups[group].echo(nonce, 10))

    async def do_beside(self, group: str, times: int) -> None:
        """Calls of each rank and of all by turns; where ranks have their own order, those that are there get them."""
        ranks = range(len(self.program.placement[group]))
        for _ in range(times):
            await self.do_call_all(group, 1)
            for rank in ranks:
                await self.do_call((group, rank), "def", 10, 1)
                await asyncio.sleep(0)  # it is made
                members = self.groups[group]._members
                waits = any(rank in each.callee.ranks for each in members._pending if not each.handler._call)
                ordered = self.program.restart[group] == "rank" and self.program.order == "rank"
                away = {*self.groups[group].away, *(members.supervisor._free if ordered else ())}
                if ordered and waits and members.endpoints and rank not in away:
                    self.hung.append(Violation("beside", f"a call of {group}:{rank}, which is there, waits"))

    async def do_background(self, who: tuple[str, int], seconds: float, fails: bool) -> None:
        if fails:
            self.killed.add(f"{who[0]}:{who[1]}")
        self.start(f"a task of {who}", self.have_task(who, seconds, fails))

    async def have_task(self, who: tuple[str, int], seconds: float, fails: bool) -> None:
        before = self.sim.find(*who)
        await self.groups[who[0]][who[1]].begin_task(seconds, fails)
        await asyncio.sleep(seconds + 20 if fails else 0)
        if fails and before is not None and self.sim.find(*who) is before:
            self.hung.append(Violation("background", f"a task of {who} has failed, and its rank lives on"))

    async def do_guest(self, name: str, node: int, seconds: float) -> None:
        self.start(f"a group '{name}' for a while", self.have_guest(name, node, seconds))

    async def have_guest(self, name: str, node: int, seconds: float) -> None:
        """A group that comes, is called and goes; its name may be taken, or be that of one before it."""

        async def work() -> None:
            group = Subject.create_group().launch(self.cluster, NodePlacementStrategy([node]), name=name)
            async with group:
                nonce = next(self.nonces)
                assert await group.echo(nonce, 10) == [(nonce, bytes(10))]
                await asyncio.sleep(seconds)
                nonce = next(self.nonces)
                assert await group.echo(nonce, 10) == [(nonce, bytes(10))]

        await subject.follow(subject.begin("driver", "guest", name), taken_or(work()))

    async def do_stream(self, who: tuple[str, int], times: int) -> None:
        self.start(f"a stream of {who}", self.stream(*who, next(self.nonces), times))

    async def stream(self, group: str, rank: int, nonce: int, times: int) -> None:
        with subject.noted("driver", "call", nonce, f"{group}:{rank}"):
            expected = 0
            async for _, (came_for, number, _) in self.groups[group][rank].count(nonce, times, 10):
                assert (came_for, number) == (nonce, expected), "a stream out of order"
                expected += 1
            assert expected == times, f"a stream of {expected} of {times} items"

    async def do_any(self, kind: str, times: int, limit: int | None, key: str | None, stall_s: float | None) -> None:
        pool = self.groups["pool"].any(in_flight=limit, key=key, stall_timeout=stall_s)
        for _ in range(times):
            nonce, pause = next(self.nonces), self.random.choice((0.0, 0.02, 0.3))
            self.start(f"a call of any rank ({kind})", self.call_any(pool, kind, nonce, pause, limit, key))

    async def call_any(
        self, pool: Any, kind: str, nonce: int, pause: float, limit: int | None, key: str | None
    ) -> None:
        """One of four kinds of calls; those that may run twice are judged by ``invariants``."""
        facts = ("any", nonce, key) if kind in ("again", "tokens") else ("call", nonce, subject.ANY_RANK)
        operation = subject.begin("driver", *facts)
        if kind == "once":
            await subject.follow(operation, pool.echo_later(nonce, 10, pause), subject.is_one_echo(nonce, 10))
        elif kind == "again":
            await subject.follow(operation, pool.echo_anywhere(nonce, 10, limit, pause), subject.is_one_echo(nonce, 10))
        else:
            stream = pool.count(nonce, 5, 10) if kind == "stream" else pool.count_on(nonce, 5, limit)
            await subject.follow(operation, self.read_all(stream, nonce, pause))

    async def read_all(self, stream: Any, nonce: int, pause: float) -> None:
        numbers = []
        async for came_for, number, *_ in stream:
            assert came_for == nonce, "an item of another stream"
            numbers.append(number)
            await asyncio.sleep(pause / 10)
        assert numbers == [*range(5)], f"a stream of {numbers}"

    async def do_peer(self, who: tuple[str, int], peer: tuple[str, int], size: int, times: int) -> None:
        if who == peer:
            return
        nonces = [next(self.nonces) for _ in range(times)]
        self.script(f"{who} calls {peer}", who, "ask_peer", *peer, nonces, size)

    async def do_cancel(self, index: int) -> None:
        open_ = [task for _, _, task in reversed(self.tasks) if not task.done()]
        if index < len(open_):
            open_[index].cancel()


async def taken_or(work: Coroutine[Any, Any, None]) -> None:
    """A name may be in use."""
    try:
        await work
    except ValueError as error:
        if "exists already" not in str(error):
            raise

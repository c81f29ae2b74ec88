"""Plays a seed's program in a simulated cluster, and judges what its processes have noted."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from rlinf_async import Channel, Cluster, NodePlacementStrategy
from rlinf_async._simulation.sim_cluster import SimCluster
from rlinf_async._simulation.small_limits import small_limits
from tests.faults.journal import Counters, Operation, all_of
from tests.faults.judgement import Facts, Violation, judge
from tests.simulation import subject
from tests.simulation.invariants import check, compare_views, find_left, judge_pool
from tests.simulation.program import Program, write
from tests.simulation.subject import Subject

PATIENCE_S: Final = 200.0
"""Virtual seconds after which what still waits is taken to wait for ever."""


@dataclass
class Line:
    """A channel: one of those that have had its name."""

    number: int
    channel: Channel
    is_closed: bool = False


@dataclass
class Report:
    """What one simulation has shown."""

    seed: int
    program: Program
    violations: list[Violation] = field(default_factory=list)
    turns: int = 0
    log: list[str] = field(default_factory=list)
    digest: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        found = "\n".join(f"  {violation}" for violation in self.violations)
        return f"seed {self.seed}: {self.program}\n{found}"


class Play:
    """One program."""

    def __init__(self, sim: SimCluster, program: Program) -> None:
        self.sim = sim
        self.program = program
        self.nonces, self.numbers = itertools.count(), Counters()
        self.tasks: list[tuple[str, str, asyncio.Task[Any]]] = []
        self.lines: dict[str, list[Line]] = {}
        self.groups: dict[str, Any] = {}
        self.killed: set[str] = set()
        self.random = random.Random(sim.seed)
        self.trains = False
        self.rolls_out: set[int] = set()
        self.node_died = False
        self.away_s = 0.0
        self.hung: list[Violation] = []
        self.book: list[Operation] = []
        self.views: list[Violation] = []
        self.left: list[Violation] = []

    def start(self, name: str, work: Coroutine[Any, Any, Any], meets: str = "") -> None:
        task = asyncio.get_running_loop().create_task(_quietly(work), name=name)
        self.tasks.append((name, meets, task))

    async def main(self) -> None:
        loop = asyncio.get_running_loop()
        async with Cluster(log_to_driver=False) as cluster:
            self.cluster = cluster
            for name, nodes in self.program.placement.items():
                restart = self.program.restart[name]
                options = {"restart": restart, "max_restarts": 1000} if restart else {}
                if restart == "rank":
                    options["order"] = self.program.order
                self.groups[name] = Subject.create_group().launch(
                    cluster, NodePlacementStrategy(list(nodes)), name=name, **options
                )
            if ring := self.program.ring:
                cls = subject.BlockingRing if self.program.ring_blocks else subject.Ring
                self.groups["ring"] = cls.create_group().launch(
                    cluster, NodePlacementStrategy(list(ring)), name="ring", restart="rank", max_restarts=1000,
                    order=self.program.order,
                )  # fmt: skip
            if pool := self.program.pool:
                options: dict[str, Any] = {"restart": "rank", "max_restarts": 1000, "order": self.program.order}
                self.groups["pool"] = Subject.create_group().launch(
                    cluster, NodePlacementStrategy(list(pool)), name="pool",
                    **(options if self.program.pool_restarts else {}),
                )  # fmt: skip
                await self.groups["pool"]  # a death while it is launched ends its other constructors
            began = loop.time()
            for step in self.program.steps:
                if (left := began + step.at - loop.time()) > 0:
                    await asyncio.sleep(left)
                await getattr(self, f"do_{step.kind}")(*step.facts)
            await self.settle(lambda meets: meets == "", PATIENCE_S)
            # A message whose receiver has given up waits on; those that meet have had their time.
            await self.pass_time(lambda meets: meets == "message", PATIENCE_S)
            if not self.node_died:
                await self.make_sure()
            await self.finish()
            await asyncio.sleep(40)  # for leases to end, and words to come
            self.views = compare_views(self.sim)
        await asyncio.sleep(90)  # the watch of a loop's waits looks once more, and ends
        self.left = find_left(loop, self.sim)
        # Not later: what is taken apart at the end of the simulation notes ends as well.
        self.book = [dataclasses.replace(operation) for operation in subject.BOOK]

    async def make_sure(self) -> None:
        """Faults are over: every rank that is there reaches every other one, by calls and by messages."""
        await asyncio.sleep(30)
        ranks = [rank for rank in self.sim.ranks if rank[0] in self.groups]
        pairs = [(one, other) for one in ranks for other in ranks if one != other]
        for one, other in pairs:
            for name, meet in (("call", self.meet_by_call), ("message", self.meet_by_message)):
                try:
                    async with asyncio.timeout(60):
                        await meet(one, other)
                except Exception as error:
                    what = f"{type(error).__name__}: {str(error)[:200]}"
                    self.hung.append(Violation("whole", f"no {name} of {one} reaches {other} afterwards: {what}"))

    async def meet_by_call(self, one: tuple[str, int], other: tuple[str, int]) -> None:
        await self.groups[one[0]][one[1]].reach(*other)

    async def meet_by_message(self, one: tuple[str, int], other: tuple[str, int]) -> None:
        nonce = next(self.nonces)
        receiving = self.groups[other[0]][other[1]].take_last(*one, nonce)
        await self.groups[one[0]][one[1]].send_last(*other, nonce)
        await receiving

    async def pass_time(self, which: Callable[[str], bool], seconds: float) -> None:
        """Until all of them have ended, and those that they have started."""
        until = asyncio.get_running_loop().time() + seconds
        while waiting := [task for _, meets, task in self.tasks if not task.done() and which(meets)]:
            if (left := until - asyncio.get_running_loop().time()) <= 0:
                return
            await asyncio.wait(waiting, timeout=left)

    async def settle(self, which: Callable[[str], bool], seconds: float) -> None:
        await self.pass_time(which, seconds)
        for name, meets, task in self.tasks:
            if not task.done() and which(meets):
                self.hung.append(Violation("hang", f"{name} has not ended {seconds:g} s later"))

    async def finish(self) -> None:
        """Ends what waits for more than the program has given, and takes what nobody has taken."""
        for line in [line for lines in self.lines.values() for line in lines]:
            if not line.is_closed:
                self.start(
                    f"the closing of channel {line.number}",
                    subject.follow(subject.begin("driver", "close", line.number), line.channel.close()),
                )
        await self.settle(lambda meets: meets in ("", "channel"), PATIENCE_S)
        for line in [line for lines in self.lines.values() for line in lines]:
            self.start(f"what is left in channel {line.number}", self.drain(line))
        await self.settle(lambda meets: meets in ("", "channel"), PATIENCE_S)
        for _, meets, task in self.tasks:
            if meets == "message" and not task.done():
                task.cancel()
        await self.settle(lambda meets: True, PATIENCE_S)

    async def drain(self, line: Line) -> None:
        while True:
            operation = await subject.get_one("driver", line.channel, line.number, None)
            if operation.error is not None:
                return

    # -- steps --------------------------------------------------------------------------------------------------

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
        if operation.error[0] == "WorkerDied":
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

    async def do_thread(self, who: tuple[str, int], name: str, times: int) -> None:
        """Another thread of the driver's, which waits for one thing after the other."""
        line = await self.find(name)
        done = [(next(self.nonces), self.numbers.next(line.number)) for _ in range(times)]
        caller = f"driver's thread {done[0][0]}"
        work = asyncio.to_thread(
            subject.call_and_put, caller, self.groups[who[0]][who[1]], f"{who[0]}:{who[1]}", line, done
        )
        self.start(caller, work, "channel")

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

    async def do_broadcast(self, source: tuple[str, int], size: int) -> None:
        everybody = [
            (group, rank) for group in self.program.placement for rank in range(len(self.program.placement[group]))
        ]
        nonce = next(self.nonces)
        for who in everybody:
            self.script(f"{who} in a broadcast", who, "broadcast_to", everybody, source, nonce, size, meets="message")

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

    def script(self, name: str, who: tuple[str, int], method: str, *arguments: Any, meets: str = "") -> None:
        member = self.groups[who[0]][who[1]]

        async def work() -> None:
            await getattr(member, method)(*arguments)

        self.start(name, work(), meets)

    async def do_send(
        self, source: tuple[str, int], target: tuple[str, int], size: int, times: int, blocking: bool, deadline: Any
    ) -> None:
        if source == target:
            return
        method = "send_blocking" if blocking else "send_many"
        self.script(f"the receiver of {source}", target, "recv_many", *source, times, deadline or 60.0, meets="message")
        self.script(f"the sender {source}", source, method, *target, times, size, meets="message")

    async def do_open(self, name: str, maxsize: int, node: int) -> None:
        await self.do_close(name)
        lines = self.lines.setdefault(name, [])
        number = sum(map(len, self.lines.values()))
        lines.append(Line(number, Channel.create(name, maxsize=maxsize, cluster=self.cluster, node_rank=node)))

    async def do_close(self, name: str) -> None:
        lines = self.lines.get(name)
        if lines and not lines[-1].is_closed:
            lines[-1].is_closed = True
            operation = subject.begin("driver", "close", lines[-1].number)
            await subject.follow(operation, lines[-1].channel.close())

    async def find(self, name: str) -> Line:
        if name not in self.lines:
            await self.do_open(name, 0, 0)
        return self.lines[name][-1]

    async def do_put(self, who: Any, name: str, times: int, deadline: Any) -> None:
        line = await self.find(name)
        numbers = [self.numbers.next(line.number) for _ in range(times)]
        if who == "driver":
            self.start(
                f"puts into {line.number}",
                subject.put("driver", line.channel, line.number, numbers, deadline),
                "channel",
            )
        else:
            self.script(
                f"puts of {who} into {line.number}",
                who,
                "put",
                line.channel,
                line.number,
                numbers,
                deadline,
                meets="channel",
            )

    async def do_get(self, who: Any, name: str, times: int, deadline: Any) -> None:
        line = await self.find(name)
        if who == "driver":
            self.start(
                f"gets from {line.number}", subject.get("driver", line.channel, line.number, times, deadline), "channel"
            )
        else:
            self.script(
                f"gets of {who} from {line.number}",
                who,
                "get",
                line.channel,
                line.number,
                times,
                deadline,
                meets="channel",
            )

    async def do_train(self, versions: int, pause: float) -> None:
        if not self.trains:
            self.trains = True
            self.script("the trainer", ("a", 0), "train", versions, pause)

    async def do_roll_out(self, rank: int, reads: int, pause: float) -> None:
        if rank not in self.rolls_out:
            self.rolls_out.add(rank)
            self.script(f"rollout {rank}", ("b", rank), "roll_out", reads, pause)

    async def do_cancel(self, index: int) -> None:
        open_ = [task for _, _, task in reversed(self.tasks) if not task.done()]
        if index < len(open_):
            open_[index].cancel()

    # -- faults -------------------------------------------------------------------------------------------------

    async def do_kill(self, who: tuple[str, int]) -> None:
        if self.sim.kill(*who):
            self.killed.add(f"{who[0]}:{who[1]}")

    async def do_restart(self, who: tuple[str, int]) -> None:
        group, rank = who
        if self.program.restart[group] and self.sim.find(group, rank) is not None:
            self.killed.add(f"{group}:{rank}")
            self.start(f"a restart of {who}", self.groups[group].restart(rank))

    async def do_sever(self, who: tuple[str, int], how: str) -> None:
        self.sim.sever(*who, how)

    async def do_starve(self, who: tuple[str, int], seconds: float) -> None:
        self.sim.starve(*who, seconds)

    async def do_stop(self, who: tuple[str, int], seconds: float) -> None:
        self.sim.stop(*who, seconds)

    async def do_cut(self, node: int, seconds: float) -> None:
        self.sim.cut(node, seconds)
        self.is_away(seconds)

    async def do_cut_pair(self, one: int, other: int, seconds: float) -> None:
        if one != other:
            self.sim.cut_pair(one, other, seconds)
            self.is_away(seconds)

    def is_away(self, seconds: float) -> None:
        """Networks that are away for longer than a lease, one after the other or one of them, may cost a node."""
        self.away_s += seconds
        self.node_died = self.node_died or self.away_s > 14

    async def do_kill_node(self, node: int) -> None:
        self.sim.kill_node(node)
        self.node_died = True


async def taken_or(work: Coroutine[Any, Any, None]) -> None:
    """A name may be in use."""
    try:
        await work
    except ValueError as error:
        if "exists already" not in str(error):
            raise


async def _quietly(work: Coroutine[Any, Any, Any]) -> None:
    """Its errors are noted by what it does."""
    try:
        await work
    except Exception:
        pass


def _was_closed(operation: Operation) -> bool:
    """A message that nobody had received when the program ended, and with it the group."""
    return operation.kind in ("send", "recv") and operation.error is not None and operation.error[0] == "ClosedError"


def play(seed: int, program: Program | None = None) -> Report:
    """One simulation."""
    subject.clear()
    program = program or write(seed)
    with small_limits() if program.is_small else contextlib.nullcontext({}) as settings:
        sim = SimCluster(nodes=program.nodes, seed=seed, drift=program.drift, settings=settings)
        played = Play(sim, program)
        report = Report(seed, program)
        try:
            sim.run(played.main)
        except Exception as error:
            report.violations.append(Violation("error", f"{type(error).__name__}: {error}"))
    report.turns, report.seconds = sim.scheduler.steps, sim.now
    report.log, report.digest = list(sim.scheduler.log.kept), sim.scheduler.log.digest
    book = [operation for operation in played.book if not _was_closed(operation)]
    facts = Facts(frozenset(played.killed), False, played.node_died)
    report.violations += judge(book, facts)
    report.violations += [*check(book), *judge_pool(book, program)]
    report.violations += [*played.hung, *played.views, *played.left]
    report.violations += [Violation("two", text) for text in sim.copies]
    return report

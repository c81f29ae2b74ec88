"""Plays a seed's program in a simulated cluster, and judges what its processes have noted."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any, Final

from rlinf_async import Cluster, NodePlacementStrategy, settings
from rlinf_async._simulation.scheduler import SimulationError
from rlinf_async._simulation.sim_cluster import SimCluster
from rlinf_async._simulation.small_limits import small_limits
from tests.simulation import careful, crew, fleet, subject
from tests.simulation.acts_of_calls import CallActs
from tests.simulation.acts_of_clusters import ClusterActs
from tests.simulation.acts_of_crews import CrewActs
from tests.simulation.acts_of_exchange import ExchangeActs
from tests.simulation.acts_of_experiences import ExperienceActs
from tests.simulation.acts_of_faults import FaultActs
from tests.simulation.acts_of_losses import LossActs
from tests.simulation.acts_of_methods import MethodActs
from tests.simulation.acts_of_promises import PromiseActs
from tests.simulation.acts_of_queues import QueueActs
from tests.simulation.acts_of_streams import StreamActs
from tests.simulation.acts_of_verdicts import VerdictActs, stuck_verdicts
from tests.simulation.acts_of_waiting import WaitingActs
from tests.simulation.families import CREW
from tests.simulation.invariants import check, compare_views, find_connections, find_left, judge_pool
from tests.simulation.invariants_of_clusters import (
    judge_casts,
    judge_guests,
    judge_ports,
    judge_tensors,
    judge_weights,
)
from tests.simulation.invariants_of_crews import judge_hooks, judge_returns, judge_talks
from tests.simulation.invariants_of_experiences import judge_experiences
from tests.simulation.invariants_of_methods import judge_concurrent, judge_locks
from tests.simulation.invariants_of_queues import judge_queues, judge_wavering
from tests.simulation.invariants_of_streams import judge_streams
from tests.simulation.invariants_of_waiting import judge_cleanups, judge_combinations
from tests.simulation.judgement import Facts, Violation, judge
from tests.simulation.operations import Operation
from tests.simulation.program import Program, write
from tests.simulation.stage import PATIENCE_S
from tests.simulation.subject import Subject
from tests.simulation.waiting_families import CALL_TIMEOUT_S


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


class Play(
    CallActs, ClusterActs, ExchangeActs, CrewActs, ExperienceActs, MethodActs, QueueActs, StreamActs, VerdictActs,
    LossActs, WaitingActs, PromiseActs, FaultActs,
):  # fmt: skip
    """One program."""

    async def main(self) -> None:
        self.sim.scheduler.after(_LONGEST_S, _give_up)
        loop = asyncio.get_running_loop()
        configured = {"lease_s": 20} if self.program.is_of_a_cluster or self.program.is_of_waiting else None
        async with Cluster(cluster_cfg=configured, log_to_driver=False) as cluster:
            self.cluster = cluster
            self.window = int(settings.STREAM_ITEMS())
            for name, nodes in self.program.placement.items():
                restart = self.program.restart[name]
                options = {"restart": restart, "max_restarts": 1000} if restart else {}
                if "cleanups" in self.program.families:
                    options["call_timeout"] = CALL_TIMEOUT_S
                if restart == "rank":
                    options["order"] = self.program.order
                spec = Subject.create_group()
                if name == CREW and self.program.hook:
                    cls = crew.BlockingHooked if self.program.hook_blocks else crew.Hooked
                    spec = cls.create_group(self.program.hook)
                elif name == CREW:
                    spec = crew.Crew.create_group()
                if self.program.is_of_a_cluster:
                    spec = fleet.Fleet.create_group()
                if self.program.is_of_waiting:
                    spec = careful.Careful.create_group()
                self.groups[name] = spec.launch(cluster, NodePlacementStrategy(list(nodes)), name=name, **options)
            if self.program.hook:
                crew.note_returns(self.groups[CREW], CREW)
            if self.program.is_of_a_cluster or self.program.is_of_waiting:
                for group in self.groups.values():
                    await group  # a death while it is launched fails the launch
            if ring := self.program.ring:
                rings = subject.BlockingRing if self.program.ring_blocks else subject.Ring
                self.groups["ring"] = rings.create_group().launch(
                    cluster, NodePlacementStrategy(list(ring)), name="ring", restart="rank", max_restarts=1000,
                    order=self.program.order,
                )  # fmt: skip
            if pool := self.program.pool:
                options: dict[str, Any] = {"restart": "rank", "max_restarts": 1000, "order": self.program.order}
                self.groups["pool"] = Subject.create_group().launch(
                    cluster, NodePlacementStrategy(list(pool)), name="pool",
                    **(options if self.program.pool_restarts else {}),
                )  # fmt: skip
                await self.groups["pool"]  # a death while it is launched fails the launch
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
                await self.keep_promises()
            await self.finish()
            # A dial that began while no way was there takes its time.
            quiet_since = max(self.sim.scheduler.now, self.sim.fabric.recovers_at + 10)
            await asyncio.sleep(40)  # for leases to end, and words to come
            self.left += find_connections(self.sim, quiet_since)
            self.views = compare_views(self.sim)
        await asyncio.sleep(90)  # the watch of a loop's waits looks once more, and ends
        self.left += find_left(loop, self.sim)
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

    async def finish(self) -> None:
        """Ends what waits for more than the program has given, and takes what nobody has taken."""
        subject.begin("driver", "finishing")
        await self.close_queues()
        await self.close_experiences()
        for line in [line for lines in self.lines.values() for line in lines]:
            if not line.is_closed:
                self.start(
                    f"the closing of channel {line.number}",
                    subject.follow(subject.begin("driver", "close", line.number), line.channel.close()),
                )
        await self.settle(lambda meets: meets in ("", "channel"), PATIENCE_S)
        self.drain_queues()
        for line in [line for lines in self.lines.values() for line in lines]:
            self.start(f"what is left in channel {line.number}", self.drain(line))
        await self.settle(lambda meets: meets in ("", "channel"), PATIENCE_S)
        for _, meets, task in self.tasks:
            if meets == "message" and not task.done():
                task.cancel()
        await self.settle(lambda meets: True, PATIENCE_S)


_LONGEST_S: Final = 50_000.0
"""Virtual seconds of a program; loops that look now and then would turn for ever where a launch hangs."""

_GO_ON: Final = frozenset(("methods", "streams"))
"""Families whose calm programs never stand still."""

_OF_A_CLOSE: Final = re.compile(rf"ClosedError: (group '{CREW}' (is|was) closed|{CREW}\.\w+\(\) was cancelled because)")
"""Errors of calls that the close of their group has ended, whether or not a rank was killed as well."""

_NOT_KEPT: Final = "was lost with the socket between the two processes"


def _give_up() -> None:
    raise SimulationError(f"the program has not ended within {_LONGEST_S:g} virtual seconds")


def _was_closed(operation: Operation) -> bool:
    """A message that nobody had received when the program ended, and with it the group."""
    return operation.kind in ("send", "recv") and operation.error is not None and operation.error[0] == "ClosedError"


def play(seed: int, program: Program | None = None) -> Report:
    """One simulation."""
    subject.clear()
    fleet.births.clear()
    program = program or write(seed)
    with small_limits() if program.is_small else contextlib.nullcontext({}) as settings:
        sim = SimCluster(nodes=program.nodes, seed=seed, drift=program.drift, settings=settings)
        played = Play(sim, program)
        report = Report(seed, program)
        try:
            with stuck_verdicts() as stuck:
                sim.run(played.main)
        except Exception as error:
            report.violations.append(Violation("error", f"{type(error).__name__}: {error}"))
    report.turns, report.seconds = sim.scheduler.steps, sim.now
    report.log, report.digest = list(sim.scheduler.log.kept), sim.scheduler.log.digest
    book = [operation for operation in played.book if not _was_closed(operation)]
    facts = Facts(frozenset(played.killed), False, played.node_died)
    report.violations += judge(book, facts)
    report.violations += [*check(book), *judge_pool(book, program)]
    report.violations += judge_talks(book, program, played.killed, played.node_died)
    report.violations += judge_hooks(book, program, played.node_died)
    report.violations += judge_returns(book, program, played.node_died)
    report.violations += judge_locks(book, program.is_calm, played.node_died)
    report.violations += judge_concurrent(book, program.is_calm, played.killed, played.node_died)
    report.violations += judge_streams(
        book, played.streams, played.window, program.is_calm, played.killed, played.node_died
    )
    report.violations += judge_queues(
        book, list(played.queues.values()), program.is_calm, played.killed, played.node_died
    )
    report.violations += judge_wavering(book)
    report.violations += judge_experiences(book, played.stores, played.node_died)
    report.violations += judge_casts(book, program, played.killed, played.node_died)
    report.violations += judge_tensors(book, program, played.killed, played.node_died)
    report.violations += judge_weights(book, program, played.killed)
    report.violations += judge_guests(book, played.guests, played.node_died)
    report.violations += judge_ports(book, played.killed)
    report.violations += judge_cleanups(book, played.killed)
    report.violations += judge_combinations(book, program.is_calm)
    if any(step.kind == "h_close" for step in program.steps):
        report.violations = [each for each in report.violations if not _OF_A_CLOSE.search(each.text)]
    if program.is_small:  # a socket that breaks takes with it what a link in small does not keep
        report.violations = [each for each in report.violations if _NOT_KEPT not in each.text]
    if program.is_calm and set(program.families) <= _GO_ON:
        report.violations += [Violation("verdict", f"all go on, and a word says: {verdict}") for verdict in stuck]
    report.violations += [*played.hung, *played.views, *played.left]
    # The name of a nest passes on: a node that hears nothing ends its part after another owner has the name.
    report.violations += [Violation("two", text) for text in sim.copies if f" {fleet.NEST}:" not in text]
    return report

"""Faults of ranks, nodes and the network."""

from __future__ import annotations

import asyncio

from tests.simulation import subject
from tests.simulation.families import CREW
from tests.simulation.judgement import Violation
from tests.simulation.stage import Stage


class FaultActs(Stage):
    """Faults."""

    async def do_kill(self, who: tuple[str, int]) -> None:
        if self.sim.kill(*who):
            group, rank = who
            everybody = group == CREW and self.program.restart[group] == "group"
            for each in range(len(self.program.placement[group])) if everybody else [rank]:
                self.killed.add(f"{group}:{each}")
                subject.begin("fault", "killed", f"{group}:{each}")

    async def do_t_bereaved(self, victim: int, source: int, size: int) -> None:
        if self.program.restart[CREW] is None:  # else the source may have one more broadcast with the next process
            self.start("a broadcast behind a death", self.cast_without(victim, source, size))

    async def cast_without(self, victim: int, source: int, size: int) -> None:
        """Ranks that have had a broadcast with one that dies in the next one hear of it there, and in the one after."""
        receivers = [rank for rank in range(len(self.program.placement[CREW])) if rank != source]
        nonces = [next(self.nonces) for _ in range(3)]
        for nonce in nonces:
            for ranks in (receivers, [source]):
                for rank in ranks:
                    name = f"{rank} in broadcast {nonce}"
                    self.script(name, (CREW, rank), "give_all", source, nonce, size, meets="message")
                await asyncio.sleep(1.0)
                if nonce == nonces[1] and ranks is receivers:
                    await self.do_kill((CREW, victim))
                    await asyncio.sleep(1.0)
                    self.judge_bereaved(nonce, victim)  # before the source begins
            await asyncio.sleep(15.0)
        self.judge_bereaved(nonces[2], victim)

    def judge_bereaved(self, nonce: int, victim: int) -> None:
        casts = [each for each in subject.BOOK if each.kind == "t_cast" and each.facts[0] == nonce]
        waits = [each for each in casts if not each.ended and each.who != f"{CREW}:{victim}"]
        self.hung += [Violation("death", f"{each} waits for rank {victim}") for each in waits]

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

    async def do_cut_way(self, source: int, target: int, seconds: float) -> None:
        if source != target:
            self.sim.cut_way(source, target, seconds)
            self.is_away(seconds)

    async def do_stand(self, node: int, seconds: float) -> None:
        self.sim.stop_node(node, seconds)
        self.is_away(seconds)

    def is_away(self, seconds: float) -> None:
        """Networks that are away for longer than a lease, one after the other or one of them, may cost a node."""
        self.away_s += seconds
        self.node_died = self.node_died or self.away_s > 14

    async def do_kill_node(self, node: int) -> None:
        self.sim.kill_node(node)
        self.node_died = True

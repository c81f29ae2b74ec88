"""Acts of a whole crew: conversations, broadcasts, and its close."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation import subject
from tests.simulation.families import CREW
from tests.simulation.judgement import Violation
from tests.simulation.stage import Stage


class CrewActs(Stage):
    """Conversations and broadcasts."""

    async def do_t_talk(self, one: int, other: int, plan: Any, patience: Any) -> None:
        nonce = next(self.nonces)
        self.script(f"{one} talks to {other}", (CREW, one), "talk", other, nonce, plan, meets="message")
        self.script(f"{other} listens to {one}", (CREW, other), "listen", one, nonce, patience, meets="message")

    async def do_t_farewell(self, size: int) -> None:
        nodes = self.program.placement[CREW]
        if self.program.is_calm and 0 in nodes and any(nodes):
            self.start("a rank that ends itself", self.part_from(nodes.index(max(nodes)), nodes.index(0), size))

    async def part_from(self, one: int, other: int, size: int) -> None:
        """A rank of another node ends behind a large answer and a large message, which both come."""
        nonce, group = next(self.nonces), self.groups[CREW]
        heard = subject.begin("driver", "t_heard", nonce)
        listening = asyncio.ensure_future(subject.follow(heard, group[other].hear_last(one, nonce), list))
        self.killed.add(f"{CREW}:{one}")
        subject.begin("fault", "killed", f"{CREW}:{one}")
        await group[one].farewell(other, nonce, size)
        await listening
        is_sent = any(each.kind == "t_last" and each.facts[0] == nonce and each.ended for each in subject.BOOK)
        if is_sent and heard.value != [True]:
            self.hung.append(Violation("lost", f"the last message of rank {one}: {heard}"))

    async def do_t_waver(self, one: int, other: int, seed: int) -> None:
        talks = [
            step.facts[:2] for step in self.program.steps if step.kind == "t_talk"
        ]  # whose listener may be there yet
        if self.program.is_calm and (one, other) not in talks:
            self.start(f"{other} listens to {one}, and changes its mind", self.waver_over(one, other, seed))

    async def waver_over(self, one: int, other: int, seed: int) -> None:
        """Messages come in order and none is lost, whenever receives are given up."""
        nonce, count, group = next(self.nonces), 12, self.groups[CREW]
        listening = asyncio.ensure_future(group[other].listen_wavering(one, nonce, count, seed))
        await group[one].tell(other, nonce, count)
        await asyncio.wait([listening], timeout=30.0)
        found = [each for each in subject.BOOK if each.kind == "t_wavered" and each.facts[0] == nonce]
        self.hung += [
            Violation("order", f"{one} -> {other}: {each}") for each in found if each.value != [*range(count)]
        ]

    async def do_t_cast(self, source: int, size: int) -> None:
        nonce = next(self.nonces)
        for rank in range(len(self.program.placement[CREW])):
            self.script(f"{rank} in broadcast {nonce}", (CREW, rank), "give_all", source, nonce, size, meets="message")

    async def do_h_close(self) -> None:
        operation = subject.begin("driver", "h_close")
        self.start("the close of the crew", subject.follow(operation, self.groups[CREW].close()))

    async def do_h_kill_node(self, node: int) -> None:
        self.sim.kill_node(node % self.program.nodes)
        self.node_died = True

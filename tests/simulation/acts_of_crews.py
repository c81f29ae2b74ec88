"""Acts of a whole crew: conversations, broadcasts, and its close."""

from __future__ import annotations

from typing import Any

from tests.simulation import subject
from tests.simulation.families import CREW
from tests.simulation.stage import Stage


class CrewActs(Stage):
    """Conversations and broadcasts."""

    async def do_t_talk(self, one: int, other: int, plan: Any, patience: Any) -> None:
        nonce = next(self.nonces)
        self.script(f"{one} talks to {other}", (CREW, one), "talk", other, nonce, plan, meets="message")
        self.script(f"{other} listens to {one}", (CREW, other), "listen", one, nonce, patience, meets="message")

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

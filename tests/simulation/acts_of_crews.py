"""Acts of a whole crew: conversations, broadcasts, verdicts on what waits, and its close."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.faults.judgement import Violation
from tests.simulation import subject
from tests.simulation.families import CREW
from tests.simulation.stage import Stage


class CrewActs(Stage):
    """Conversations, broadcasts and verdicts."""

    async def do_t_talk(self, one: int, other: int, plan: Any, patience: Any) -> None:
        nonce = next(self.nonces)
        self.script(f"{one} talks to {other}", (CREW, one), "talk", other, nonce, plan, meets="message")
        self.script(f"{other} listens to {one}", (CREW, other), "listen", one, nonce, patience, meets="message")

    async def do_t_cast(self, source: int, size: int) -> None:
        nonce = next(self.nonces)
        for rank in range(len(self.program.placement[CREW])):
            self.script(f"{rank} in broadcast {nonce}", (CREW, rank), "give_all", source, nonce, size, meets="message")

    async def do_v_circle(self, seconds: float) -> None:
        """All ranks wait in a circle, and the run can be asked why."""
        if not {"hooks", "messages"} & set(self.program.families):  # whose messages it would take
            self.start("a circle", self.judge_circle(seconds))

    async def judge_circle(self, seconds: float) -> None:
        members = self.groups[CREW]
        waiting = asyncio.ensure_future(
            subject.follow(subject.begin("driver", "v_wait"), members.wait_in_circle(seconds))
        )
        await asyncio.sleep(seconds / 6)
        await self.ask()  # no more: reports of simulated processes have tasks and threads of each other in them
        await waiting

    async def do_v_line(self, seconds: float) -> None:
        if not {"hooks", "messages"} & set(self.program.families):
            self.start("a line", self.judge_line(seconds))

    async def judge_line(self, seconds: float) -> None:
        """Each rank waits for the one before it, and nobody says that they stand still."""
        members = self.groups[CREW]
        waiting = asyncio.ensure_future(subject.follow(subject.begin("driver", "v_wait"), members.pass_on(seconds)))
        while not waiting.done():
            verdict = await self.ask()
            if self.is_judged() and verdict is not None and verdict.is_stuck:
                self.hung.append(Violation("verdict", f"all go on, and the verdict: {verdict}"))
                break
            await asyncio.sleep(seconds)
        await waiting

    def is_judged(self) -> bool:
        """Nothing else waits, and nothing is broken."""
        return self.program.is_calm and self.program.families == ("verdicts",)

    async def ask(self) -> Any:
        """The verdict, which has to come soon whatever has happened."""
        try:
            async with asyncio.timeout(60):
                return await self.cluster.why()
        except TimeoutError:
            self.hung.append(Violation("hang", "there is no verdict within a minute"))
        except Exception as error:
            if self.program.is_calm:
                self.hung.append(Violation("error", f"no verdict: {type(error).__name__}: {error}"))
        return None

    async def do_h_close(self) -> None:
        operation = subject.begin("driver", "h_close")
        self.start("the close of the crew", subject.follow(operation, self.groups[CREW].close()))

    async def do_h_kill_node(self, node: int) -> None:
        self.sim.kill_node(node % self.program.nodes)
        self.node_died = True

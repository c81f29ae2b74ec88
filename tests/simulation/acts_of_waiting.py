"""Acts of cleanups, of waits for several works, and of outages one behind the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from rlinf_async import Channel
from tests.simulation import subject
from tests.simulation.careful import Parts, have_tidied, wait_blocking, wait_for
from tests.simulation.families import CREW
from tests.simulation.judgement import Violation
from tests.simulation.stage import Stage
from tests.simulation.waiting_families import VISITOR, WAY_S, Part, fails_in, is_endless

_CALL_S: Final = 5.0
"""Seconds of a call between nodes that reach each other."""


class WaitingActs(Stage):
    """Cleanups, waits and outages."""

    whole_by = 0.0
    """The moment from which on all nodes have found each other again."""

    async def do_k_tidy(self, caller: Any, rank: int, method: str, first: str, clean_s: float) -> None:
        nonce = next(self.nonces)
        name, facts = f"{caller} gives a call of rank {rank} up", (rank, method, first, nonce, clean_s)
        if caller == "driver":
            self.start(name, have_tidied("driver", self.groups[CREW], *facts))
        else:
            self.script(name, caller, "have_tidied", *facts)

    async def do_k_leave(self) -> None:
        operation = subject.begin("driver", "k_leave")
        self.start("the close of the visitor", subject.follow(operation, self.groups[VISITOR].close()))

    async def do_c_wait(self, who: str, rank: int, parts: Sequence[Part], how: str, patience: float | None) -> None:
        wait = next(self.nonces)
        channel = Channel.create(f"c{wait}", cluster=self.cluster)
        name = f"wait {wait} of {who}"
        if who in ("thread", "blocking rank"):  # nobody can give it up
            fails = any(fails_in(part) is not None for part in parts)
            parts = [part for part in parts if fails or not is_endless(part)] or [("call", rank, 0.0)]
        if who == "driver":
            self.start(name, wait_for(Parts("driver", self.groups[CREW], channel, wait), parts, how, patience))
        elif who == "thread":
            of = Parts(f"driver's thread {wait}", self.groups[CREW], channel, wait)
            self.start(name, asyncio.to_thread(wait_blocking, of, parts))
        elif who == "rank":
            self.script(name, (CREW, rank), "wait_for", channel, wait, parts, how, patience)
        else:
            self.script(name, (CREW, rank), "wait_blocking", channel, wait, parts)

    async def do_o_cut(self, one: int, other: int, way: str, seconds: float) -> None:
        if way == "stand":
            self.sim.stop_node(one, seconds)
        if way in ("both", "there"):
            self.sim.cut_way(one, other, seconds)
        if way in ("both", "back"):
            self.sim.cut_way(other, one, seconds)
        self.whole_by = asyncio.get_running_loop().time() + 2 * seconds + WAY_S

    async def do_o_call(self, one: int, other: int) -> None:
        self.start(f"a call of rank {one} to rank {other}", self.call_after_outage(one, other))

    async def call_after_outage(self, one: int, other: int) -> None:
        """A call waits for its nodes to find each other, and no longer; of the driver's call of the first rank, too."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        operation = subject.begin("driver", "o_call", one, other)
        await subject.follow(operation, self.groups[CREW][one].reach(CREW, other))
        late = loop.time() - max(began, self.whole_by) - _CALL_S
        if operation.error is not None or late > 0:
            self.hung.append(Violation("whole", f"{operation}, {late:.1f} s too late"))

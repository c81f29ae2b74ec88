"""Acts of a node that is lost: each wait that needs its ranks or channels ends, and its error says whom it missed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from rlinf_async import Channel, settings
from tests.simulation import subject
from tests.simulation.families import CREW
from tests.simulation.judgement import Violation
from tests.simulation.needing import need
from tests.simulation.operations import Operation
from tests.simulation.stage import Stage

_MARGIN_S: Final = 10.0
"""Seconds in which a loss is told and acted upon, once it is certain."""

_LEASES: Final = 1.2
"""Leases until it is certain, where a node falls silent."""

_AWAY_S: Final = 120.0
_STANDS_S: Final = 1000.0
"""Seconds for which a daemon stands still: it does not come back before the end, when all have to agree on the lost."""

_ENDS: Final = ("NodeLost", "WorkerDied", "PeerLost")


class LossActs(Stage):
    """Losses of nodes."""

    async def do_n_need(self, kind: str, who: Any, rank: int) -> None:
        """Begin a wait for a rank of the node that is lost, or for a channel there."""
        operation = subject.begin("driver", "n_need", kind, who, rank)
        self.start(f"a {kind} of {who} that needs {CREW}:{rank}", self.need(operation, kind, who, rank), "loss")
        self.start(f"the end of a {kind} of {who}", self.judge_need(operation, kind, who, rank))

    async def need(self, operation: Operation, kind: str, who: Any, rank: int) -> None:
        members, nonce = self.groups[CREW], next(self.nonces)
        node = self.program.placement[CREW][rank]
        channel = Channel.create(f"n{nonce}", maxsize=1, cluster=self.cluster, node_rank=node)
        if who == "driver":
            work: Awaitable[Any] = need(kind, members, rank, channel)
        elif kind.startswith("blocking"):
            work = members[who].need_blocking(kind, rank)
        else:
            work = members[who].need(kind, rank, channel, nonce)
        await subject.follow(operation, work, str)

    async def judge_need(self, operation: Operation, kind: str, who: Any, rank: int) -> None:
        """Once the loss is told it has ended; a receive from a rank that comes back waits for what that one sends."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.loss.wait()
        await asyncio.sleep(max(self.lost_by, began + _MARGIN_S) - loop.time())
        if self.program.restart[CREW] and kind.endswith("recv"):
            await self.groups[CREW][rank].send_to(who)
            await asyncio.sleep(_MARGIN_S)
        if not operation.ended:
            self.hung.append(Violation("loss", f"{operation}, though its node is lost"))
        elif operation.error is not None:
            name, text = operation.error
            node = self.program.placement[CREW][rank]
            could_not_be_made = name == "ClosedError" and "could not be made" in text
            if not (name in _ENDS or could_not_be_made) or not ("rank" in text or f"node{node}" in text):
                self.hung.append(Violation("loss", f"{operation} does not say whom it missed"))
        elif kind != "lock" and not kind.endswith(("send", "recv", "broadcast")):
            self.hung.append(Violation("loss", f"{operation}, though its node is lost"))

    async def do_n_hold(self, rank: int) -> None:
        self.start(f"{CREW}:{rank} with its device", self.groups[CREW][rank].have_device(rank), "loss")

    async def do_n_lose(self, node: int, how: str) -> None:
        self.node_died = True
        if how == "kill":
            self.sim.kill_node(node)
        elif how == "stand":
            self.sim.stop_node(node, _STANDS_S)
        else:
            self.sim.cut(node, _AWAY_S)
        certain_s = 0.0 if how == "kill" else _LEASES * settings.LEASE_S()
        back_s = 20.0 if self.program.restart[CREW] else 0.0
        self.lost_by = asyncio.get_running_loop().time() + certain_s + back_s + _MARGIN_S
        self.loss.set()

"""Acts between workers: messages, broadcasts, channels and weights."""

from __future__ import annotations

import asyncio
from typing import Any

from rlinf_async import Channel
from tests.simulation import subject
from tests.simulation.stage import Line, Stage


class ExchangeActs(Stage):
    """Messages, channels and weights."""

    async def do_broadcast(self, source: tuple[str, int], size: int) -> None:
        everybody = [
            (group, rank) for group in self.program.placement for rank in range(len(self.program.placement[group]))
        ]
        nonce = next(self.nonces)
        for who in everybody:
            self.script(f"{who} in a broadcast", who, "broadcast_to", everybody, source, nonce, size, meets="message")

    async def do_send(
        self, source: tuple[str, int], target: tuple[str, int], size: int, times: int, blocking: bool, deadline: Any
    ) -> None:
        if source == target:
            return
        method = "send_blocking" if blocking else "send_many"
        self.script(f"the receiver of {source}", target, "recv_many", *source, times, deadline or 60.0, meets="message")
        self.script(f"the sender {source}", source, method, *target, times, size, meets="message")

    async def do_thread(self, who: tuple[str, int], name: str, times: int) -> None:
        """Another thread of the driver's, which waits for one thing after the other."""
        line = await self.find(name)
        done = [(next(self.nonces), self.numbers.next(line.number)) for _ in range(times)]
        caller = f"driver's thread {done[0][0]}"
        work = asyncio.to_thread(
            subject.call_and_put, caller, self.groups[who[0]][who[1]], f"{who[0]}:{who[1]}", line, done
        )
        self.start(caller, work, "channel")

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

    async def drain(self, line: Line) -> None:
        while True:
            operation = await subject.get_one("driver", line.channel, line.number, None)
            if operation.error is not None:
                return

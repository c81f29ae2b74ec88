"""Acts of channels with keys, bounds, batches and closes; they end by taking what is left, key by key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlinf_async import Channel
from tests.simulation import crew, subject
from tests.simulation.judgement import Violation
from tests.simulation.stage import Stage


@dataclass
class Queue:
    """A channel of a family's program.

    Attributes:
        closed: whether it was closed, and whether with what was in it.
    """

    number: int
    channel: Channel
    maxsize: int
    max_bytes: int
    keys: set[Any] = field(default_factory=set)
    is_closed: bool = False
    is_discarded: bool = False


class QueueActs(Stage):
    """Channels with keys and bounds."""

    async def do_q_open(self, name: str, maxsize: int, max_bytes: int, node: int, distributed: bool) -> None:
        options: dict[str, Any] = {"distributed": True} if distributed else {"node_rank": node % self.program.nodes}
        channel = Channel.create(name, maxsize=maxsize, max_bytes=max_bytes, cluster=self.cluster, **options)
        self.queues[name] = Queue(len(self.queues), channel, maxsize, max_bytes)

    async def do_q_put(self, who: Any, name: str, key: Any, times: int, how: str, pads: bool) -> None:
        queue = self.queues[name]
        queue.keys.add(key)
        numbers = [self.numbers.next(("queue", queue.number)) for _ in range(times)]
        facts = (queue.channel, queue.number, key, numbers, 1 + numbers[0] % 2, how, pads)
        if who == "driver":
            self.start(f"puts into queue {queue.number}", crew.insert("driver", *facts), "channel")
        else:
            self.script(f"puts of {who} into queue {queue.number}", who, "insert", *facts, meets="channel")

    async def do_q_take(self, who: Any, name: str, key: Any, times: int, how: str, amount: int) -> None:
        queue = self.queues[name]
        queue.keys.add(key)
        facts = (queue.channel, queue.number, key, times, how, amount)
        if who == "driver":
            self.start(f"takes of queue {queue.number}", crew.take("driver", *facts), "channel")
        else:
            self.script(f"takes of {who} from queue {queue.number}", who, "take", *facts, meets="channel")

    async def do_q_close(self, name: str, discard: bool) -> None:
        queue = self.queues[name]
        queue.is_closed, queue.is_discarded = True, queue.is_discarded or discard
        operation = subject.begin("driver", "q_close", queue.number, discard)
        await subject.follow(operation, queue.channel.close(discard=discard))
        crew.excuse(operation, "ClosedError")

    async def do_q_waver(self, who: Any, node: int, count: int, seed: int) -> None:
        nonce = next(self.nonces)

        async def work() -> None:
            channel = Channel.create(f"w{nonce}", cluster=self.cluster, node_rank=node % self.program.nodes)
            if who == "driver":
                await crew.waver("driver", channel, nonce, count, seed)
            else:
                await self.groups[who[0]][who[1]].waver(channel, nonce, count, seed)

        operation = subject.begin("driver", "w_begun", nonce, count)
        self.start(f"gets of {who} that are given up", subject.follow(operation, work()))

    async def close_queues(self) -> None:
        """Close them all, so that every put and take ends."""
        for name, queue in self.queues.items():
            if not queue.is_closed:
                await self.count(queue)
                self.start(f"the closing of queue {queue.number}", self.do_q_close(name, False), "channel")

    def drain_queues(self) -> None:
        for queue in self.queues.values():
            for key in sorted(queue.keys, key=str):
                how = self.random.choice(("get", "drain", "some", "batch"))
                work = crew.take("driver", queue.channel, queue.number, key, 10_000, how, 3, True)
                self.start(f"what is left of {key!r} in queue {queue.number}", work, "channel")

    async def count(self, queue: Queue) -> None:
        """What the channel says of its items agrees with each other."""
        try:
            counts = await queue.channel.stats()
        except Exception:
            return  # closed, or of a lost node
        told = counts.got + sum(counts.dropped.values()) + counts.present
        if counts.put != told:
            self.hung.append(Violation("counts", f"queue {queue.number}: {counts}"))

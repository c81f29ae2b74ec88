"""Ordinary run, a script that stands alone: greets, then sends, fills a channel and follows weights."""

from __future__ import annotations

import sys

import torch

from rlinf_async import Channel, Cluster, NodePlacementStrategy, RLinfAsyncError, Worker, wait_all
from rlinf_async.weights import follow, publish

ELEMENTS = 100_000
"""Of float32 in a message, an item and a version: more than a frame carries, so that each takes shared memory."""


class Greeter(Worker):
    def hello(self, name: str) -> str:
        print(f"rank {self._rank} says hello to {name}")
        return f"hello {name}, from rank {self._rank} of {self._world_size}"


class Trainer(Worker):
    def train(self, channel: Channel) -> float:
        batch = torch.full((ELEMENTS,), 1.0)
        self.send({"batch": batch}, "rollout", 0)
        channel.put(batch)
        with publish({"w": batch}, to="rollout") as weights:
            weights.send()
        return float(self.recv("rollout", 0))


class Rollout(Worker):
    def roll(self, channel: Channel) -> list[float]:
        sums = [float(self.recv("trainer", 0)["batch"].sum()), float(channel.get().sum())]
        held = {"w": torch.zeros(ELEMENTS)}
        with follow(held, of="trainer") as weights:
            weights.wait_version(1, timeout=30)
            sums.append(float(held["w"].sum()))
        self.send(sum(sums), "trainer", 0)
        return sums


def main() -> None:
    with Cluster(num_nodes=1) as cluster:
        greeters = Greeter.create_group().launch(cluster, NodePlacementStrategy([0] * 2))
        print(*greeters.hello("world").wait(timeout=40), sep="\n", flush=True)
        items = Channel.create("items")
        trainer = Trainer.create_group().launch(cluster, NodePlacementStrategy([0]), name="trainer")
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0]), name="rollout")
        trained, rolled = wait_all(trainer.train(items), rollout.roll(items))
        assert (trained, rolled) == ([3.0 * ELEMENTS], [[ELEMENTS] * 3]), (trained, rolled)


if __name__ == "__main__":
    try:
        main()
    except (RLinfAsyncError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")

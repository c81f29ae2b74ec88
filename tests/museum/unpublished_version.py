"""A rollout that wants version 4 of a policy whose trainer has stopped at 3."""

from __future__ import annotations

import torch

from rlinf_async import Cluster, NodePlacementStrategy, Worker, follow, publish


class Trainer(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(4, 2)
        self.weights = publish(self.model, to="rollout")

    def train(self, steps: int) -> None:
        for _ in range(steps):
            torch.nn.init.normal_(self.model.weight)
            self.weights.send()


class Rollout(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.policy = torch.nn.Linear(4, 2)
        self.weights = follow(self.policy, of="trainer")

    def rollout(self, steps: int) -> None:
        for version in range(1, steps + 1):
            if version == steps:
                print("still", flush=True)
            self.weights.wait_version(version)  # waits for the version


if __name__ == "__main__":
    with Cluster(num_nodes=1) as cluster:
        trainer = Trainer.create_group().launch(cluster, NodePlacementStrategy([0]), name="trainer")
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="rollout")
        trained = trainer.train(3)
        rollout.rollout(4).wait()  # the driver waits
        trained.wait()

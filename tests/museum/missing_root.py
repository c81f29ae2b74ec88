"""A broadcast from rank 0, which is not among the ranks that were asked to take part."""

from __future__ import annotations

import torch
import torch.distributed as dist

from rlinf_async import Cluster, NodePlacementStrategy, Worker


class Actor(Worker):
    def setup(self) -> None:
        dist.init_process_group("gloo")
        self.model = torch.nn.Linear(16, 16)

    def refresh(self) -> None:
        print("still", flush=True)
        dist.broadcast(self.model.weight.data, src=0)  # waits for the root


if __name__ == "__main__":
    with Cluster(num_nodes=1) as cluster:
        actor = Actor.create_group().launch(cluster, NodePlacementStrategy([0] * 4), name="actor")
        actor.setup().wait()
        actor[1:4].refresh().wait()  # the driver waits

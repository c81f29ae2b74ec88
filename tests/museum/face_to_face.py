"""Two ranks that exchange large tensors: both send first, more than may be under way, and neither receives."""

from __future__ import annotations

import torch

from rlinf_async import Cluster, NodePlacementStrategy, Worker


class Stage(Worker):
    def exchange(self, numbers: int) -> float:
        activations = torch.zeros(numbers)
        other = 1 - self._rank
        if self._rank == 0:
            print("still", flush=True)
            self.send(activations, "stage", other)  # rank 0 waits
        else:
            self.send(activations, "stage", other)  # rank 1 waits
        return float(self.recv("stage", other).sum())


if __name__ == "__main__":
    with Cluster(num_nodes=1) as cluster:
        stage = Stage.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="stage")
        stage.exchange(32 * 2**20).wait()  # the driver waits

"""The smallest group call: four processes, one line to reach them all.

python examples/hello.py
"""

from __future__ import annotations

from rlinf_async import Cluster, NodePlacementStrategy, Worker


class Greeter(Worker):
    def hello(self, name: str) -> str:
        return f"hello {name}, from rank {self._rank} of {self._world_size}"


if __name__ == "__main__":
    with Cluster(num_nodes=1) as cluster:
        greeters = Greeter.create_group().launch(cluster, NodePlacementStrategy([0] * 4))
        for greeting in greeters.hello("world").wait():
            print(greeting)

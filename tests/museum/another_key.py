"""A learner that asks a channel under a key that no environment puts under."""

from __future__ import annotations

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker


class Env(Worker):
    def collect(self, number: int) -> None:
        episodes = Channel.connect("episodes")
        for episode in range(number):
            episodes.put(episode, key=f"env:{self._rank}")


class Learner(Worker):
    def learn(self, ranks: int) -> list[int]:
        episodes = Channel.connect("episodes")
        print("still", flush=True)
        return [episodes.get(key=rank) for rank in range(ranks)]  # waits for an episode


if __name__ == "__main__":
    with Cluster(num_nodes=1) as cluster:
        episodes = Channel.create("episodes")
        env = Env.create_group().launch(cluster, NodePlacementStrategy([0] * 2), name="env")
        learner = Learner.create_group().launch(cluster, NodePlacementStrategy([0]), name="learner")
        env.collect(3).wait()
        learner.learn(2).wait()  # the driver waits

"""A rank that holds its interpreter in a catastrophic regular expression, for about as long as the argument says."""

from __future__ import annotations

import math
import re
import sys
import time

from rlinf_async import Channel, Cluster, NodePlacementStrategy, Worker

CATASTROPHE = re.compile(r"(a+)+$")


def seconds_of(length: int) -> float:
    begun = time.perf_counter()
    CATASTROPHE.match("a" * length + "b")
    return time.perf_counter() - begun


class Parser(Worker):
    def parse(self, seconds: float, parsed: Channel) -> None:
        if self._rank == 1:
            seconds_of(20 + math.ceil(math.log2(seconds / seconds_of(20))))
        parsed.put(self._rank)


class Learner(Worker):
    async def learn(self, parsed: Channel) -> list[int]:
        return [await parsed.get() for _ in range(3)]


if __name__ == "__main__":
    with Cluster(num_nodes=1) as cluster:
        parsed = Channel.create("parsed")
        parser = Parser.create_group().launch(cluster, NodePlacementStrategy([0] * 3), name="parser")
        learner = Learner.create_group().launch(cluster, NodePlacementStrategy([0]), name="learner")
        learned = learner.learn(parsed)
        parser.parse(float(sys.argv[1]), parsed).wait()
        assert sorted(learned.wait()[0]) == [0, 1, 2]

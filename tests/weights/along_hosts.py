"""The job of ``test_chain_over_ssh``: weights from one machine to three, which pass them on; then two are parted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rlinf_async import Cluster, NodePlacementStrategy
from tests.weights.weight_workers import Rollout, Trainer

NBYTES = 36_000_000


def main(word: Path) -> None:
    with Cluster(num_nodes=4) as cluster:
        trainer = Trainer.create_group().launch(cluster, NodePlacementStrategy([0]), name="trainer").wait_ready()
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([1, 1, 2, 3]), name="rollout")
        rollout.wait_ready()
        trainer.make_chains().wait(10)
        beginning = rollout.begin("trainer")
        trainer.begin([("rollout", rank) for rank in range(4)]).wait(60)
        beginning.wait(60)
        for seed in (1, 2, 3):
            before = trainer.sent_by_network().wait(10)[0]
            publish(trainer, rollout, seed, 60)
            print("SENT", (trainer.sent_by_network().wait(10)[0] - before) / NBYTES, flush=True)
        print("PART", flush=True)
        word.read_text()  # of the test: the machines are parted
        for seed in (4, 5, 6):
            print("SENT", sum(publish(trainer, rollout, seed, 20)) / NBYTES, flush=True)
        trainer.end().wait(10)
        rollout.end().wait(10)
    print("DONE", flush=True)


def publish(trainer: Any, rollout: Any, seed: int, timeout: float) -> list[int]:
    """Bytes that have left for each."""
    ((checksum, sent),) = trainer.publish_pattern(seed, timeout).wait(60)
    assert rollout.checksum().wait(60) == [checksum] * 4
    return list(sent)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

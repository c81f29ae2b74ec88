"""The job of ``test_schemes_over_ssh``: every scheme that reaches another machine, between two of them."""

from __future__ import annotations

import itertools
import sys
from typing import Any

from rlinf_async import Cluster, DistributedWeightSyncScheme, NodePlacementStrategy, WorkerWeightSyncScheme
from tests.weights.fragile import Fragile
from tests.weights.scheme_workers import CALLS, Rollout, Trainer

WAYS = list(itertools.product(("copy", "map"), ("state_dict", "tensordict")))


def main(address: str) -> None:
    with Cluster(num_nodes=2) as cluster:
        trainer = Trainer.create_group().launch(cluster, NodePlacementStrategy([0]), name="trainer")
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0, 1, 1]), name="rollout")
        for way in WAYS:
            scheme = WorkerWeightSyncScheme(way[1], apply=way[0])
            both = trainer.begin(scheme, "rollout", str(way)), rollout.begin(scheme, ("trainer", 0), str(way))
            check("workers", way, trainer, rollout, both)
        port = trainer.open_store(address).wait(60)[0]
        for way in WAYS:
            scheme = DistributedWeightSyncScheme(apply=way[0], strategy=way[1])
            both = trainer.begin_job(scheme, len(rollout)), rollout.begin_job(scheme, address, port)
            check("distributed", way, trainer, rollout, both)
        for kind, strategy in itertools.product(CALLS, ("state_dict", "tensordict")):
            check_calls(kind, strategy, rollout)


def check(kind: str, way: Any, trainer: Any, rollout: Any, beginning: Any) -> None:
    for call in beginning:
        call.wait(60)
    size = len(rollout)
    for version in (2, 3):
        assert trainer.send(float(version)).wait(60) == [(version, list(range(size)))]
        expect([(version, {float(version)})] * size, rollout)
    assert trainer.send_and_go_on(9.0).wait(60) == [4]
    expect([(4, {9.0})] * size, rollout)
    trainer.finish().wait(60)
    rollout.finish().wait(60)
    print("WHOLE", kind, *way, flush=True)


def check_calls(kind: str, strategy: str, rollout: Any) -> None:
    scheme_class, handles = CALLS[kind]
    scheme = scheme_class(strategy=strategy)
    workers = rollout[2:3] if kind == "module transform" else rollout
    workers.begin_called(scheme).wait(60)
    source = Fragile(4.0, width=3)
    scheme.init_on_sender("policy", **{handles: workers}, source_model=source)
    sender = scheme.get_sender()
    sender.send(timeout=60)
    expect([(1, {4.0})] * len(workers), workers)
    source.fill(5.0)
    sender.send_async()
    source.fill(99.0)
    sender.wait_async()
    expect([(2, {5.0})] * len(workers), workers)
    scheme.close()
    print("WHOLE", kind, "copy", strategy, flush=True)


def expect(wanted: Any, workers: Any) -> None:
    found = workers.look().wait(60)
    assert found == wanted, found


if __name__ == "__main__":
    main(sys.argv[1])

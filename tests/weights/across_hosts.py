"""The job of ``test_schemes_over_ssh``: the suite, and the driver's own calls, with receivers on two machines."""

from __future__ import annotations

import itertools
import sys
from typing import Any

from rlinf_async import Cluster, NodePlacementStrategy
from tests.weights.contract.claims import APART, CALLS
from tests.weights.contract.suite import ways_of
from tests.weights.contract.workers import HANDLES, KINDS, Rollout, Trainer
from tests.weights.ends import Tied


def main(address: str) -> None:
    with Cluster(num_nodes=2) as cluster:
        trainer = Trainer.create_group(address).launch(cluster, NodePlacementStrategy([0]), name="trainer")
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([0, 1, 1]), name="rollout")
        rollout.wait_ready()
        trainer.meet("rollout").wait(60)
        for way in ways_of(APART):
            (names,) = trainer.keep(way).wait(120)
            print("KEPT", way, len(names), flush=True)
        for kind, strategy in itertools.product(CALLS, ("state_dict", "tensordict")):
            check_calls(kind, strategy, rollout)


def check_calls(kind: str, strategy: str, rollout: Any) -> None:
    """From the driver."""
    scheme = KINDS[kind](strategy=strategy)
    workers = rollout[2:3] if kind == "module transform call" else rollout
    workers.begin(scheme, Tied).wait(60)
    source = Tied(4.0)
    scheme.init_on_sender("policy", **{HANDLES[kind]: workers}, source_model=source)
    sender = scheme.get_sender()
    sender.send(timeout=60)
    expect([(1, {4.0})] * len(workers), workers)
    source.fill(5.0)
    sender.send_async()
    source.fill(99.0)
    sender.wait_async()
    expect([(2, {5.0})] * len(workers), workers)
    scheme.close()
    print("CALLED", kind, strategy, flush=True)


def expect(wanted: Any, workers: Any) -> None:
    found = workers.look().wait(60)
    assert found == wanted, found


if __name__ == "__main__":
    main(sys.argv[1])

"""The pytest fixture ``simulate``, which runs a driver in simulated clusters, one for each seed.

    pytest_plugins = ["rlinf_async.testing.pytest_plugin"]      # conftest.py

    def test_a_rank_that_dies_comes_back(simulate):
        async def main(sim): ...
        simulate(main, nodes=3, seeds=range(100))

``RLINF_SIM_SEED=13`` runs every such test with only that seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest

_SEED: Final = "RLINF_SIM_SEED"

_LAST_LINES: Final = 30


@pytest.fixture
def simulate(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return ``simulate(main, nodes=1, seeds=[0], faults=None, settings=None)``.

    It runs ``main(sim)`` for each seed and returns the result of the last run.
    """

    def run(
        main: Callable[..., Any],
        *,
        nodes: int = 1,
        seeds: Iterable[int] = (0,),
        faults: Any = None,
        settings: Any = None,
    ) -> Any:
        from rlinf_async.testing import SimCluster

        only = os.environ.get(_SEED)
        result: Any = None
        for seed in seeds if only is None else (int(only),):
            sim = SimCluster(nodes=nodes, seed=seed, faults=faults, settings=settings)
            try:
                result = sim.run(main, sim)
            except Exception as error:
                # Wrong arguments of ``main`` raise before there is a scheduler.
                lines = list(sim.scheduler.log.kept)[-_LAST_LINES:] if hasattr(sim, "scheduler") else []
                command = f"{_SEED}={seed} pytest '{request.node.nodeid}'"
                error.add_note("\n".join([f"in the simulation of seed {seed}; once more: {command}", *lines]))
                raise
        return result

    return run

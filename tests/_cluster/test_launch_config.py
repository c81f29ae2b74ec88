"""What a script and a configuration together want of a run."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf_async._cluster.launch_config import check_local_nodes, trace_wanted, wanted_nodes
from rlinf_async.configuration import ClusterConfig
from rlinf_async.errors import ConfigError


@pytest.mark.parametrize(
    ("asked", "configured", "wanted"),
    [(None, None, None), (0, None, None), (3, None, 3), (None, 2, 2), (0, 2, 2), (2, 2, 2), (3, 0, 3), (0, 0, None)],
)
def test_no_number_of_nodes_and_zero_leave_it_to_the_other_and_mean_all(
    asked: int | None, configured: int | None, wanted: int | None
) -> None:
    config = None if configured is None else ClusterConfig(num_nodes=configured)
    assert wanted_nodes(asked, config) == wanted


@pytest.mark.parametrize(
    ("asked", "told"),
    [(3, "num_nodes=3, but cluster_cfg says num_nodes: 2"), (-1, "got -1"), (True, "got True"), ("2", "got '2'")],
)
def test_a_number_that_is_none_or_that_the_configuration_contradicts_is_an_error(asked: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        wanted_nodes(asked, ClusterConfig(num_nodes=2))


@pytest.mark.parametrize("count", [0, -1, "2", True, 10**12])
def test_one_machine_has_a_number_of_local_nodes(count: Any) -> None:
    with pytest.raises(ConfigError, match=f"local_nodes must be a number of nodes from 1 to 1024, got {count!r}"):
        check_local_nodes(count)


@pytest.mark.parametrize("given", [3, ""])
def test_a_trace_to_no_path_is_an_error(given: Any) -> None:
    with pytest.raises(ConfigError, match=f"trace= takes the path of a file.*got {given!r}"):
        trace_wanted(given, None, {})

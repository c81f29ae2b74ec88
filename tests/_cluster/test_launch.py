"""The end of a launch that has failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async import NodeLost
from rlinf_async._cluster.launch import _undo
from rlinf_async._core.operations import CloseGroup, ReleaseGroup
from rlinf_async.work import Work


@pytest.mark.parametrize("named", [True, False])
async def test_a_launch_that_had_its_name_is_closed_on_each_node_that_is_there(named: bool) -> None:
    asked: list[tuple[int, type]] = []

    def request(operation: Any, *, node: int) -> Work[None]:
        asked.append((node, type(operation)))
        work: Work[None] = Work()
        work._settle(error=NodeLost("lost meanwhile") if node == 0 else None)
        return work

    client: Any = SimpleNamespace(closed=None, lost_nodes={2: NodeLost("lost")}, request=request)
    placements = [SimpleNamespace(cluster_node_rank=node) for node in (0, 1, 1, 2)]
    plan: Any = SimpleNamespace(placements=placements, name="group", close_grace=1.0)
    members: Any = SimpleNamespace(has_name=named)
    await _undo(client, members, plan)
    assert sorted(asked, key=str) == [(0, CloseGroup), (0, ReleaseGroup), (1, CloseGroup)] * named

"""The places that a launch tells its workers of, and the end of a launch that has failed."""

from __future__ import annotations

import site
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async import NodeLost
from rlinf_async._cluster.launch import _surroundings, _undo
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


@pytest.mark.parametrize("python", [None, sys.executable, "/another/python"])
def test_another_interpreter_gets_the_users_places_and_none_of_this_ones_own(
    monkeypatch: pytest.MonkeyPatch, python: str | None
) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    archive = library.with_name(f"python{sys.version_info.major}{sys.version_info.minor}.zip")
    own = [str(archive), str(library), str(library / "lib-dynload"), site.getsitepackages()[0]]
    monkeypatch.setattr(sys, "path", ["/job", *own, "/lab"])
    expected = ["/job", "/lab"] if python == "/another/python" else ["/job", *own, "/lab"]
    assert _surroundings(python)["sys_path"] == expected

"""The end of a launch that has failed, and paths that belong to an interpreter."""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from rlinf_async import NodeLost
from rlinf_async._cluster.launch import _reserve, _surroundings, _undo, base_environment, reserve_now
from rlinf_async._core.operations import CloseGroup, Release, Reserve
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
    members: Any = SimpleNamespace(number=int(named))
    await _undo(client, members, plan)
    assert sorted(asked, key=str) == [(0, CloseGroup), (0, Release), (1, CloseGroup)] * named


@pytest.mark.parametrize("python", [None, sys.executable, "/other/python"])
def test_only_another_interpreter_is_spared_the_library_and_packages(
    python: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    zipped = library.with_name(f"python{sys.version_info.major}{sys.version_info.minor}.zip")
    own = [zipped, library, library / "lib-dynload", Path(sysconfig.get_path("purelib"))]
    monkeypatch.setattr(sys, "path", [str(entry) for entry in (*own, tmp_path)])
    kept = [tmp_path] if python == "/other/python" else [*own, tmp_path]
    assert _surroundings(python)["sys_path"] == [str(entry) for entry in kept]


@pytest.mark.parametrize("granted", [True, False])
def test_a_name_whose_reservation_was_interrupted_is_given_back_once_it_comes(granted: bool) -> None:
    class Interrupted(Work[int]):
        def _wait_for_thread(self, timeout: float | None) -> None:
            raise KeyboardInterrupt

    asked: list[Any] = []
    reservation = Interrupted()

    def request(operation: Any, *, node: int, what: str = "") -> Work[int]:
        asked.append(operation)
        return reservation

    client: Any = SimpleNamespace(request=request)
    with pytest.raises(KeyboardInterrupt):
        reserve_now(client, "g")
    reservation._settle(7, None if granted else ValueError("a group named 'g' exists already"))
    assert asked == [Reserve("group", "g"), *[Release("group", 7)] * granted]


async def test_a_name_whose_reservation_was_cancelled_twice_is_given_back() -> None:
    asked: list[Any] = []
    reservation: Work[int] = Work()

    def request(operation: Any, *, node: int) -> Work[int]:
        asked.append(operation)
        return reservation

    reserving = asyncio.create_task(_reserve(cast(Any, SimpleNamespace(request=request)), Mock()))
    for _ in range(2):
        await asyncio.sleep(0)
        reserving.cancel()
    await asyncio.wait([reserving])
    assert reserving.cancelled()
    reservation._settle(7)
    assert asked[1:] == [Release("group", 7)]


def test_a_copy_of_this_process_environment_leaves_out_its_place_in_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLINF_NODE_SOCKET", "/of/the/driver")
    found = base_environment({**os.environ, "A": "1"})
    assert found["A"] == "1"
    assert "RLINF_NODE_SOCKET" not in found

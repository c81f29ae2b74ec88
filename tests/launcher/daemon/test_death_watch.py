"""Questions about the end of a worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._core import frames, operations
from rlinf_launcher.daemon.death_watch import DeathWatch
from rlinf_launcher.daemon.handlers import Requester

KILLED = {"reason": "was killed by SIGKILL"}


def worker(report: Any = None, *, closing: bool = False) -> Any:
    packed = None if report is None else frames.pack(report)
    return SimpleNamespace(exit_report=packed, root=None, process=SimpleNamespace(closing=closing))


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(
    ("endpoint", "told"),
    [(None, None), (worker(), None), (worker(KILLED), KILLED), (worker(KILLED, closing=True), None)],
    ids=["unknown", "alive", "killed", "closed"],
)
async def test_only_an_unexpected_end_has_a_report(endpoint: Any, told: Any, replaced: bool) -> None:
    tables: list[dict[int, Any]] = [{}, {}]
    if endpoint is not None:
        tables[replaced][7] = endpoint
    router: Any = SimpleNamespace(endpoints=tables[0], replaced=tables[1])
    assert await DeathWatch(router).how_ended(Requester(0, 1), operations.HowEnded(7)) == told

"""The way to a channel's queues: what waits until the place of its key is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._channels.replicas import Replicas
from rlinf_async.work import Work


@pytest.mark.parametrize("nodes", [[0], [0, 1]])
async def test_what_is_asked_by_the_callback_of_a_held_request_comes_behind_the_others(nodes: list[int]) -> None:
    answer: Work[int] = Work()
    replicas = Replicas(SimpleNamespace(node=0, user_loop=None, request=lambda *_, **__: answer))  # type: ignore[arg-type]
    requests = [SimpleNamespace(key=b"k", number=number) for number in range(3)]
    started = []

    def start(request: Any) -> None:
        started.append(request.number)
        if request.number == 0:
            replicas.start(requests[2])  # type: ignore[arg-type]

    replicas._queue = lambda node: SimpleNamespace(start=start)  # type: ignore[assignment,return-value]
    for request in requests[:2]:
        replicas.start(request)  # type: ignore[arg-type]
    replicas.open({"nodes": nodes, "number": 1, "name": "obs"})
    answer._settle(0)
    assert started == [0, 1, 2]
    await replicas.pinned()

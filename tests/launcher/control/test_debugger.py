"""The session of `rlinf-ctl debug`, without a terminal."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from rlinf_async._core import frames
from rlinf_launcher.control.debugger import _Session


async def test_ranks_of_a_lost_node_end_the_session() -> None:
    attachment: Any = SimpleNamespace(deadline=0.0, lost=asyncio.get_running_loop().create_future())
    here, far = (SimpleNamespace(endpoint=frames.endpoint(node, 7), name=f"rollout:{node}") for node in (0, 1))
    session = _Session(attachment, [here, far])  # type: ignore[list-item]
    attachment.on_event("node_lost", {"node": 1, "name": "gpu01", "reason": "it is silent"})
    assert session._news.is_set()
    assert session._dialogue.asked == {here.endpoint}
    assert session._dialogue.take_answers() == "[rollout:1]\nrollout:1 is gone with gpu01: it is silent\n"

"""Calls with an argument for each rank, of which some are away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rlinf_async._client.client import NodeClient
from rlinf_async._client.reply_handler import NOWHERE


def test_a_rank_that_is_away_keeps_no_argument_from_the_others() -> None:
    sent: list[Any] = []
    client: Any = SimpleNamespace(
        endpoint=1,
        send=lambda frame, fds, later: sent.append((frame[3], frame[-1])),
        _begin=lambda handler, held: (7, [NOWHERE, 11, 12]),
        _direct_calls=SimpleNamespace(open=lambda *_: ([], [0, 1, 2])),
        _departed=lambda *_: None,
    )
    handler: Any = None
    NodeClient.call_each(client, handler, "step", [(b"a", ()), (b"b", ()), (b"c", ())], held=[0])
    assert sent == [([[0, [11, 1]]], b"b"), ([[0, [12, 2]]], b"c")]

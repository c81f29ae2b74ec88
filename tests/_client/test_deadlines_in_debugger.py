"""From when on a deadline counts while ranks stand in the debugger."""

from __future__ import annotations

import pytest

from rlinf_async._client.events import Events
from rlinf_async._core import clock


def test_a_deadline_begins_anew_when_the_last_rank_has_left_the_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    events = Events()

    def stand(endpoint: int, where: str) -> None:
        events.announce("debugger", {"endpoint": endpoint, "where": where})

    assert events.counts_from(90) == 90
    for endpoint in (1, 2):
        stand(endpoint, "t.py:3 in f()")
    now = 150.0
    assert events.counts_from(90) == 150
    stand(1, "")
    assert events.counts_from(90) == 150, "another one stands there"
    now = 160.0
    stand(2, "")
    now = 200.0
    assert events.counts_from(90) == 160
    assert events.counts_from(170) == 170, "it has begun since"

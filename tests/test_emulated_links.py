"""Departure times of messages over an emulated link, by a stopped clock."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._client import emulated_links
from rlinf_async._client.emulated_links import EmulatedLinks
from rlinf_async._messaging.state.emulated_delay import NetEmulation
from rlinf_async.configuration import NetEmulationConfig
from rlinf_async.work import Work

NETWORK = {
    "enabled": True,
    "crossdc_pairs": [{"src": ["thin"], "dst": ["far"], "delay_ms": 10}],
    "bandwidth_groups": [{"members": ["thin"], "bandwidth_mbps": 80}],
}
TENTH = 1_000_000
"""Bytes that the line carries in 0.1 s."""


class StoppedClient:
    """A client whose questions are answered by the test, and whose time goes on when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked: list[Work[Any]] = []
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def request(self, operation: Any, **place: Any) -> Work[Any]:
        self.asked.append(Work())
        return self.asked[-1]

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._timers.append((self.now + seconds, callback))

    def go_on(self, until: float) -> None:
        for due, callback in sorted(self._timers, key=lambda timer: timer[0]):
            if due <= 100.0 + until + 1e-9:
                self._timers.remove((due, callback))
                self.now = max(self.now, due)
                callback()
        self.now = 100.0 + until


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> StoppedClient:
    client = StoppedClient()
    monkeypatch.setattr(emulated_links, "clock", SimpleNamespace(monotonic=lambda: client.now))
    return client


@pytest.fixture
def sent(client: StoppedClient) -> list[tuple[int, float]]:
    """What has left, and when; two messages are sent at 0."""
    config = NetEmulationConfig.from_cfg(NETWORK)
    assert config is not None
    links, sent = EmulatedLinks(client, NetEmulation(config), "thin:0"), []  # type: ignore[arg-type]
    for number in range(2):
        links.send("link", ["far:0"], TENTH, lambda number=number: sent.append((number, round(client.now - 100, 6))))  # type: ignore[misc]
    return sent


def test_on_a_free_line_the_question_is_part_of_the_wait(client: StoppedClient, sent: list[tuple[int, float]]) -> None:
    client.go_on(0.03)
    client.asked[0]._settle(0.1)
    client.go_on(0.2)
    assert sent == [(0, 0.11)]


def test_on_a_taken_line_nothing_is_early_however_long_the_question_took(
    client: StoppedClient, sent: list[tuple[int, float]]
) -> None:
    client.asked[0]._settle(0.1)
    client.go_on(0.05)
    client.asked[1]._settle(0.15)  # asked at 0, and answered by a daemon that was busy until 0.05
    client.go_on(0.5)
    assert sent == [(0, 0.11), (1, 0.21)]


def test_what_was_sent_first_leaves_first_whosever_answer_comes_first(
    client: StoppedClient, sent: list[tuple[int, float]]
) -> None:
    client.asked[1]._settle(0.1)
    client.go_on(0.5)
    assert sent == []
    client.asked[0]._settle(0.2)
    client.go_on(1.0)
    assert [number for number, _ in sent] == [0, 1]


def test_without_node_0_the_lines_carry_at_once(client: StoppedClient, sent: list[tuple[int, float]]) -> None:
    for asked in client.asked:
        asked._settle(error=OSError("node 0 is lost"))
    client.go_on(0.01)
    assert sent == [(0, 0.01), (1, 0.01)]

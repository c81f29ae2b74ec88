"""Health of the links to a peer."""

from __future__ import annotations

from rlinf_async._messaging.peer import LinkHealth


def test_a_link_is_abandoned_once_after_three_failures_unless_a_message_got_through() -> None:
    health, proven = LinkHealth(), LinkHealth()
    proven.is_proven = True
    assert [(health.fail(), health.is_good) for _ in range(4)] == [
        (False, True), (False, True), (True, False), (False, False)
    ]  # fmt: skip
    assert [(proven.fail(), proven.is_good) for _ in range(4)] == [(False, True)] * 4

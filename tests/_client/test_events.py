"""Listeners of daemon events: registration, delivery, lifetime."""

from __future__ import annotations

from typing import Any

from rlinf_async._client.events import Events


class Listener:
    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    def hear(self, facts: dict[str, Any]) -> None:
        self.heard.append(facts)


def test_every_listener_of_a_kind_hears_and_no_other() -> None:
    heard: list[Any] = []
    events, listener = Events(), Listener(heard)
    events.on("died", heard.append)
    events.listen("died", listener.hear)
    events.on("node_lost", lambda facts: heard.append("of another kind"))
    events.announce("died", {"rank": 1})
    assert heard == [{"rank": 1}, {"rank": 1}]


def test_a_bound_method_is_forgotten_with_its_object() -> None:
    heard: list[Any] = []
    events, listener = Events(), Listener(heard)
    events.listen("died", listener.hear)
    del listener
    assert events._while_alive == {"died": {}}  # whether or not anything is announced
    events.announce("died", {"rank": 1})
    assert heard == []

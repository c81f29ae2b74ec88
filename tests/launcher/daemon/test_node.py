"""A daemon's own words about the nodes that it cannot reach."""

from __future__ import annotations

from rlinf_async.errors import NodeLost
from rlinf_launcher.daemon.node import _leaves


def test_of_links_that_fail_at_once_each_reason_is_told() -> None:
    one, two, three = (NodeLost(name) for name in ("one", "two", "three"))
    assert _leaves(ExceptionGroup("all", [ExceptionGroup("some", [one, two]), three])) == [one, two, three]

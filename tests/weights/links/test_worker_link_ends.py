"""Ends of links between workers that are dropped, are used in a forked process, or have different names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rlinf_async import Cluster
from tests.weights.dropping_workers import End
from tests.weights.weight_workers import Launch

pytestmark = pytest.mark.shared_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(num_nodes=2, local_nodes=2, log_to_driver=False) as cluster:
        yield cluster


@pytest.fixture(params=[0, 1], ids=["near", "far"])
def ends(launch: Launch, request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A sender, and a receiver on the same node or on another one."""
    return launch(End, "senders", 0), launch(End, "receivers", request.param)


def deliver(sender: Any, receiver: Any, version: int, value: float) -> None:
    receiving = receiver.receive(version)
    sender.publish(value).wait(30)
    assert receiving.wait(30) == [value]


def test_a_pair_that_is_dropped_leaves_nothing_and_each_process_warns_once(ends: Any) -> None:
    sender, receiver = ends
    deliver(sender, receiver, 1, 3.0)  # what the processes keep from the first one on
    sender.close_end().wait(30)
    receiver.close_end().wait(30)
    sender.look().wait(30)
    receiver.look().wait(30)
    posted = [end.posted().wait(10) for end in ends]
    deliver(sender, receiver, 1, 4.0)
    assert sender.drop().wait(30) == [(["unclosed publisher of 'policy': close() it, or its scheme"], [])]
    (heard,) = receiver.end().wait(30)
    assert heard.startswith("ClosedError: rank 0 of group 'senders'"), heard
    assert "has closed its end of the link" in heard
    assert receiver.drop().wait(30) == [(["unclosed subscriber of 'policy': close() it, or its scheme"], [])]
    assert [end.posted().wait(10) for end in ends] == posted
    deliver(sender, receiver, 1, 5.0)


def test_a_receiver_is_of_no_use_in_a_forked_process_and_the_parents_goes_on(ends: Any) -> None:
    sender, receiver = ends
    deliver(sender, receiver, 1, 3.0)
    (found,) = receiver.use_in_child().wait(30)
    *refused, closed = found
    (pid,) = receiver.pid().wait(10)
    assert [text.partition(" belongs to ")[0] for text in refused] == [
        "ForkedProcessError: the receiver of 'policy'"
    ] * 2
    assert all(f"process {pid}" in text for text in refused)
    assert closed == "None"
    deliver(sender, receiver, 2, 4.0)


def test_where_the_names_differ_each_sides_error_names_the_others(ends: Any) -> None:
    sender, receiver = ends
    missing = receiver.miss("receiver", "policy")
    (told,) = sender.miss("sender", "actor").wait(30)
    (heard,) = missing.wait(30)
    assert "which has weights of 'policy' and none of 'actor'" in told
    assert "which has weights of 'actor' and none of 'policy'" in heard

"""The ledger of a queue: put = got + dropped + present, whatever happens."""

from __future__ import annotations

import random

import pytest

from rlinf_async._channels.state.channel_keys import canonical_key, key_of
from rlinf_async._channels.state.queue import Queue
from rlinf_async._channels.state.queue_counts import DISCARDED, QueueCounts


def closed(counts: QueueCounts) -> bool:
    return counts.put == counts.got + sum(counts.dropped.values()) + counts.present


def test_an_item_is_present_until_its_consumer_has_it() -> None:
    queue = Queue()
    queue.put(1, 1, b"a", body=b"")
    queue.put(1, 2, b"b", body=b"")
    queue.get(2, 1, b"a")
    assert queue.counts().keys == {b"a": (1, 0, 1), b"b": (1, 0, 1)}
    queue.taken(2, [(1, 1)])
    counts = queue.counts()
    assert (counts.put, counts.got, counts.present, counts.dropped) == (2, 1, 1, {})
    assert counts.keys == {b"b": (1, 0, 1)}


def test_what_a_dead_consumer_held_is_present_again() -> None:
    queue = Queue()
    queue.put(1, 1, b"", body=b"")
    queue.get(2, 1, b"")
    queue.drop(2)
    assert (queue.counts().got, queue.counts().present) == (0, 1)


def test_what_is_discarded_is_dropped_with_its_reason_and_what_is_leased_is_got() -> None:
    queue = Queue()
    for number in range(1, 6):
        queue.put(1, number, b"", body=b"")
    queue.get(2, 1, b"", target=2, counted=True)  # leased
    queue.get(2, 2, b"", target=9, counted=True)  # gathers the other three
    queue.close(discard=True)
    counts = queue.counts()
    assert (counts.put, counts.got, counts.dropped, counts.present) == (5, 2, {DISCARDED: 3}, 0)


@pytest.mark.parametrize("seed", range(50))
def test_the_ledger_is_closed_at_every_moment(seed: int) -> None:
    choose = random.Random(seed)
    queue = Queue(maxsize=choose.choice([0, 2]))
    numbers = dict.fromkeys(range(4), 1)
    for _ in range(300):
        who, key = choose.randrange(4), choose.choice([b"a", b"b", b"c"])
        action = choose.choice(["put", "put", "get", "batch", "lease", "read", "taken", "confirm", "cancel", "drop"])
        if action in ("put", "get", "batch", "lease", "read"):
            number, numbers[who] = numbers[who], numbers[who] + 1
        if action == "put":
            queue.put(who, number, key, body=b"", nbytes=1)
        elif action == "get":
            queue.get(who, number, key, nowait=choose.random() < 0.3)
        elif action == "batch":
            queue.get(who, number, key, target=choose.randrange(1, 4), counted=True)
        elif action == "lease":
            queue.get(who, number, key, target=choose.randrange(1, 4), counted=True, lease_s=1.0)
        elif action == "read":
            queue.get(who, number, key, target=3, counted=True, partly=True, stepwise=True)
        elif action == "confirm":
            queue.confirm(who, choose.randrange(1, numbers[who] + 1), choose.randrange(1, 3), [])
        elif action == "taken":
            queue.taken(who, [(choose.randrange(1, numbers[who] + 1), choose.randrange(4))])
        elif action == "cancel":
            queue.cancel(who, choose.randrange(1, numbers[who] + 1))
        elif choose.random() < 0.1:
            queue.drop(who, is_lost=choose.random() < 0.5)
            numbers[who] = 1
        assert closed(queue.counts())
    queue.close(discard=True)
    assert closed(queue.counts())
    assert queue.counts().present == 0


def test_queues_of_several_nodes_add_up() -> None:
    parts = [QueueCounts(5, 2, {"x": 1}, 2, {b"a": (2, 0, 2)}), QueueCounts(1, 1, {}, 0), QueueCounts(1, 0, {"x": 1})]
    whole = QueueCounts.of([part.to_data() for part in parts])
    assert whole == QueueCounts(7, 3, {"x": 2}, 2, {b"a": (2, 0, 2)})


@pytest.mark.parametrize(
    "key", ["text", "", 0, -3, 2**70, 1.5, None, b"bytes", (1, "a", (2, b"")), frozenset({1, "x"}), "\udc80"]
)
def test_a_key_is_shown_as_it_was_given(key: object) -> None:
    assert key_of(canonical_key(key)) == key

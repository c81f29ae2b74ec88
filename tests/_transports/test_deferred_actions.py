"""Deferred actions: order, and no lock held while they run."""

from __future__ import annotations

import threading

import pytest

from rlinf_async._transports.deferred_actions import DeferredActions


def test_what_is_added_is_done_in_order_without_the_lock_also_what_that_adds() -> None:
    deferred, done = DeferredActions(), []

    def first() -> None:
        with deferred.locked():  # which would stand still if the lock were held
            deferred.add(lambda: done.append(3))
        done.append(1)

    with deferred.locked():
        deferred.add(first)
        deferred.add(lambda: done.append(2))
        assert done == []
    assert done == [1, 2, 3]


def test_another_thread_does_not_overtake() -> None:
    deferred, done = DeferredActions(), []
    started, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        go_on.wait(5)
        done.append("slow")

    def decide() -> None:
        with deferred.locked():
            deferred.add(slow)

    thread = threading.Thread(target=decide)
    thread.start()
    assert started.wait(5)
    with deferred.locked():
        deferred.add(lambda: done.append("fast"))
    assert done == []
    go_on.set()
    thread.join(5)
    assert done == ["slow", "fast"]


def test_what_was_decided_before_an_error_is_done() -> None:
    deferred, done = DeferredActions(), []

    def decide() -> None:
        with deferred.locked():
            deferred.add(lambda: done.append(1))
            raise ValueError("twice")

    with pytest.raises(ValueError, match="twice"):
        decide()
    assert done == [1]


def test_what_stands_behind_an_action_that_is_interrupted_is_done_all_the_same() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    deferred, done = DeferredActions(), []

    def decide() -> None:
        with deferred.locked():
            deferred.add(interrupt)
            deferred.add(lambda: done.append(1))

    with pytest.raises(KeyboardInterrupt):
        decide()
    assert done == [1]

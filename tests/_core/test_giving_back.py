"""Sends wait for what was given back before them."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from rlinf_async._core.giving_back import GivingBack


def test_a_send_waits_for_what_was_open_before_it_and_for_nothing_after_it() -> None:
    giving_back, sent = GivingBack(), list[str]()
    giving_back.open["queue", 1] = None
    giving_back.enqueue(partial(sent.append, "first"))
    giving_back.open["queue", 2] = None
    giving_back.enqueue(partial(sent.append, "second"))
    giving_back.confirmed("other", 1)
    assert sent == []
    giving_back.confirmed("queue", 1)
    assert sent == ["first"]
    giving_back.confirmed("queue", 2)
    assert sent == ["first", "second"]


def test_no_send_overtakes_an_earlier_one() -> None:
    giving_back, sent = GivingBack(), list[str]()
    giving_back.open["queue", 1] = None

    def send_first() -> None:
        giving_back.enqueue(partial(sent.append, "second"))
        sent.append("first")

    giving_back.enqueue(send_first)
    giving_back.confirmed("queue", 1)
    assert sent == ["first", "second"]
    assert not giving_back.held


class InterruptedLock:
    """A lock after whose release a signal handler raises, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_interrupted = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if not self._is_interrupted:
            self._is_interrupted = True
            raise TimeoutError


def test_a_signal_handler_that_raises_before_a_send_holds_up_none() -> None:
    giving_back, sent = GivingBack(), list[str]()
    giving_back.open["queue", 1] = None
    giving_back.enqueue(partial(sent.append, "first"))
    lock: Any = InterruptedLock()
    giving_back._lock = lock
    with pytest.raises(TimeoutError):
        giving_back.confirmed("queue", 1)
    giving_back.enqueue(partial(sent.append, "second"))
    assert sent == ["first", "second"]


def test_a_queue_that_has_ended_holds_nothing_up() -> None:
    giving_back, sent = GivingBack(), list[str]()
    giving_back.open["ended", 1] = giving_back.open["other", 1] = None
    giving_back.enqueue(partial(sent.append, "answer"))
    giving_back.forget("ended")
    assert sent == []
    giving_back.forget()
    assert sent == ["answer"]

"""Sends wait for what was given back before them."""

from __future__ import annotations

from functools import partial

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


def test_a_queue_that_has_ended_holds_nothing_up() -> None:
    giving_back, sent = GivingBack(), list[str]()
    giving_back.open["ended", 1] = giving_back.open["other", 1] = None
    giving_back.enqueue(partial(sent.append, "answer"))
    giving_back.forget("ended")
    assert sent == []
    giving_back.forget()
    assert sent == ["answer"]

"""Coalescing of replies of one group call."""

from __future__ import annotations

from typing import Any

from rlinf_async._core import frames
from rlinf_async._core.frames import Status
from rlinf_launcher.daemon.reply_coalescing import ReplyCoalescing


def reply(slot: int, status: Status = Status.OK, call: int = 7) -> Any:
    return (frames.REPLY, 0, 2, 1, call, slot, int(status), b"")


def test_answers_wait_for_the_last_one() -> None:
    gathering = ReplyCoalescing()
    gathering.expect(1, 7, 3)
    assert gathering.answer(reply(2), []) == []
    assert gathering.answer(reply(0), [5]) == []
    assert gathering.answer(reply(1), []) == [(reply(2), []), (reply(0), [5]), (reply(1), [])]
    assert len(gathering) == 0


def test_a_failure_lets_everything_go_and_what_follows_too() -> None:
    gathering = ReplyCoalescing()
    gathering.expect(1, 7, 3)
    gathering.answer(reply(2), [])
    assert gathering.answer(reply(0, Status.ERROR), []) == [(reply(2), []), (reply(0, Status.ERROR), [])]
    assert gathering.answer(reply(1), []) == [(reply(1), [])]


def test_what_has_waited_long_enough_goes_without_the_others() -> None:
    gathering = ReplyCoalescing()
    gathering.expect(1, 7, 3)
    gathering.expect(1, 8, 2)
    gathering.answer(reply(2), [])
    assert gathering.release() == [(reply(2), [])]
    assert gathering.release() == []
    assert gathering.answer(reply(0), []) == [(reply(0), [])]
    assert gathering.answer(reply(0, call=8), []) == []


def test_a_death_frees_what_waited_for_the_dead() -> None:
    gathering = ReplyCoalescing()
    gathering.expect(1, 7, 2)
    gathering.answer(reply(0), [])
    assert gathering.forget(1, 7) == [(reply(0), [])]
    assert gathering.forget(1, 7) == []


def test_a_call_of_one_rank_never_waits() -> None:
    assert ReplyCoalescing().answer(reply(0), []) == [(reply(0), [])]


def test_an_answer_that_took_another_way_is_not_waited_for() -> None:
    gathering = ReplyCoalescing()
    gathering.expect(1, 7, 3)
    assert gathering.skip(1, 7) == []
    assert gathering.answer(reply(1), []) == []
    assert gathering.skip(1, 7) == [(reply(1), [])]
    assert gathering.skip(1, 7) == []
    assert len(gathering) == 0

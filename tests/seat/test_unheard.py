"""An error is told unless it was heard, in whichever order the two come."""

from __future__ import annotations

from typing import Any

from rlinf_async.seat.unheard import Unheard


def test_a_failure_is_told_and_taken_back_once_it_is_heard() -> None:
    told: list[tuple[str, Any]] = []
    unheard = Unheard(lambda operation, arguments: told.append((operation, arguments["key"])))
    unheard.failed("call 1", "rank 0 raised ValueError")
    unheard.heard("call 1")
    assert told == [("failed", "call 1"), ("heard", "call 1")]


def test_what_was_heard_first_is_never_told() -> None:
    told: list[str] = []
    unheard = Unheard(lambda operation, arguments: told.append(operation))
    unheard.heard("death of rank 0")
    unheard.failed("death of rank 0", "rank 0 was killed")
    assert told == []

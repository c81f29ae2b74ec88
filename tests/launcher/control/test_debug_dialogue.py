"""The operator's side of a debugger of several ranks: who is asked, and how answers are shown."""

from __future__ import annotations

import pytest

from rlinf_launcher.control.debug_dialogue import Dialogue

A, B, C = 1, 2, 3


@pytest.fixture
def three() -> Dialogue:
    return Dialogue({A: "rollout:0", B: "rollout:1", C: "rollout:2"})


def test_equal_answers_are_shown_once_with_their_ranks(three: Dialogue) -> None:
    for rank, text in [(A, "5\n"), (B, "6\n"), (C, "5\n")]:
        three.on_message(rank, "stopped", text)
    assert three.take_answers() == "[rollout:0,2]\n5\n[rollout:1]\n6\n"
    assert three.take_answers() == ""
    assert three.prompt == "(rollout:0-2) "


def test_a_line_goes_to_those_that_are_stopped(three: Dialogue) -> None:
    three.on_message(A, "stopped", "")
    three.on_message(B, "waiting", "rollout:1 is idle\n")
    assert three.prompt == "(rollout:0) "
    assert three.ask() == [A]
    assert (three.stopped, three.asked) == (set(), {A, B, C})
    assert three.ask() == []


def test_it_is_over_when_no_rank_is_left(three: Dialogue) -> None:
    three.on_message(A, "ended", "")
    three.on_message(B, "refused", "rollout:1 is being debugged by another operator\n")
    assert not three.is_over
    three.on_message(C, "ended", "")
    assert three.is_over
    assert not three.was_reached
    assert "[rollout:0]\nrollout:0 has ended\n" in three.take_answers()
    three.on_message(C, "stopped", "late")
    assert (three.is_over, three.take_answers()) == (True, "")


def test_a_rank_that_has_said_nothing_is_named(three: Dialogue) -> None:
    three.on_message(A, "stopped", "")
    three.on_message(B, "waiting", "it is in C\n")
    three.name_silent()
    assert "rollout:2 has not answered" in three.take_answers()


def test_a_single_ranks_answers_have_no_title_and_move_no_cursor() -> None:
    one = Dialogue({A: "rollout:0"})
    one.on_message(A, "stopped", "\x1b[2Jgone\n")
    assert one.take_answers() == "gone\n"

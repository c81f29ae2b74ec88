"""Table of waits: marks that are due, each group of waits reported once."""

from __future__ import annotations

from rlinf_async._core.wait_table import FOREVER, WaitTable

MARKS = (60.0, 300.0, 1800.0)


def test_a_row_is_due_once_for_each_mark_that_it_passes() -> None:
    table = WaitTable()
    table.rows["a"] = ("step()", 100.0)
    assert table.due(159.9, MARKS) == []
    assert table.next_due(MARKS) == 160.0
    assert table.due(160.0, MARKS) == [("a", "step()", 100.0, 1)]
    assert table.count_warning("a", "train.py:1", 1, 3)
    assert table.due(161.0, MARKS) == []
    assert table.next_due(MARKS) == 400.0
    assert table.due(2000.0, MARKS) == [("a", "step()", 100.0, 3)]
    assert table.count_warning("a", "train.py:1", 3, 3)
    assert table.next_due(MARKS) == FOREVER


def test_the_next_word_is_of_whichever_row_comes_first() -> None:
    table = WaitTable()
    table.rows["old"] = ("old", 0.0)
    table.rows["new"] = ("new", 50.0)
    ((key, *_),) = table.due(60.0, MARKS)
    table.count_warning(key, "here", 1, 3)
    assert table.next_due(MARKS) == 110.0


def test_a_wait_that_has_ended_is_never_due() -> None:
    table = WaitTable()
    table.rows["a"] = ("step()", 0.0)
    table.rows.pop("a")
    assert table.due(1e9, MARKS) == []
    assert table.next_due(MARKS) == FOREVER


def test_words_that_were_said_of_waits_which_ended_are_not_said_again_at_their_place_but_the_last_always_is() -> None:
    table = WaitTable()
    table.rows["first"] = ("step()", 0.0)
    assert table.count_warning("first", "train.py:1", 1, 3)
    table.rows.pop("first")
    table.rows["second"] = ("step()", 1000.0)
    table.rows["elsewhere"] = ("step()", 1000.0)
    assert len(table.due(1060.0, MARKS)) == 2
    assert not table.count_warning("second", "train.py:1", 1, 3)
    assert table.count_warning("elsewhere", "train.py:9", 1, 3)
    assert table.count_warning("second", "train.py:1", 2, 3)
    assert table.count_warning("second", "train.py:1", 3, 3)
    table.rows.pop("second")
    assert table.due(1e4, MARKS) == [("elsewhere", "step()", 1000.0, 3)]
    assert table.count_warning("third", "train.py:1", 3, 3)


def test_a_cleared_table_says_nothing() -> None:
    table = WaitTable()
    table.rows["a"] = ("step()", 0.0)
    table.clear()
    assert table.due(1e9, MARKS) == []

"""The page in which a process notes what it has taken out of queues."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from rlinf_async._core.segment import close_fds
from rlinf_async._core.taken_page import NOTES, TakenPage


def new_pages() -> tuple[TakenPage, TakenPage]:
    """Return a daemon's and a process's."""
    theirs, fds = TakenPage.make()
    ours = TakenPage.of(fds)
    assert theirs is not None
    assert ours is not None
    return theirs, ours


def test_a_daemon_reads_what_a_killed_process_has_noted() -> None:
    theirs, ours = new_pages()
    pid = os.fork()
    if not pid:
        ours.note(1 << 32, 7, 3, 2)
        ours.note(1 << 32, 7, 4, 1)
        ours.note(0, 7, 5, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert theirs.read() == {(1 << 32, 7): [(3, 2), (4, 1)], (0, 7): [(5, 1)]}


def test_the_latest_notes_stand() -> None:
    theirs, ours = new_pages()
    for get in range(1, NOTES + 4):
        ours.note(0, 7, get, 1)
    assert sorted(theirs.read()[0, 7]) == [(get, 1) for get in range(4, NOTES + 4)]


def test_a_note_that_was_not_finished_says_nothing() -> None:
    """Not of the get whose note stood there before either, under another channel."""
    theirs, ours = new_pages()

    class Killed(Exception):
        pass

    class Words:
        def __init__(self, left: int) -> None:
            self.left = left

        def __setitem__(self, at: int, value: int) -> None:
            if not self.left:
                raise Killed
            self.left -= 1
            words[at] = value

    words: Any = ours._words
    for left in range(5):
        for _ in range(NOTES):
            ours.note(0, 7, 3, 1)
        ours._words = Words(left)  # type: ignore[assignment]
        with pytest.raises(Killed):
            ours.note(0, 8, 4, 1)
        ours._words = words
        assert theirs.read().keys() == {(0, 7)}


def test_without_a_descriptor_there_is_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(24, "no more files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert TakenPage.make() == (None, [])
    assert TakenPage.of([]) is None


def test_what_is_no_page_is_closed() -> None:
    near, far = os.pipe()
    assert TakenPage.of([near]) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(near)
    close_fds([far])

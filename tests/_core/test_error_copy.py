"""Copies of kept exceptions: what they share with the original, and what they do not."""

from __future__ import annotations

import gc
import weakref

import pytest

from rlinf_async._core.error_copy import copy_of
from rlinf_async.errors import NodeLost, WorkerDied


class Picky(Exception):
    """Cannot be made of its ``args``."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port}")
        self.port = port


def caused(error: BaseException, cause: BaseException) -> BaseException:
    with pytest.raises(type(error)) as raised:
        raise error from cause
    return raised.value


@pytest.mark.parametrize("error", [NodeLost("node 2 is lost"), WorkerDied("rank 3 died"), Picky("node02", 22)])
def test_a_copy_has_text_facts_notes_and_cause_of_the_original(error: BaseException) -> None:
    cause = OSError("no route to host")
    error.add_note("try again")
    found = copy_of(caused(error, cause))
    assert type(found) is type(error)
    assert found is not error
    assert str(found) == str(error)
    assert found.args == error.args
    assert {**vars(found), "__notes__": None} == {**vars(error), "__notes__": None}
    assert found.__notes__ == ["try again"]
    assert found.__cause__ is cause
    assert found.__suppress_context__


def test_notes_that_a_copy_collects_are_its_own() -> None:
    error = NodeLost("node 2 is lost")
    error.add_note("at first")
    copy_of(error).add_note("on the way of one waiter")
    assert error.__notes__ == ["at first"]


def test_an_original_holds_no_frame_that_a_copy_was_raised_through() -> None:
    class Tensor:
        pass

    kept = NodeLost("node 2 is lost")

    def wait() -> weakref.ref[Tensor]:
        local = Tensor()
        try:
            raise copy_of(kept)
        except NodeLost:
            return weakref.ref(local)

    seen = wait()
    gc.collect()
    assert seen() is None
    assert kept.__traceback__ is None

"""Owner processes of objects, and their forked children."""

from __future__ import annotations

import os

from rlinf_async.errors import ForkedProcessError
from rlinf_async.weights.waiting.ownership import OwnerProcess, reset_in_children


class Thing:
    def __init__(self) -> None:
        self.process = OwnerProcess()
        self.resets = 0
        reset_in_children(self)

    def _reset(self) -> None:
        self.resets += 1


def test_a_forked_child_resets_things_and_owns_none_of_its_parents() -> None:
    thing = Thing()
    assert (thing.process.is_here, thing.resets) == (True, 0)
    child = os.fork()
    if not child:
        error = thing.process.forked("a thing")
        is_right = isinstance(error, ForkedProcessError) and f"process {os.getppid()}" in str(error)
        os._exit(0 if is_right and (thing.process.is_here, thing.resets) == (False, 1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (thing.process.is_here, thing.resets) == (True, 0)

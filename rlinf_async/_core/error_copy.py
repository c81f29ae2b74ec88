"""Copies of exceptions that are kept: each waiter is given its own, with cause and notes but no traceback.

An exception that is raised holds the frames that it is raised through, with all that they refer to, and collects notes
on its way.  Who keeps one for several waiters therefore hands out copies::

    self._end = NodeLost("node 2 is lost")       # kept for as long as the client
    for request in waiting:
        request.fail(copy_of(self._end))         # holds what its own waiter holds, no longer than that
"""

from __future__ import annotations

import copy
from typing import TypeVar

_Error = TypeVar("_Error", bound=BaseException)


def copy_of(error: _Error) -> _Error:
    """The same error as another object, of the same type, also where its type cannot be made of its ``args``."""
    try:
        found = copy.copy(error)
    except Exception:
        found = None
    if type(found) is not type(error):  # it cannot be made by what it was made of
        found = type(error).__new__(type(error), *error.args)
        found.args = error.args
        found.__dict__.update(error.__dict__)
    assert found is not None
    if hasattr(error, "__notes__"):
        found.__notes__ = list(error.__notes__)
    found.__cause__, found.__suppress_context__ = error.__cause__, error.__suppress_context__
    return found

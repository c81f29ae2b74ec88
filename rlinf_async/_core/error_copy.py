"""Copies of exceptions that are kept: each waiter is given its own, with cause and notes but no traceback.

An exception that is raised holds the frames that it is raised through, with all that they refer to, and collects notes
on its way.  Who keeps one for several waiters therefore hands out copies::

    self._end = NodeLost("node 2 is lost")       # kept for as long as the client
    for request in waiting:
        request.fail(copy_of(self._end))         # holds what its own waiter holds, no longer than that
"""

from __future__ import annotations

import copy
from typing import TypeVar, cast

from rlinf_async._core.exception_parts import is_of_an_extension, make, parts_of, restore, set_cause

_Error = TypeVar("_Error", bound=BaseException)


def copy_of(error: _Error) -> _Error:
    """Return the same error as another object, of the same type and without calling its constructor.

    One that an extension has made, and that it does not copy, is returned itself.
    """
    if is_of_an_extension(type(error)):
        try:
            found = copy.copy(error)
        except Exception:
            return error
    else:
        parts = parts_of(error)
        found = cast(_Error, restore(make(type(error), *parts[0]), parts))
    if "__notes__" in vars(error):
        vars(found)["__notes__"] = list(error.__notes__)
    set_cause(found, error.__cause__, error.__suppress_context__)
    return found

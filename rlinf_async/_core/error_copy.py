"""Copies of stored exceptions: each waiter gets its own copy, with cause and notes but no traceback.

A raised exception holds the frames that it passes through, with everything to which they refer, and collects notes as
it propagates. An owner that stores an exception for several waiters therefore hands out copies::

    self._end = NodeLost("node 2 is lost")       # kept as long as the client
    for request in waiting:
        request.fail(copy_of(self._end))         # lives no longer than its waiter
"""

from __future__ import annotations

import copy
from typing import TypeVar, cast

from rlinf_async._core.exception_parts import is_of_an_extension, make, parts_of, restore, set_cause

_Error = TypeVar("_Error", bound=BaseException)


def copy_of(error: _Error) -> _Error:
    """Return a copy of an error, made without calling its constructor.

    If the error has an extension type and cannot be copied, the error itself is returned.
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

"""Report of an event loop of a worker that broke, and the exit status that goes with it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from typing import Final

EXIT_CODE: Final = 70
"""Of a worker that cannot go on (sysexits.h: an internal error)."""

_breaking: Final = threading.Lock()


def report(error: BaseException) -> None:
    """The traceback of what ended a loop of this worker, as its last words.

    A method that closes descriptors breaks all loops at once, and the first thread that exits takes the others along:
    one after the other, so that what is told is whole.
    """
    with _breaking, contextlib.suppress(BaseException):
        text = "".join(traceback.format_exception(error))
        sys.stderr.write(
            f"{text}this worker's event loop broke ({type(error).__name__}: {error}): did a method close the loop, or "
            "descriptors that are not its own (os.closerange)?\n"
        )
        sys.stderr.flush()


def end(error: BaseException) -> None:
    """End this worker because of what broke a loop of it, which nobody else would hear of."""
    report(error)
    os._exit(EXIT_CODE)

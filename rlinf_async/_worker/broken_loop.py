"""Report of an event loop of a worker that broke, and the exit status that goes with it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from typing import Final

EXIT_CODE: Final = 70
"""Exit status of a worker that cannot go on (sysexits.h: an internal error)."""

_breaking: Final = threading.Lock()


def report(error: BaseException) -> None:
    """Write the traceback of a broken loop to stderr as this worker's last words.

    A method that closes descriptors breaks all loops at once, and the first thread that exits ends the others.  The
    lock lets one thread after the other write, so that no report is cut off.
    """
    with _breaking, contextlib.suppress(BaseException):
        text = "".join(traceback.format_exception(error))
        sys.stderr.write(
            f"{text}this worker's event loop broke ({type(error).__name__}: {error}): did a method close the loop, or "
            "descriptors that are not its own (os.closerange)?\n"
        )
        sys.stderr.flush()


def end(error: BaseException) -> None:
    """Report the error that broke a loop, and end this worker: no caller would receive the error."""
    report(error)
    os._exit(EXIT_CODE)

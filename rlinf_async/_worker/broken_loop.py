"""Reports a worker's broken event loop, and ends the process with a distinct exit status."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from typing import Final

EXIT_CODE: Final = 70  # exit status of a worker with a broken loop (sysexits.h: an internal error)

_breaking: Final = threading.Lock()


def report(error: BaseException) -> None:
    """Write the traceback of a broken loop to stderr as this worker's last output.

    A method that closes descriptors breaks all loops at once, and the first thread to exit the process ends the others.
    The lock serialises the threads' reports, so that none is cut off.
    """
    with _breaking, contextlib.suppress(BaseException):
        text = "".join(traceback.format_exception(error))
        sys.stderr.write(
            f"{text}this worker's event loop broke ({type(error).__name__}: {error}): did a method close the loop, or "
            "descriptors that are not its own (os.closerange)?\n"
        )
        sys.stderr.flush()


def end(error: BaseException) -> None:
    """Report the error that broke a loop, and end this worker, because no caller would receive the error."""
    report(error)
    os._exit(EXIT_CODE)

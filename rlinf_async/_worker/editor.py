"""Support for an editor's debugger (debugpy): workers of a debugged script connect to it, each in its own session.

debugpy rewrites the command lines of child processes so that they connect. A worker has no command line of its own,
because it is forked from a template, which must have no threads. So a driver makes debugpy generate the code that the
rewritten command line would run, and the workers run that code.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.process import is_in_editor

logger = own_logger(__name__)

_CODE: Final = "RLINF_EDITOR_SESSION"


def environment() -> dict[str, str]:
    """Return the variables by which workers connect to this process's editor; empty if no editor debugs it."""
    monkey = sys.modules.get("_pydev_bundle.pydev_monkey")
    setup = getattr(getattr(sys.modules.get("pydevd"), "SetupHolder", None), "setup", None)
    if not is_in_editor() or monkey is None or not setup or not setup.get("multiprocess"):
        return {}  # "subProcess": false, so child processes are not debugged
    command = monkey.patch_args(["python", "-c", "pass"])
    return {_CODE: command[2]} if len(command) == 3 and command[2] != "pass" else {}


def connect() -> None:
    """Connect this worker to the editor that debugs its driver; runs on the main thread before any user code."""
    code = os.environ.pop(_CODE, "")
    if not code:
        return
    path = list(sys.path)
    try:
        exec(code, {"__name__": "rlinf_editor_session"})
    except BaseException as error:  # debugpy raises SystemExit if it cannot reach the editor
        logger.warning("this worker is not debugged by the editor: %s: %s", type(error).__name__, error)
    finally:
        sys.path[:] = path

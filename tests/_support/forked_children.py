"""Children that a test forks from its own process, with their exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def forked(run: Callable[[], object]) -> Iterator[int]:
    """A child, which ends when ``run`` does: with 0, or 1 where it raises."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    try:
        yield child
    finally:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(child, os.WNOHANG) == (0, 0):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

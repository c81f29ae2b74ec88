"""Fork detection: this process's pid, updated by a fork hook, and the error for a forked child. Also ends the process.

An object that depends on threads, loops or sockets remembers the pid of its process. A forked child has a copy of the
object but none of the threads, so waiting on the copy would never end::

    self._pid = process.pid                           when it is created
    if self._pid != process.pid:                      before it waits
        raise process.forked("channel 'obs'", self._pid)

A fork hook keeps ``pid`` up to date, because ``os.getpid`` is a system call. Hooks run in the order in which they were
registered. Modules whose hooks create this error import this module, so their hooks find the child's pid.

tests/test_forks.py::test_a_drivers_child_is_told_at_once_whose_things_it_uses
tests/test_forks.py::test_a_workers_child_is_told_at_once_whose_things_it_uses
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import multiprocessing.process
import os
import sys
import threading
import traceback
from typing import NoReturn

from rlinf_async.errors import ForkedProcessError

pid = os.getpid()


class _ImportsScript(threading.local):
    here = False


imports_script = _ImportsScript()


def forked(what: str, owner: int) -> ForkedProcessError:
    """Return the error for a forked child that uses an object (``what``) of the process ``owner``."""
    return ForkedProcessError(
        f"{what} belongs to process {owner}, from which this one (pid {pid}) was forked: a forked child has copies of "
        f"its objects, and none of its sockets, threads and loops. Do this in process {owner} and hand its results to "
        'the child; or start the child by multiprocessing\'s "spawn" or "forkserver" method (DataLoader: '
        'multiprocessing_context="spawn") and have it take part by itself: by Cluster() under rlinf-launch, below a '
        "worker by Worker(parent_address=worker.worker_address, world_size=..., rank=...)"
    )


def check_is_no_import(what: str) -> None:
    """Reject an action of a script while a worker or a multiprocessing child imports that script.

    Raises:
        RuntimeError: this process, a worker looking up a name or a child of the spawn or forkserver method, is
            importing the script and would repeat its actions.
    """
    # multiprocessing sets this flag in order to refuse starting processes during the import.
    if imports_script.here or getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise RuntimeError(
            f"{what} in a {'worker' if imports_script.here else 'process that multiprocessing has spawned'}, which "
            "imports the script again, under the name __mp_main__, to have its classes: each would run the whole "
            'script. Put what the script does below `if __name__ == "__main__":`, or the classes and functions that '
            "it needs into a module of their own"
        )


def leave(error: BaseException | None) -> NoReturn:
    """End this process as Python does when its script ends, either normally or with an uncaught ``error``."""
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    elif error is not None:
        traceback.print_exception(error)
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)


def _after_fork() -> None:
    global pid
    pid = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


def is_in_editor() -> bool:
    return "pydevd" in sys.modules


def flush_files() -> None:
    """Flush all files that are open for writing, because ``os._exit`` would lose their buffers."""
    for each in gc.get_objects():
        # Check type() instead of calling isinstance(), which reads __class__ and thereby makes some lazy objects load.
        if io.TextIOWrapper in type(each).__mro__ or io.BufferedWriter in type(each).__mro__:
            with contextlib.suppress(Exception):  # the file is closed, or open for reading only
                each.flush()

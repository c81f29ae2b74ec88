"""Faults of a process's own: no descriptors, broken sockets, forks.  They are called in a worker."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable

from rlinf_async import ForkedProcessError
from rlinf_async._wire.unix import Connection
from rlinf_async._worker import context

GARBAGE = b"\xc1" * 64
"""Bytes that no frame begins with."""

REFUSED_S = 1.0
"""Seconds in which a forked child has to be refused."""


def starve(seconds: float, spare: int) -> None:
    """Uses up the descriptors of this process, but for so many, and gives them back after a time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    limit = highest + 2 + spare
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, soft), hard))
    hoard = []
    try:
        while True:
            hoard.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        pass
    for _ in range(min(spare, len(hoard))):
        os.close(hoard.pop())

    def relieve() -> None:
        for fd in hoard:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    timer = threading.Timer(seconds, relieve)
    timer.daemon = True
    timer.start()


def sever(how: str, which: int) -> int:
    """Breaks one or all (-1) of this process's sockets to others than the daemon.

    Returns:
        How many there were to break.
    """
    fds = sorted(connection.fileno() for connection in _direct_connections())
    for fd in fds if which < 0 else fds[which : which + 1]:
        with contextlib.suppress(OSError):  # it is broken already
            _sever(fd, how)
    return len(fds)


def _sever(fd: int, how: str) -> None:
    if how == "shutdown":
        with socket.socket(fileno=os.dup(fd)) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    elif how == "garbage":
        os.write(fd, GARBAGE)
    else:
        # The number stays taken: another file under it would get the frames, and there is no cure for that.
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, fd, inheritable=False)
        os.close(null)


def _direct_connections() -> list[Connection]:
    client = context.require_client()
    found = [thing for thing in gc.get_objects() if type(thing) is Connection and thing is not client._connection]
    # One that another thread is just making has no socket yet.
    return [connection for connection in found if hasattr(connection, "_socket") and connection.fileno() >= 0]


def fork(seconds: float, touch: Callable[[], object]) -> Callable[[], None]:
    """A child that sleeps and ends, after it has tried to use what is its parent's.

    Returns:
        Waits for the child, and raises AssertionError if it was not refused at once.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, about forks of threads
        pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, REFUSED_S)
        try:
            touch()
        except ForkedProcessError:
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(seconds)
            os._exit(0)
        finally:
            os._exit(1)

    def wait() -> None:
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"a forked child that used what is its parent's ended with status {status}"

    return wait

"""Aborts users' pending Gloo collectives by ending their TCP connections, found through Gloo threads' epoll
descriptors.

Gloo cannot abort a pending operation. Each Gloo device has a thread in ``epoll_wait``, and the kernel lists the
descriptors on which that thread waits. Neither torch's store nor the user's connections are touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rlinf_async._transports.tcp_connections import TcpConnection, connection_at

_THREAD: Final = b"gloo_tcp_loop"

_LOOK_S: Final = 1.0
"""Seconds to catch a thread in its system call; the call returns every 10 ms, but the thread may wait for a CPU."""


def end_connections() -> int:
    """End the connections of all Gloo process groups except this framework's own pairs. Return their number.

    Listening sockets are left alone, because Gloo aborts the whole process if one of them is shut down.
    """
    ended = 0
    for poll in _polls():
        connections = list(_connections_of(poll))
        if not any(TcpConnection.is_held(connection) for connection in connections):
            for connection in connections:
                with contextlib.suppress(OSError):  # the connection may just have ended
                    connection.shutdown(socket.SHUT_RDWR)
                    ended += 1
        for connection in connections:
            connection.close()
    return ended


def _polls() -> Iterator[int]:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread may just have exited
            if (task / "comm").read_bytes().strip() == _THREAD and (poll := _poll_of(task)) is not None:
                yield poll


def _poll_of(task: Path) -> int | None:
    until = time.monotonic() + _LOOK_S
    while time.monotonic() < until:
        words = (task / "syscall").read_text().split()
        if len(words) > 1 and (poll := int(words[1], 16)) < 1 << 20:
            with contextlib.suppress(OSError):
                if str(Path(f"/proc/self/fd/{poll}").readlink()) == "anon_inode:[eventpoll]":
                    return poll
        os.sched_yield()
    return None


def _connections_of(poll: int) -> Iterator[socket.socket]:
    for line in Path(f"/proc/self/fdinfo/{poll}").read_text().splitlines():
        watched = re.match(r"tfd: *(\d+) .* ino:([0-9a-f]+) ", line)
        if watched is None or (connection := connection_at(int(watched[1]))) is None:
            continue
        if os.fstat(connection.fileno()).st_ino == int(watched[2], 16):
            yield connection
        else:  # the number has been reused
            connection.close()

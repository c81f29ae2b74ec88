"""``StackReader``: reads unresponsive processes' stacks, which a signal handler dumps into a pipe.

A process registers faulthandler's handler when it attaches; its HELLO contains its descriptor number for the pipe
(``_inspection/state/stack_dump.py``)::

    daemon ── opens /proc/PID/fd/N for reading ──► pipe ◄── write end N ── process
    daemon ── SIGNAL ─────────────────────────────────────────────────────► writes the stacks of all its threads
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from dataclasses import dataclass
from typing import Final

from rlinf_async._inspection.state import stack_dump

from .endpoint import Endpoint
from .process_state import catches

TIMEOUT_S: Final = 1.0  # limit for a dump; after that, the text received so far is used

_QUIET_S: Final = 0.1  # silence after which a dump counts as complete, since nothing marks its end

_PIECE_BYTES: Final = 1 << 16
_MAX_BYTES: Final = 1 << 20  # largest dump; faulthandler's maximum of 100 threads needs less


@dataclass(frozen=True)
class Stacks:
    """The text of a dump, or the reason why there is none."""

    text: str = ""
    trouble: str = ""


class StackReader:
    """Reader of stack dumps; simultaneous requests for one process share a single dump."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._dumps: dict[int, _Dump] = {}

    def __repr__(self) -> str:
        return f"<StackReader [{len(self._dumps)} dumps under way]>"

    def read(self, endpoint: Endpoint) -> asyncio.Future[Stacks]:
        """Return a future that resolves within ``TIMEOUT_S`` and never fails; it is shared, so do not cancel it."""
        dump = self._dumps.get(endpoint.id)
        if dump is None:
            dump = self._dumps[endpoint.id] = _Dump(self._loop)
            dump.stacks.add_done_callback(lambda _: self._dumps.pop(endpoint.id))
            try:
                dump.begin(endpoint)
            except OSError as error:
                dump.end(error.strerror or str(error))
        return dump.stacks

    def drop(self, gone: int) -> None:
        dump = self._dumps.get(gone)
        if dump is not None:
            dump.end()


class _Dump:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.stacks: asyncio.Future[Stacks] = loop.create_future()
        self._fd = -1
        self._parts: list[bytes] = []
        self._nbytes = 0
        self._timers: list[asyncio.TimerHandle] = []

    def begin(self, endpoint: Endpoint) -> None:
        """Send the signal and start reading; raise OSError, and send nothing, if the process has no pipe or handler."""
        pid = endpoint.os_pid
        if endpoint.stacks is None:
            raise OSError("it has no pipe for its stacks")
        self._fd = os.open(
            f"/proc/{pid}/fd/{endpoint.stacks}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        )
        if not stat.S_ISFIFO(os.fstat(self._fd).st_mode):
            raise OSError(f"its descriptor {endpoint.stacks} is another file now")
        # By default, the signal kills the process.  A process that exec'ed another program has lost its handler, but
        # has the same pid and perhaps the same descriptors.
        # tests/launcher/daemon/test_stack_reader.py::test_a_process_without_the_handler_is_not_sent_the_signal
        if not catches(pid, stack_dump.SIGNAL):
            raise OSError("it has no handler for the signal that requests its stacks")
        self._discard()
        # Send the signal last, through the pidfd: its success proves that the process has been alive throughout, so the
        # checks above were about this process and not a later process with the same pid.
        endpoint.send_signal(stack_dump.SIGNAL)
        self._loop.add_reader(self._fd, self._readable)
        self._timers = [self._loop.call_later(TIMEOUT_S, self.end)]

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, _PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._parts.append(data)
        self._nbytes += len(data)
        if not data or self._nbytes >= _MAX_BYTES:
            self.end()
            return
        for timer in self._timers[1:]:
            timer.cancel()
        self._timers[1:] = [self._loop.call_later(_QUIET_S, self.end)]

    def _discard(self) -> None:
        """Discard the pipe's content, a dump that arrived too late for its reader."""
        with contextlib.suppress(OSError):
            for _ in range(_MAX_BYTES // _PIECE_BYTES):
                if not os.read(self._fd, _PIECE_BYTES):
                    return

    def end(self, trouble: str = "") -> None:
        """Resolve the dump with the text received so far.  Idempotent."""
        if self.stacks.done():
            return
        for timer in self._timers:
            timer.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
        text = b"".join(self._parts).decode(errors="replace")
        self.stacks.set_result(Stacks(text, trouble or ("" if text else "its stacks do not come either")))

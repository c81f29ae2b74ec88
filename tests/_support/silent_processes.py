"""Processes that do not answer, each in its own way, with the pipe into which they write their stacks."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

from rlinf_launcher.daemon.endpoint import Endpoint
from rlinf_launcher.daemon.router import Router

START = """
    import ctypes, faulthandler, os, signal, sys, threading
    from rlinf_async._inspection.state.stack_dump import SIGNAL

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    faulthandler.register(SIGNAL, file=writer, all_threads=True, chain=False)

    def ready():
        print(writer, flush=True)

    def hold():
        print(writer, flush=True)
        # A C function that is called with the interpreter's lock held, and blocks.
        ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
"""

HOLDING = "hold()"
"""Holds the interpreter's lock."""


class RecordingConnection:
    """Keeps the frames that an endpoint is sent."""

    def __init__(self) -> None:
        self.frames: list[Any] = []

    def send(self, frame: Any, fds: Any = ()) -> None:
        self.frames.append(frame)

    def close(self) -> None:
        """Nothing to close."""


@contextlib.contextmanager
def silent(router: Router, program: str = HOLDING) -> Iterator[Endpoint]:
    """A driver that runs a program behind ``START``; it has said hello."""
    process = subprocess.Popen(
        [sys.executable, "-c", dedent(START) + dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    endpoint = router.new_endpoint("driver")
    endpoint.pid, endpoint.pidfd = process.pid, os.pidfd_open(process.pid)
    endpoint.connection = RecordingConnection()  # type: ignore[assignment]
    assert process.stdout is not None
    try:
        endpoint.note_hello({"stacks": int(process.stdout.readline())})
        yield endpoint
    finally:
        process.kill()
        process.communicate()
        os.close(endpoint.pidfd)

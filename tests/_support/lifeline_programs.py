"""Small programs that play the far side of a lifeline."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable

from rlinf_async._wire.lifeline import Lifeline, fresh_marker

FAR = """
import json, os, sys, time
def line():
    data = b""
    while not data.endswith(b"\\n"):
        byte = os.read(0, 1)
        if not byte:
            return None
        data += byte
    return json.loads(data)
marker = os.environ["MARKER"]
def say(**message):
    os.write(1, (marker + json.dumps(message) + "\\n").encode())
"""


async def start(program: str, *, name: str = "node7", prelude: Iterable[bytes] = ()) -> Lifeline:
    """Starts a program that has ``line()`` (the next message, or None), ``say(**message)`` and ``marker``."""
    marker = fresh_marker()
    argv = [sys.executable, "-I", "-S", "-c", FAR + textwrap.dedent(program)]
    return await Lifeline.start(argv, name=name, marker=marker, env={"MARKER": marker}, prelude=prelude)

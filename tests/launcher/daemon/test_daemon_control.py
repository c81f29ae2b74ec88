"""A daemon's events and its launcher's commands, over one socket."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from rlinf_launcher.daemon import daemon_control
from rlinf_launcher.daemon.daemon_control import StdioControl


async def test_an_event_that_the_socket_cannot_take_at_once_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = socket.socketpair()
    for name in ("_STDIN", "_STDOUT"):
        monkeypatch.setattr(daemon_control, name, far.fileno())
    loop = asyncio.get_running_loop()
    control = StdioControl(loop, "marker", b"")
    commands = control.commands()
    near.sendall(b'{"op": "stop"}\n')
    assert await anext(commands) == {"op": "stop"}
    event = {"event": "unobserved", "failures": ["x" * 400] * 1000}
    with near.makefile("rb") as lines:
        line = loop.run_in_executor(None, lines.readline)
        control.send(event)
        far.shutdown(socket.SHUT_WR)
        assert json.loads((await line).removeprefix(b"marker")) == event
    await commands.aclose()
    near.close()
    far.close()

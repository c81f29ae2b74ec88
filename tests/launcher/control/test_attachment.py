"""Operators at the socket of a daemon that is not ready for requests."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from rlinf_async._core import frames
from rlinf_async._wire.unix import Connection
from rlinf_async.errors import LaunchError
from rlinf_launcher.control.attachment import attached
from rlinf_launcher.control.run_places import LocalRun


async def test_a_daemon_without_its_run_is_named_as_starting(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    place = tmp_path / "node.sock"
    run = LocalRun("cafe", 0.0, {0: place}, True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        listener.setblocking(False)

        async def greet() -> None:
            sock, _ = await loop.sock_accept(listener)
            welcome = (frames.HELLO, 0, 0, {"endpoint": 1, "node": 0})
            closed = loop.create_future()
            daemon = Connection(
                sock, loop, on_frame=lambda frame, fds: daemon.send(welcome), on_closed=closed.set_result
            )
            daemon.open()
            await closed
            daemon.close()

        daemon = asyncio.create_task(greet())
        with pytest.raises(LaunchError, match="the run is being started"):
            async with attached(run, 20):
                pass
        await daemon

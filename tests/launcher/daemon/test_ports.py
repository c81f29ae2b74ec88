"""Ports of a node that are free, and those that are leased."""

from __future__ import annotations

import socket

from rlinf_async._core.operations import FreePort, LeasePort
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.ports import Ports


async def test_a_free_port_can_be_listened_on_at_once_and_a_leased_one_belongs_to_its_process() -> None:
    ports = Ports("127.0.0.1")
    socket.create_server(("127.0.0.1", await ports.free_port(Requester(1, 1), FreePort()))).close()
    leased = await ports.lease_port(Requester(7, 1), LeasePort(None))
    assert ports._leases.owners == {leased: 7}
    ports.drop(7)
    assert ports.status() == []

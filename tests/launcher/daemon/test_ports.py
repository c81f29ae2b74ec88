"""Free and leased ports of a node."""

from __future__ import annotations

import errno
import os
import socket
from unittest.mock import Mock

import pytest

from rlinf_async._core.operations import FreePort, LeasePort
from rlinf_launcher.daemon import ports as module
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.ports import Ports


async def test_a_free_port_is_usable_and_a_leased_one_reserved() -> None:
    ports = Ports("127.0.0.1")
    socket.create_server(("127.0.0.1", await ports.free_port(Requester(1, 1), FreePort()))).close()
    leased = await ports.lease_port(Requester(7, 1), LeasePort(None))
    assert ports._leases.owners == {leased: 7}
    ports.drop(7)
    assert ports.status() == []


async def test_a_shortage_of_descriptors_is_no_shortage_of_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports, before = Ports("127.0.0.1"), os.listdir("/proc/self/fd")
    short = OSError(errno.EMFILE, "no descriptor is free")
    monkeypatch.setattr(module, "family", Mock(side_effect=[socket.AF_INET, short]))
    with pytest.raises(OSError, match="no descriptor is free"):
        await ports.lease_port(Requester(7, 1), LeasePort(None))
    assert os.listdir("/proc/self/fd") == before
    assert ports.status() == []

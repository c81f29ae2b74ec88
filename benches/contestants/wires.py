"""Network baseline: a TCP connection or a Gloo pair between two processes, for the limits.

The near end is the limits' own process; the far end is this file, run as a script, perhaps on another (fake) host.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from works import Samples

PIECE = 256 << 10
"""Bytes per read; the fastest size, as measured."""


@dataclass(frozen=True)
class Place:
    """Hosts of the two processes.

    Args:
        near, far: addresses of the two processes.
        prefix: first words of a command that is to run on the far host.
    """

    near: str = "127.0.0.1"
    far: str = "127.0.0.1"
    prefix: Sequence[str] = ()

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Place:
        """Return the ends that a script's arguments name, ``NEAR FAR PREFIX…``; None without arguments."""
        return cls(arguments[0], arguments[1], tuple(arguments[2:])) if arguments else cls()


class Tcp:
    """One TCP connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock

    def make(self, size: int) -> memoryview:
        return memoryview(bytearray(b"x") * size)

    def send(self, buffer: memoryview) -> None:
        self._sock.sendall(buffer)

    def receive(self, buffer: memoryview) -> None:
        had = 0
        while had < len(buffer):
            read = self._sock.recv_into(buffer[had : had + PIECE])
            if not read:
                raise EOFError("the other process has ended")
            had += read

    def close(self) -> None:
        self._sock.close()


class Gloo:
    """A process group of two."""

    def __init__(self, store: Any, rank: int, address: str) -> None:
        from torch.distributed import ProcessGroupGloo

        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        self._group = ProcessGroupGloo(store, rank, 2, options)
        self._peer = 1 - rank

    def make(self, size: int) -> Any:
        import torch

        return torch.ones(size, dtype=torch.uint8)

    def send(self, buffer: Any) -> None:
        self._group.send([buffer], self._peer, 0).wait()

    def receive(self, buffer: Any) -> None:
        self._group.recv([buffer], self._peer, 0).wait()

    def broadcast(self, buffer: Any) -> None:
        """Broadcast from the near end to the far one."""
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        self._group.broadcast([buffer], options).wait()

    def close(self) -> None:
        pass


@dataclass
class Near:
    """The near end of a connection, and the process of the far end."""

    end: Tcp | Gloo
    far: subprocess.Popen[str]

    def close(self) -> None:
        self.end.close()
        assert self.far.stdin is not None
        self.far.stdin.close()
        self.far.wait()


def open_pair(kind: str, place: Place) -> Near:
    """Start the far process and connect to it."""

    def start(port: int) -> subprocess.Popen[str]:
        command = [*place.prefix, sys.executable, __file__, kind, place.near, str(port), place.far]
        return subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    if kind == "tcp":
        with socket.create_server((place.near, 0)) as server:
            server.settimeout(30)
            far = start(server.getsockname()[1])
            return Near(Tcp(server.accept()[0]), far)
    from torch.distributed import TCPStore

    store = TCPStore(place.near, 0, 2, True, wait_for_workers=False)
    far = start(store.port)
    return Near(Gloo(store, 0, place.near), far)


def swap(near: Near, size: int, count: int) -> Samples:
    """Return the seconds of round trips."""
    assert near.far.stdin is not None
    near.far.stdin.write(json.dumps({"size": size, "count": count}) + "\n")
    near.far.stdin.flush()
    end = near.end
    mine, theirs = end.make(size), end.make(size)
    samples = []
    for _ in range(count):
        began = time.perf_counter()
        end.send(mine)
        end.receive(theirs)
        samples.append(time.perf_counter() - began)
    return samples


def spread(near: Near, size: int, count: int) -> Samples:
    """Return the seconds of Gloo broadcasts, until the far end has confirmed all data."""
    assert near.far.stdin is not None
    assert isinstance(near.end, Gloo)
    near.far.stdin.write(json.dumps({"size": size, "count": count, "way": "broadcast"}) + "\n")
    near.far.stdin.flush()
    end = near.end
    whole, word = end.make(size), end.make(1)
    samples = []
    for _ in range(count):
        end.receive(word)  # the far end is ready
        began = time.perf_counter()
        end.broadcast(whole)
        end.receive(word)
        samples.append(time.perf_counter() - began)
    return samples


def _far_end(kind: str, near: str, port: str, own: str) -> Tcp | Gloo:
    if kind == "tcp":
        return Tcp(socket.create_connection((near, int(port))))
    from torch.distributed import TCPStore

    return Gloo(TCPStore(near, int(port), 2, False), 1, own)


def _be_far() -> None:
    end = _far_end(*sys.argv[1:])
    for line in sys.stdin:
        order = json.loads(line)
        mine, theirs = end.make(order["size"]), end.make(order["size"])
        for _ in range(order["count"]):
            if order.get("way") == "broadcast":
                word = end.make(1)
                end.send(word)
                end.broadcast(theirs)  # type: ignore[union-attr]  # only Gloo gets this request
                end.send(word)
                continue
            end.receive(theirs)
            end.send(mine)
    end.close()


if __name__ == "__main__":
    _be_far()

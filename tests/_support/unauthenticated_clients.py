"""Listening sockets of a run, and the frames of clients that are not of it."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_async import Cluster
from rlinf_async._core import frames
from tests._support import leaks


class Canary:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> Any:
        return open, (self._path, "w")


@dataclass(frozen=True)
class Listener:
    """A listening socket: of TCP an address and a port, of UNIX a path."""

    pid: int
    address: str
    port: int | None = None

    @property
    def is_tcp(self) -> bool:
        return self.port is not None


def listeners(pids: Sequence[int]) -> list[Listener]:
    """Every listening socket of these processes, each once."""
    found: dict[str, Listener] = {}
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended meanwhile
            open_files = set(open_files_of(pid))
            found |= {inode: one for inode, one in listening_sockets(pid) if f"socket:[{inode}]" in open_files}
    return list(found.values())


def open_files_of(pid: int) -> Iterator[str]:
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield os.readlink(f"/proc/{pid}/fd/{number}")


def listening_sockets(pid: int) -> Iterator[tuple[str, Listener]]:
    """(inode, socket) for every listening socket of a process's network."""
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                address, port = fields[1].split(":")
                words = [bytes.fromhex(address[start : start + 8])[::-1] for start in range(0, len(address), 8)]
                found = ipaddress.ip_address(b"".join(words))
                yield fields[9], Listener(pid, str(getattr(found, "ipv4_mapped", None) or found), int(port, 16))
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if int(fields[3], 16) & 0x10000:
            yield fields[6], Listener(pid, fields[7] if len(fields) > 7 else "")


def listeners_of(run: str) -> list[Listener]:
    return listeners(leaks.processes_of_run(run))


def hello(**facts: Any) -> bytes:
    return frames.pack((frames.HELLO, 0, 0, {"role": "driver", "protocol": frames.PROTOCOL, **facts}))


def node_directory(cluster: Cluster) -> str:
    return os.path.join(os.environ["XDG_RUNTIME_DIR"], f"rlinf-{cluster.run_id}", "node-0")


def read_to_the_end(sock: socket.socket) -> bytes:
    sock.settimeout(10)
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            heard += data
    return heard

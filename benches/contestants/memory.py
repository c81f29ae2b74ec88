"""Memory bandwidth with several processes copying at once: ``memory.py BYTES PROCESSES COUNT``.

Prints what one of them takes alone, and all of them at once until the last is done: what a machine's memory can do.
Each copies by one thread, from memory that they share to memory of its own, all of which has been written once.  They
do it by ``copy_`` of torch's, and then by the C library, which writes past the caches where it has so much to copy.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time

import torch


def move(target: torch.Tensor, source: torch.Tensor) -> None:
    ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)


WAYS = {b"c": torch.Tensor.copy_, b"m": move}


def serve(sock: socket.socket, source: torch.Tensor) -> None:
    torch.set_num_threads(1)
    target = source.clone()
    while way := sock.recv(1):
        WAYS[way](target, source)
        sock.send(b"x")


def start(source: torch.Tensor) -> socket.socket:
    near, far = socket.socketpair()
    if not os.fork():
        near.close()
        serve(far, source)
        os._exit(0)
    far.close()
    return near


def copy(processes: list[socket.socket], way: bytes) -> float:
    began = time.perf_counter()
    for process in processes:
        process.send(way)
    for process in processes:
        if not process.recv(1):
            raise EOFError("a process has ended")
    return time.perf_counter() - began


def main(size: int, count: int, repeats: int) -> None:
    torch.set_num_threads(1)  # a process that has used several does not fork well
    source = torch.ones(size // 4)
    processes = [start(source) for _ in range(count)]
    copy(processes, b"c")
    found: dict[str, list[float]] = {"alone": [], "together": [], "moved_alone": [], "moved_together": []}
    for _ in range(repeats):
        for prefix, way in ("", b"c"), ("moved_", b"m"):
            found[f"{prefix}alone"].append(copy(processes[:1], way))
            found[f"{prefix}together"].append(copy(processes, way))
    print(json.dumps(found))
    for process in processes:
        process.close()
    for _ in processes:
        os.wait()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

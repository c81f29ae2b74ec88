"""Memory bandwidth with several processes copying at once: ``memory.py BYTES PROCESSES COUNT``.

Prints the time of one process alone, and of all at once until the last is done: the limit of a machine's memory. Each
process copies by one thread, from shared memory to its own; all of it has been written once before. They copy by
torch's ``copy_``, and then by the C library, which bypasses the caches for copies of this size.
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
    torch.set_num_threads(1)  # a process that has used several threads does not fork well
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

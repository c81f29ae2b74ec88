"""Copies of one piece of memory by as many processes as ask for it: ``memory.py BYTES PROCESSES COUNT``.

Prints what one of them takes alone, and all of them at once until the last is done: what a machine's memory can do.
Each copies by one thread, from memory that they share to memory of its own, all of which has been written once.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

import numpy as np


def serve(sock: socket.socket, source: np.ndarray) -> None:
    target = source.copy()
    while sock.recv(1):
        np.copyto(target, source)
        sock.send(b"x")


def start(source: np.ndarray) -> socket.socket:
    near, far = socket.socketpair()
    if not os.fork():
        near.close()
        serve(far, source)
        os._exit(0)
    far.close()
    return near


def copy(processes: list[socket.socket]) -> float:
    began = time.perf_counter()
    for process in processes:
        process.send(b"x")
    for process in processes:
        if not process.recv(1):
            raise EOFError("a process has ended")
    return time.perf_counter() - began


def main(size: int, count: int, repeats: int) -> None:
    source = np.ones(size // 4, dtype=np.float32)
    processes = [start(source) for _ in range(count)]
    copy(processes)
    alone, together = [], []
    for _ in range(repeats):
        alone.append(copy(processes[:1]))
        together.append(copy(processes))
    print(json.dumps({"alone": alone, "together": together}))
    for process in processes:
        process.close()
    for _ in processes:
        os.wait()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

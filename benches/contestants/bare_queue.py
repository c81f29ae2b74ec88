"""Baseline of channels: a queue in one process, producers and consumers in others, over plain UNIX sockets.

    python bare_queue.py COUNT PAIRS IN_FLIGHT     # prints items per second

Every producer puts COUNT items of 64 bytes, and gets a byte back for each accepted item; every consumer requests as
many items, by a byte each. At most IN_FLIGHT of them are under way at a time.
"""

from __future__ import annotations

import mmap
import os
import selectors
import socket
import struct
import sys
import time
from collections import deque

ITEM = 64


def produce(sock: socket.socket, count: int, in_flight: int) -> None:
    accepted, sent = 0, min(count, in_flight)
    sock.sendall(b"i" * (ITEM * sent))
    while accepted < count:
        fresh = len(sock.recv(1 << 12))
        accepted += fresh
        more = min(fresh, count - sent)
        sent += more
        sock.sendall(b"i" * (ITEM * more))


def consume(sock: socket.socket, count: int, in_flight: int) -> None:
    nbytes, asked = 0, min(count, in_flight)
    sock.sendall(b"g" * asked)
    while nbytes < count * ITEM:
        before = nbytes // ITEM
        nbytes += len(sock.recv(1 << 16))
        more = min(nbytes // ITEM - before, count - asked)
        asked += more
        sock.sendall(b"g" * more)


def serve(producers: list[socket.socket], consumers: list[socket.socket]) -> None:
    """Run until all peers have closed their sockets."""
    items: deque[bytes] = deque()
    waiting: deque[socket.socket] = deque()
    rests = dict.fromkeys(producers, b"")
    selector = selectors.EpollSelector()
    for sock in (*producers, *consumers):
        selector.register(sock, selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select():
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            data = sock.recv(1 << 16)
            if not data:
                selector.unregister(sock)
                continue
            if sock in rests:
                data = rests[sock] + data
                whole = len(data) // ITEM
                items.extend(data[index * ITEM : (index + 1) * ITEM] for index in range(whole))
                rests[sock] = data[whole * ITEM :]
                if whole:
                    sock.sendall(b"k" * whole)
            else:
                waiting.extend([sock] * len(data))
            while items and waiting:
                to = waiting.popleft()
                batch = [items.popleft()]
                while items and waiting and waiting[0] is to:
                    waiting.popleft()
                    batch.append(items.popleft())
                to.sendall(b"".join(batch))


def main() -> None:
    count, pairs, in_flight = map(int, sys.argv[1:])
    instants = mmap.mmap(-1, 16 * pairs)  # for each pair: start of the producer, end of the consumer
    ready, go = os.pipe()
    ends: list[list[socket.socket]] = [[], []]
    children = []
    for role, work in enumerate((produce, consume)):
        for index in range(pairs):
            near, far = socket.socketpair()
            child = os.fork()
            if not child:
                near.close()
                for other in (*ends[0], *ends[1]):
                    other.close()
                os.close(go)
                os.read(ready, 1)
                began = time.perf_counter()
                work(far, count, in_flight)
                struct.pack_into("d", instants, 16 * index + 8 * role, time.perf_counter() if role else began)
                os._exit(0)
            far.close()
            ends[role].append(near)
            children.append(child)
    os.close(go)
    serve(*ends)
    for child in children:
        os.waitpid(child, 0)
    found = struct.unpack(f"{2 * pairs}d", instants[:])
    print(count * pairs / (max(found[1::2]) - min(found[::2])))


if __name__ == "__main__":
    main()

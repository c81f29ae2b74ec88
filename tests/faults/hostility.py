"""Hostile clients of a live cluster: mutated frames and connections that come to nothing, by the hundred thousand.

    python -m tests.faults.hostility                              # 1,000,000 frames, 100,000 connections
    python -m tests.faults.hostility --frames 20000 --connections 2000

The cluster answers all the while, and in the end its daemons have as many descriptors as before, some threads of gRPC's
more at most, and at most 5 MB more memory.  One line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import psutil

from rlinf_async import Cluster, NodePlacementStrategy
from rlinf_async._core import frames
from rlinf_async._wire.local_socket import connect
from tests._support.unauthenticated_clients import hello, listeners_of, node_directory, read_to_the_end
from tests._support.workers import Plain

_MAX_GROWTH_MB: Final = 5.0
_MAX_MORE_THREADS: Final = 4
_FRAMES_PER_CONNECTION: Final = 5
"""A daemon reads no further than the first that makes no sense."""
_ASK_EVERY: Final = 50
"""Connections between two calls of the cluster's own."""

_ROUTE: Final = [[0, [1, 0, 2, 1]], [1, [1, 2]]]
_HONEST: Final[Sequence[list[Any]]] = (
    [frames.CALL, 0, 0, _ROUTE, 1, "hello", 0, b""],
    [frames.REPLY, 0, 0, 1, 1, 0, 0, b""],
    [frames.CANCEL, 0, 0, _ROUTE, 1],
    [frames.CREDIT, 0, 0, _ROUTE, 1, 5],
    [frames.REQUEST, 0, 0, 0, 7, "NodeStatus", {}],
    [frames.REQUEST, 0, 0, 1, 7, "Find", {"kind": "group", "name": "plain", "rank": 0, "after": 0}],
    [frames.MESSAGE, 0, 0, _ROUTE, [1, 2], b"x"],
    [frames.PUT, 0, 0, 0, 1, 1, b"", 1, 0, b"x"],
    [frames.GET, 0, 0, 0, 1, 1, b"", None, None],
    [frames.PENDING, 0, 0, [[1, 0, 1, "hello"]], [1, 1]],
    [frames.SETTLED, 0, 0, [1, 1]],
    [frames.RESUME, 0, 0, 1, 1, 5],
)


class Mutations:
    """Frames that are nearly right: a field is another value, is missing, or bytes are flipped."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._values: list[Any] = [
            None, True, -1, 0, 1, 1 << 31, (1 << 64) - 1, 1.5, "", "x" * 300, b"", b"\xc1" * 40, [], [[]], {}, {"a": 1},
            [1, 8], [[0, [0]]], float("nan"),
        ]  # fmt: skip

    def frame(self) -> bytes:
        fields = list(self._random.choice(_HONEST))
        how = self._random.random()
        if how < 0.75:
            fields[self._random.randrange(1, len(fields))] = self._random.choice(self._values)
        elif how < 0.85:
            del fields[self._random.randrange(1, len(fields))]
        data = frames.pack(fields)
        if how > 0.9:
            place = self._random.randrange(len(data))
            data = data[:place] + bytes([self._random.randrange(256)]) + data[place + 1 :]
        return data


def send_frames(path: str, mutations: Mutations, count: int) -> Iterator[int]:
    """Sends so many, over as many connections as it takes: most are closed for what they said."""
    sent = 0
    while sent < count:
        payload = [mutations.frame() for _ in range(min(_FRAMES_PER_CONNECTION, count - sent))]
        with connect(path) as sock:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(hello())
                for data in payload:
                    sock.sendall(data)
                    sent += 1
                sock.shutdown(socket.SHUT_WR)
            sent += 1
            read_to_the_end(sock)
        yield sent


def open_connections(addresses: Sequence[Any], chance: random.Random, count: int) -> Iterator[int]:
    """Connects so many times: with nothing, with garbage, with half a greeting."""
    for number in range(count):
        address = chance.choice(addresses)
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(5)
            sock.connect(address)
            sock.sendall(chance.choice([b"", b"\x00" * 50, os.urandom(200), hello()[:20], b"GET / HTTP/1.1\r\n\r\n"]))
        yield number + 1


def state_of(pids: Sequence[int]) -> dict[str, float]:
    processes = [psutil.Process(pid) for pid in pids]
    return {
        "fds": sum(process.num_fds() for process in processes),
        "threads": sum(process.num_threads() for process in processes),
        "mb": sum(process.memory_full_info().uss for process in processes) / 1e6,
    }


def settled(pids: Sequence[int], before: dict[str, float]) -> dict[str, float]:
    """The state once it is as before, or after some seconds."""
    deadline = time.monotonic() + 15
    while (after := state_of(pids))["fds"] > before["fds"] and time.monotonic() < deadline:
        os.sched_yield()
    return after


def main(flags: argparse.Namespace) -> int:
    with Cluster(local_nodes=2, log_to_driver=False) as cluster:
        group = Plain.create_group().launch(cluster, NodePlacementStrategy([0, 1]), name="plain").wait_ready()
        daemons = [cluster.status(node)["pid"] for node in range(2)]
        path = os.path.join(node_directory(cluster), "node.sock")
        listening = [each for each in listeners_of(cluster.run_id) if each.pid in daemons]
        addresses: list[Any] = [path, *((each.address, each.port) for each in listening if each.is_tcp)]
        chance = random.Random(flags.seed)
        for _ in (*send_frames(path, Mutations(1), 5000), *open_connections(addresses, chance, 200)):
            pass  # so that what is made once has been made
        before = state_of(daemons)
        slowest = 0.0
        floods = (
            send_frames(path, Mutations(flags.seed), flags.frames),
            open_connections(addresses, chance, flags.connections),
        )
        for flood in floods:
            for number, _ in enumerate(flood):
                if number % _ASK_EVERY == 0:
                    since = time.monotonic()
                    assert group.hello().wait(timeout=10) == [0, 1]
                    slowest = max(slowest, time.monotonic() - since)
        after = settled(daemons, before)
        assert [cluster.status(node)["pid"] for node in range(2)] == daemons
        group.close()
    grown = {name: round(after[name] - before[name], 2) for name in before}
    told = {"frames": flags.frames, "connections": flags.connections, "grown": grown, "slowest_call_s": slowest}
    print(json.dumps(told), flush=True)
    is_more = grown["fds"] > 0 or grown["threads"] > _MAX_MORE_THREADS or grown["mb"] > _MAX_GROWTH_MB
    return int(is_more)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.faults.hostility", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--connections", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    sys.exit(main(parser.parse_args()))

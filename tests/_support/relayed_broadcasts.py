"""Functions that workers run in tests of broadcasts from node to node."""

from __future__ import annotations

import gc
import os
import signal
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlinf_async._messaging import relayed_broadcast
from rlinf_async._messaging.relayed_broadcast import Carrier
from rlinf_async.errors import TransferFailed
from rlinf_async.work import Work

NBYTES = 72 << 20
"""Nine pieces along a chain."""


def pattern(seed: int, nbytes: int = NBYTES) -> torch.Tensor:
    """Bytes that are different everywhere."""
    random = np.random.default_rng(seed)
    return torch.from_numpy(random.integers(0, 256, nbytes, dtype=np.uint8))


def value_of(seed: int, shape: str) -> Any:
    if shape == "tensor":
        return pattern(seed)
    if shape == "little":
        return pattern(seed, (64 << 20) - 4096)
    parts = pattern(seed).split([1, 70_001, 30 << 20, 200_003, NBYTES - (30 << 20) - 270_005])
    return {"name": f"seed {seed}", "parts": [part.clone() for part in parts], "array": parts[1].numpy().copy()}


def checksum_of(value: Any) -> Any:
    if isinstance(value, dict):
        return [value["name"], *map(checksum_of, [*value["parts"], torch.from_numpy(value["array"])])]
    return zlib.crc32(value.numpy())


def prepare(worker: Any, seconds: float = 40.0, stall: float = 60.0) -> None:
    """Counts the bytes that leave this worker by the relay, for each receiver; sets the relay's patience."""
    worker.kept["sent"] = sent = {}
    send = Carrier.send_tensor

    def count(self: Carrier, piece: memoryview, line: int, receiver: int | None = None) -> Any:
        whom = self.address if receiver is None else receiver
        sent[whom] = sent.get(whom, 0) + piece.nbytes
        return send(self, piece, line, receiver)

    Carrier.send_tensor = count  # type: ignore[method-assign]
    relayed_broadcast._SECONDS = seconds  # type: ignore[misc]
    relayed_broadcast.STALL_S = stall  # type: ignore[misc]


def give(worker: Any, groups: Any, source: Any, seed: int, shape: str = "tensor", timeout: float | None = None) -> Any:
    """The source's part: the checksum of what it has sent; then the value changes."""
    value = value_of(seed, shape)
    checksum = checksum_of(value)
    worker.kept["sent"].clear()
    worker.broadcast(value, groups, source, timeout=timeout)
    for part in [value] if shape != "dict" else value["parts"]:
        part.fill_(7)
    return checksum, sorted(worker.kept["sent"].values())


def take(worker: Any, groups: Any, source: Any) -> Any:
    """A receiver's part; it writes to what it has got, which is its own."""
    value = worker.broadcast(None, groups, source)
    checksum = checksum_of(value)
    for part in value["parts"] if isinstance(value, dict) else [value]:
        part.fill_(worker._rank)
    worker.kept["value"] = value
    return checksum, sum(worker.kept["sent"].values())


def is_still_its_own(worker: Any) -> bool:
    value = worker.kept.pop("value")
    parts = value["parts"] if isinstance(value, dict) else [value]
    return all(bool((part == worker._rank).all()) for part in parts)


def kept_here(worker: Any) -> int:
    """Pieces of memory that this process holds for its node, and lines that are kept; what it has received is its own,
    and let go of first."""
    from rlinf_async._worker import context

    worker.kept.pop("value", None)
    gc.collect()
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(entry))
        except OSError:
            continue
    mailbox = context.exchange._mailbox  # type: ignore[union-attr]
    streams = [*mailbox.outbox._streams, *(stream_id for _, stream_id in mailbox.inbox._streams)]
    return sum("rlinf-broadcast" in link for link in links) + sum(isinstance(stream, str) for stream in streams)


def end_at_the_first_piece(worker: Any, number: int = signal.SIGKILL) -> None:
    """Ends, or stops, as soon as something of a broadcast has come."""
    receive = Carrier.receive_tensor

    def receive_and_end(self: Carrier, piece: memoryview, line: int, sender: int | None = None) -> Any:
        Carrier.receive_tensor = receive  # type: ignore[method-assign]
        work = receive(self, piece, line, sender)
        work._follow(lambda: os.kill(os.getpid(), number))
        return work

    Carrier.receive_tensor = receive_and_end  # type: ignore[method-assign]


def pass_nothing_on(worker: Any) -> None:
    """What it should send to other nodes fails."""
    send = Carrier.send_tensor

    def send_not(self: Carrier, piece: memoryview, line: int, receiver: int | None = None) -> Any:
        if receiver is None:
            return send(self, piece, line)
        work: Work[None] = Work()
        work._settle(error=TransferFailed("there is no way"))
        return work

    Carrier.send_tensor = send_not  # type: ignore[method-assign]


def pid(worker: Any) -> int:
    return os.getpid()

"""Run by test_called_copies.py: a process sends weights to an object in another one by torch.distributed.rpc.

python -m tests.weights.torch_rpc_ends FILE      FILE: for torch's rendezvous; must not exist
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import threading
import time
from typing import Any

import torch
from torch.distributed import rpc

from rlinf_async import RPCWeightSyncScheme
from rlinf_async.errors import DeadlineExceeded


class Host:
    """What lives in the other process."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.calls: list[tuple[int, set[float]]] = []


HOST = Host()


class Collector:
    @staticmethod
    def update_policy_weights_(rref: Any, weights: Any, version: int) -> None:
        host = rref.local_value()
        if version == HANGS:
            assert host.goes_on.wait(40)
        elif version == TAKES_LONG:
            time.sleep(1)
        host.calls.append((version, {float(bound) for bound in torch.aminmax(weights["w"])}))


HANGS, AFTER_IT, TAKES_LONG = 4, 5, 6


def host() -> Host:
    return HOST


def go_on() -> None:
    HOST.goes_on.set()


def calls() -> list[tuple[int, set[float]]]:
    return HOST.calls


def begin(name: str, rank: int) -> None:
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{sys.argv[1]}", _transports=["uv"])
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def serve() -> None:
    begin("worker", 1)
    rpc.shutdown()


def main() -> None:
    scheme, weights = RPCWeightSyncScheme(ack_timeout=40), {"w": torch.ones(16 << 20)}
    scheme.init_on_sender(
        "policy", collector_infos=["worker"], collector_rrefs=[rpc.remote("worker", host)], collector_class=Collector
    )
    sender = scheme.get_sender()

    async def step_after_send_async() -> None:
        await sender.send_async(weights)
        weights["w"].fill_(2.0)  # while 64 MiB are on their way
        await sender.wait_async()

    for _ in range(3):
        weights["w"].fill_(1.0)
        asyncio.run(step_after_send_async())

    small = {"w": torch.zeros(1)}
    try:
        sender.send(small, timeout=0.2)
    except DeadlineExceeded:
        pass
    else:
        raise AssertionError("it hangs")
    rpc.rpc_sync("worker", go_on)
    sender.send(small)

    rpc._set_rpc_timeout(0.2)  # type: ignore[attr-defined]  # which is torch's, and not the scheme's
    sender.send(small)
    rpc._set_rpc_timeout(40)  # type: ignore[attr-defined]

    found = sorted(rpc.rpc_sync("worker", calls))  # what was late and what came after it, in any order
    expected = [(1, {1.0}), (2, {1.0}), (3, {1.0}), (HANGS, {0.0}), (AFTER_IT, {0.0}), (TAKES_LONG, {0.0})]
    assert found == expected, found
    scheme.close()


if __name__ == "__main__":
    worker = multiprocessing.get_context("fork").Process(target=serve, daemon=True)
    worker.start()
    begin("trainer", 0)
    main()
    rpc.shutdown()
    worker.join()
    sys.exit(worker.exitcode)

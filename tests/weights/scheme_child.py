"""The other process of a test of schemes: ``python -m tests.weights.scheme_child <fd> <role> <facts as JSON>``.

It speaks to the test over standard output, one line at a time, and hears it over standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlinf_async import DistributedWeightSyncScheme, MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme
from tests._support.dying_model import Fragile
from tests._support.weight_parts import StoreMail

SCHEMES: dict[str, Any] = {
    "multiprocess": MultiProcessWeightSyncScheme,
    "shared memory": SharedMemWeightSyncScheme,
    "distributed": DistributedWeightSyncScheme,
}


def scheme_of(kind: str, **options: Any) -> Any:
    return SCHEMES[kind](strategy="state_dict", **options)


def say(word: Any) -> None:
    sys.stdout.write(json.dumps(word) + "\n")
    sys.stdout.flush()


def way_of(pipe: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """How the other side is reached, as ``init_on_worker`` takes it."""
    if facts["kind"] == "distributed":
        return {"store": TCPStore("127.0.0.1", facts["port"], is_master=False), "rank": facts["me"] + 1}
    return {"pipe": pipe}


async def receive(pipe: Any, facts: dict[str, Any]) -> None:
    """Serves, and says what it has when it is asked, until it hears the end."""
    model = Fragile(width=facts.get("width", 100), me=facts["me"])
    scheme = scheme_of(facts["kind"], apply=facts.get("apply", "copy"), ack_timeout=30.0)
    scheme.init_on_worker("policy", model=model, **way_of(pipe, facts))
    receiver = scheme.get_receiver()
    if "signal_in_transfer" in facts:
        signal_in_transfer(*facts["signal_in_transfer"])
    if "stop_half_way" in facts:
        half_way(facts["stop_half_way"], stop)
    serving = receiver.serve()
    say("serving")
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if line == "end":
            break
        async with receiver.reading() as version:
            say([version, sorted(model.values())])
    await scheme.close()
    await asyncio.wait([serving])


async def read(pipe: Any, facts: dict[str, Any]) -> None:
    """Looks at every value again and again, until it hears the end."""
    model = Fragile(width=facts.get("width", 100))
    scheme = scheme_of(facts["kind"], apply=facts["apply"])
    scheme.init_on_worker("policy", model=model, **way_of(pipe, facts))
    receiver = scheme.get_receiver()
    serving = receiver.serve()
    say("serving")
    ending = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    last, seen, wrong = 0, 0, []
    while not ending.done():
        async with receiver.reading() as version:
            bounds = {
                float(bound)
                for tensor in (*model.parameters(), *model.buffers())
                for bound in await asyncio.to_thread(torch.aminmax, tensor.detach())
            }
        if bounds != {float(version)} or version < last:
            wrong.append(f"version {version} after {last} shows {sorted(bounds)}")
        seen += version != last
        last = version
    say({"seen": seen, "last": last, "wrong": wrong[:3]})
    await scheme.close()
    await asyncio.wait([serving])


async def send(pipe: Any, facts: dict[str, Any]) -> None:
    """Sends one version after the other, for ever."""
    model = Fragile(width=facts.get("width", 100))
    scheme = scheme_of(facts["kind"])
    if facts["kind"] == "distributed":
        ways = {"store": TCPStore("127.0.0.1", facts["port"], is_master=False), "num_workers": 1}
    else:
        ways = {"pipes": [pipe]}
    scheme.init_on_sender("policy", source_model=model, **ways)
    sender = scheme.get_sender()
    while True:
        model.fill(float(sender.version + 1))
        await sender.send_async()
        model.fill(-1.0)
        await sender.wait_async()


async def keep_store(pipe: Any, facts: dict[str, Any]) -> None:
    """Hosts the store of a job."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    say(store.port)
    await asyncio.to_thread(sys.stdin.readline)


def signal_in_transfer(number: int, at: int) -> None:
    """This process gets a signal when message ``at`` is about to be read from its connection."""
    connect, heads = StoreMail._connect, iter(range(1, 1000))

    def connect_and_stop(self: StoreMail, end: float) -> None:
        connect(self, end)
        if next(heads) == at:
            os.kill(os.getpid(), number)

    StoreMail._connect = connect_and_stop  # type: ignore[method-assign]


def stop() -> None:
    say("half way")
    os.kill(os.getpid(), signal.SIGSTOP)


def half_way(at: int, do: Callable[[], None]) -> None:
    """Has something done as soon as some of message ``at``, and not all of it, has arrived in this process."""
    fill, messages = StoreMail._fill, iter(range(1, 1000))

    def fill_and_do(self: StoreMail, group: Any, tensor: torch.Tensor, timeout: timedelta) -> None:
        if next(messages) != at:
            fill(self, group, tensor, timeout)
            return
        watching = threading.Thread(target=wait, args=(tensor.zero_(),))
        watching.start()
        fill(self, group, tensor, timeout)
        watching.join()

    def wait(tensor: torch.Tensor) -> None:
        while not tensor[:64].any():
            pass
        do()

    StoreMail._fill = fill_and_do  # type: ignore[method-assign]


if __name__ == "__main__":
    torch.set_num_threads(1)
    role = {each.__name__: each for each in (receive, read, send, keep_store)}[sys.argv[2]]
    asyncio.run(role(Connection(int(sys.argv[1])), json.loads(sys.argv[3])))

"""A trainer whose store stops: ``python -m tests.weights.stopped_store_child <fd> send <facts as JSON>``.

It speaks to the test over standard output, one line at a time, and hears it over standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlinf_async import DistributedWeightSyncScheme
from rlinf_async.weights.transports import distributed
from tests.weights.scheme_child import say


async def send(port: int) -> None:
    """Sends what nobody takes."""
    distributed._CLOSE_TIMEOUT_S = 0.5  # type: ignore[misc]
    store, model = TCPStore("127.0.0.1", port, is_master=False), torch.nn.Linear(2, 2)
    scheme = DistributedWeightSyncScheme()
    scheme.init_on_sender("policy", store=store, num_workers=1, source_model=model)
    sender: Any = scheme.get_sender()
    await sender.send_async(timeout=3.0)
    await asyncio.to_thread(store.wait, ["NODE_1_count"])
    say("sent")
    sys.stdin.readline()
    try:
        await sender.wait_async()
    except Exception as error:
        say(type(error).__name__)
    await scheme.close()
    say("closed")


if __name__ == "__main__":
    asyncio.run(send(json.loads(sys.argv[3])["port"]))

"""Order of calls within a worker."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any, cast

from rlinf_async._core import frames
from rlinf_async._worker.context import Identity
from rlinf_async._worker.methods import CONSTRUCT
from rlinf_async._worker.runtime import Runtime
from rlinf_async.address import WorkerAddress, WorkerInfo


def test_calls_that_come_before_the_constructor_wait_for_it_in_their_order() -> None:
    info = WorkerInfo(WorkerAddress("group", 0), 0, 1, 0, "NO_ACCEL", "", -1, "127.0.0.1", 0)
    loop = asyncio.new_event_loop()
    runtime = Runtime(loop, Identity(info, 1, "group"), None)
    runtime.direct_callers = cast(Any, SimpleNamespace(to=lambda source: None, read_available=lambda source: None))
    for number, method in enumerate(["early", "next", CONSTRUCT, "late"]):
        runtime.on_frame([frames.CALL, 0, 7, 0, number, method, 0, b""], [])
        if method == "next":
            assert not runtime._queue
    assert [call.method for call in runtime._queue] == [CONSTRUCT, "early", "next", "late"]
    loop.remove_reader(runtime._alarm)
    os.close(runtime._alarm)
    loop.close()

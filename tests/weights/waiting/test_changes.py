"""Waits for weights say which, and whose version they are for."""

from __future__ import annotations

import asyncio
from typing import Any

from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._waits import slow_waits
from rlinf_async._waits.user_code import futures_of
from rlinf_async.weights.waiting.conditions import ConditionVar


def awaited_by(task: asyncio.Task[Any]) -> Any:
    (future,) = futures_of(task)
    return slow_waits.work_on(future)


async def test_a_wait_for_a_version_is_told_with_the_model_and_what_it_is_for() -> None:
    changes, has_come = ConditionVar("policy"), asyncio.Event()
    waiting = [
        asyncio.create_task(changes.wait_until(has_come.is_set, what=what))
        for what in ("version 4 of 'policy'", "version 4 of 'policy'", "")
    ]
    await asyncio.sleep(0)
    work = awaited_by(waiting[0])
    assert (work._kind, work._describe()) == ("weights", "version 4 of 'policy'")
    assert work._needs() == ([Target(TargetKind.WEIGHTS, name="policy")], True)
    has_come.set()
    changes.notify()
    assert await asyncio.gather(*waiting) == [True] * 3
    waiting = [asyncio.create_task(changes.wait_until(lambda: False))]
    await asyncio.sleep(0)
    assert awaited_by(waiting[0])._describe() == "news of the weights 'policy'"
    waiting[0].cancel()

"""A recorded training run that never was: a driver, actors and rollouts with as many events as one asks for."""

from __future__ import annotations

import random
from typing import Any

from rlinf_async._inspection.state.run_report import ActivityState, to_data
from rlinf_async._recorder.state.event_ring import EventKind
from rlinf_async._recorder.state.ring_contents import Event, RingContents
from rlinf_launcher.control.recorded_run import RecordedRun
from tests._support.made_reports import MadeRun, get
from tests._support.made_rings import operation, point, ring

EPOCH = 1_780_000_000
OFFSET = EPOCH * 10**9
MS = 1_000_000

HOSTILE = "</script><script>document.title='broken out'</script><img src=x onerror=\"document.title='broken out'\">"
"""What a worker may write into its log, or name a span."""


def made_run(events: int, *, rollouts: int = 6, is_stuck: bool = True) -> RecordedRun:
    """A run with about so many events, one that stands still at its end if it is stuck."""
    steps = max(2, events // (16 + 26 * rollouts))
    rings = [_driver(steps, rollouts), *(_actor(rank, steps) for rank in range(2))]
    rings += [_rollout(rank, steps) for rank in range(rollouts)]
    end = EPOCH + steps * 0.1
    death = {"time": end, "node": 1, "process": f"rollout:{rollouts - 1}", "pid": 100}
    death |= {"text": "was killed by signal 9 (SIGKILL)", "last_words": ["Killed", HOSTILE]}
    logs = {f"rollout/rank_{rank}.out": _log(rank, steps) for rank in range(rollouts)}
    return RecordedRun(
        "cc6c3c8c",
        end,
        is_alive=False,
        rings=rings,
        nodes=[{"node": 0, "name": "gpu01", "host": "gpu01"}, {"node": 1, "name": "gpu02", "host": "gpu02"}],
        deaths=[death] if is_stuck else [],
        logs=logs,
        status={"processes": [], "queues": [{"name": "obs", "items": 3}]},
        verdict=_standstill(rollouts) if is_stuck else None,
    )


def _ring(process: str, operations: list[list[Event]]) -> RingContents:
    return ring(process, *operations, wall_offset=OFFSET)


def _driver(steps: int, rollouts: int) -> RingContents:
    found = []
    for step in range(steps):
        at = step * 100 * MS
        found.append(operation(EventKind.CALL, "rollout.generate", at + MS, at + 62 * MS))
        found.append(
            operation(EventKind.CALL, "actor.update", at + 62 * MS, at + 97 * MS if step < steps - 1 else None)
        )
        found.append(operation(EventKind.SPAN, "step", at, at + 98 * MS if step < steps - 1 else None))
    found.append(point(EventKind.WORD, f"actor.update() on 2 ranks has waited for 60 s {HOSTILE}", steps * 100 * MS))
    return _ring("driver", found)


def _actor(rank: int, steps: int) -> RingContents:
    found = []
    for step in range(steps):
        at = step * 100 * MS + rank * MS
        stands = step == steps - 1
        found.append(operation(EventKind.SERVE, "update", at + 62 * MS, None if stands else at + 96 * MS))
        found.append(operation(EventKind.GET, "obs", at + 63 * MS, at + 68 * MS))
        found.append(operation(EventKind.RECV, "recv rollout:0", at + 68 * MS, None if stands else at + 70 * MS))
        if not stands:
            found.append(operation(EventKind.SPAN, "forward_backward", at + 70 * MS, at + 90 * MS))
            found.append(operation(EventKind.WEIGHTS, "policy", at + 90 * MS, at + 95 * MS))
            if rank == 0:
                found.append(point(EventKind.VERSION, "published policy", at + 90 * MS, step + 1))
    return _ring(f"actor:{rank}", found)


def _rollout(rank: int, steps: int) -> RingContents:
    chance = random.Random(rank)
    found = []
    for step in range(steps):
        at = step * 100 * MS + chance.randrange(2 * MS)
        found.append(
            operation(EventKind.SERVE, "generate", at + MS, at + 60 * MS, failed=step == steps // 2 and rank == 1)
        )
        for part in range(5):
            begin = at + (2 + part * 11) * MS
            length = chance.randrange(4, 8) * MS
            found.append(operation(EventKind.SPAN, "env_step" if part % 2 else "policy", begin, begin + length))
            found.append(operation(EventKind.PUT, "obs", begin + length, begin + length + MS))
            found.append(operation(EventKind.GET, "obs", begin + length + MS, begin + length + 2 * MS))
        found.append(operation(EventKind.SEND, "send actor:0", at + 57 * MS, at + 60 * MS))
        if step % (rank + 1) == 0:
            found.append(point(EventKind.VERSION, "applied policy", at + 97 * MS, step))
    return _ring(f"rollout:{rank}", found)


def _log(rank: int, steps: int) -> str:
    lines = [f"rollout {rank}: step {step}, return {step * 0.7 + rank:.2f}" for step in range(min(steps, 60))]
    return "\n".join([*lines[:30], f"\x1b[31mWARNING\x1b[0m {HOSTILE}", *lines[30:], ""])


def _standstill(rollouts: int) -> dict[str, Any]:
    """Rollouts wait for an item, the actor for a message of one of them, and the driver for both."""
    run = MadeRun(actor=2, rollout=rollouts)
    ranks = [f"rollout:{rank}" for rank in range(rollouts)]
    updates = run.driver_calls("update", "actor:0", "actor:1")
    generates = run.driver_calls("generate", *ranks)
    for name in ("actor:0", "actor:1"):
        wait = run.message("recv", "rollout:0")
        run.does(name, ActivityState.WAITING, wait, serves=updates, line="/home/me/train.py:88 in Actor.update()")
    for name in ranks:
        wait = run.message("recv", "actor:0") if name == ranks[0] else get(name="obs")
        run.does(name, ActivityState.WAITING, wait, serves=generates, line="/home/me/train.py:41 in Rollout.generate()")
    return {"verdict": run.verdict().to_data(), "report": to_data(run.report())}

"""Looks at runs that never were: rings, black boxes and logs put down one by one."""

from __future__ import annotations

import json
from typing import Any

from rlinf_async._recorder.state.event_ring import EventKind, EventRing, size_of
from rlinf_launcher.control.run_snapshot import RunSnapshot

RUN = "cafecafe"


def made_ring(process: str, run: str = RUN) -> bytes:
    """A ring with one call that has ended and one that is open."""
    data = bytearray(size_of(16))
    ring = EventRing(data, 16, {"process": process, "run": run, "node": 0, "endpoint": 2, "pid": 7, "host": "vm"})
    ring.end(ring.begin(EventKind.SERVE, "reset"))
    ring.begin(EventKind.SERVE, "step")
    return bytes(data)


def made_death(process: str, time: float, run: str = RUN) -> bytes:
    facts = {"time": time, "run": run, "node": 0, "process": process, "pid": 7, "text": "exited", "last_words": []}
    return b"\n" + json.dumps(facts).encode() + b"\n"


def made_group(group: str, run: str = RUN) -> bytes:
    return json.dumps({"time": 1.0, "run": run, "node": 0, "group": group, "workers": [], "config": None}).encode()


def made_node(node: int, run: str = RUN, **facts: Any) -> bytes:
    return json.dumps({"run": run, "node": node, "name": f"gpu{node}", "began": 1.0, "peers": [], **facts}).encode()


def made_snapshot() -> RunSnapshot:
    """An ended run with two processes, a death and a log."""
    snapshot = RunSnapshot(RUN, 5.0, missing={"node 1 (gpu1)": "it is lost"})
    snapshot.add("recorder/1.ring", made_ring("driver"))
    snapshot.add("recorder/2.ring", made_ring("actor:0"))
    snapshot.add("recorder/node-0.json", made_node(0))
    snapshot.add("recorder/deaths-0.jsonl", made_death("actor:0", 4.0))
    snapshot.add("actor/rank_0.err", b"last words\n")
    return snapshot

"""Lines about workers that others wait for."""

from __future__ import annotations

from typing import Any

from rlinf_async._client import peer_activity
from rlinf_async._client.peer_activity import _fold
from rlinf_async._core import frames, operations
from rlinf_async._inspection.state.run_report import OpenCall, ProcessReport, to_data
from rlinf_async.work import Work


def report(rank: int, trouble: str = "", owed: int = 1, **call: Any) -> ProcessReport:
    calls = [OpenCall(1, 1, **call)] if call else []
    return ProcessReport(rank, "worker", f"actor:{rank}", "actor", rank, 0, "n", 9, trouble, calls=calls, owed=owed)


def test_ranks_that_are_at_the_same_share_a_line() -> None:
    facts: dict[peer_activity.Member, ProcessReport | None] = {
        ("actor", rank): report(rank, method="step", age=rank + 1.0, owed=3) for rank in range(2)
    }
    facts[("actor", 2)] = None
    facts[("actor", 3)] = report(3, "is being started", owed=0)
    assert _fold(facts) == [
        "ranks 0-1 of 'actor' are in step (1-2 s) and 2 more",
        "rank 2 of 'actor' is ended",
        "rank 3 of 'actor' is being started",
    ]


def test_a_node_that_cannot_be_asked_is_named_beside_what_others_say() -> None:
    asked: list[Work[Any]] = []

    class Client:
        user_loop = None

        def request(self, operation: operations.Operation[Any], *, node: int) -> Work[Any]:
            assert operation == operations.Inspect([1 + node], ["oldest"]), operation
            work: Work[Any] = Work()
            if node:
                work._settle(error=RuntimeError("the link is down"))
            else:
                work._settle({"processes": [to_data(report(1, "stopped (T)", method="step", age=2.0))]})
            asked.append(work)
            return work

        def later(self, seconds: float, callback: Any) -> None:
            raise AssertionError("all have answered")

    who = {frames.endpoint(0, 1): ("actor", 0), frames.endpoint(1, 2): ("actor", 1)}
    words = peer_activity.workers(Client(), who)
    assert words.wait() == "rank 0 of 'actor' is stopped (T), in step (2 s); node 1: the link is down"
    assert len(asked) == 2

"""Watchdog of collectives, without torch's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlinf_async._transports import process_groups
from rlinf_async._transports.process_groups import Pending
from rlinf_async._worker.collective_watch import CollectiveWatch, Watched
from rlinf_async._worker.running_call import Call, CallState


@pytest.mark.parametrize("kind", [OSError, RuntimeError])  # no descriptors; no threads
def test_a_rank_whose_groups_cannot_be_aborted_is_looked_at_again(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def abort(pending: list[Pending]) -> None:
        raise kind("there are none left")

    due: list[Any] = []
    loop = SimpleNamespace(call_later=lambda seconds, callback, *args: due.append(callback))
    monkeypatch.setattr(process_groups, "abort", abort)
    watch = CollectiveWatch(cast(Any, SimpleNamespace(loop=loop)), {}, 2)
    watched = Watched(Call(0, 0, 0, "step", 0, b"", None), 1, 0, "rank 1 has failed", True, 0, 0.0)
    watch._abort(watched, Pending("all_reduce", 0.0))
    assert due == [watch._sample, watch._end]


def test_a_rank_is_looked_at_again_after_an_exception_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def takes_part(*_: Any) -> bool:
        raise KeyError("the group is destroyed")

    due: list[Any] = []
    loop = SimpleNamespace(call_later=lambda seconds, callback, *args: due.append(callback))
    events = SimpleNamespace(counts_from=lambda at: at)
    monkeypatch.setattr(process_groups, "takes_part", takes_part)
    call = Call(0, 0, 0, "step", 0, b"", None)
    call.state = CallState.RUNNING
    watch = CollectiveWatch(cast(Any, SimpleNamespace(loop=loop, events=events)), {(0, 0): call}, 2)
    watch._watched[0, 0] = Watched(call, 1, 0, "rank 1 has failed", False, 0, 0.0)
    monkeypatch.setattr(watch._collectives, "pending", lambda: [Pending("all_reduce", 0.0)])
    with pytest.raises(KeyError):
        watch._look()
    assert due == [watch._look]

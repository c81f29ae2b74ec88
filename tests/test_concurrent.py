"""``@concurrent``: coroutines of a worker that do not wait for its ``def`` methods."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_async import (
    Channel,
    ClosedError,
    Cluster,
    NodePlacementStrategy,
    RemoteError,
    Worker,
    concurrent,
)
from rlinf_async._inspection import asking
from tests._support.concurrent_workers import Caller, Overtaken, Quieter

pytestmark = pytest.mark.shared_cluster

ONE = NodePlacementStrategy([0])


@pytest.fixture
def launch(cluster: Cluster) -> Iterator[Callable[..., Any]]:
    groups: list[Any] = []

    def launch(worker_cls: type[Worker], *args: Any, **options: Any) -> Any:
        groups.append(worker_cls.create_group(*args).launch(cluster, placement=ONE, **options))
        return groups[-1]

    yield launch
    for group in groups:
        group.close()


def test_it_overtakes_a_def_that_blocks(launch: Callable[..., Any]) -> None:
    group = launch(Overtaken)
    blocked = group.block()
    assert group.health().wait(timeout=60) == ["rlinf-concurrent"]
    assert group.alive("static").wait(timeout=60) == ["static"]
    assert not blocked.done()
    group.release().wait(timeout=60)
    assert blocked.wait(timeout=60) == ["MainThread"]
    assert group.health().consume_durations().keys() == {"health"}


def test_one_that_is_not_marked_begins_after_the_def(launch: Callable[..., Any]) -> None:
    group = launch(Overtaken)
    blocked, plain = group.block(), group.plain()
    group.release().wait(timeout=60)
    assert plain.wait(timeout=60) == [["block", "plain"]]
    assert blocked.done()


def test_a_subclass_that_writes_it_anew_without_the_mark_has_an_ordinary_method(launch: Callable[..., Any]) -> None:
    group = launch(Quieter)
    assert group.health().wait(timeout=60) == ["MainThread"]
    assert group.alive("still").wait(timeout=60) == ["still"]


def test_a_call_that_comes_during_the_constructor_overtakes_too(cluster: Cluster, launch: Callable[..., Any]) -> None:
    arrivals, signals = Channel.create("arrivals", cluster=cluster), Channel.create("signals", cluster=cluster)
    group = launch(Overtaken, arrivals, signals)
    blocked, health = group.block(), group.health()
    assert arrivals.get(timeout=60) == "constructing"
    signals.put("both calls are there")
    assert health.wait(timeout=60) == ["rlinf-concurrent"]
    group.release().wait(timeout=60)
    blocked.wait(timeout=60)
    arrivals.close()
    signals.close()


def test_closing_its_group_cancels_it_beside_a_def_that_has_to_be_killed(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    group = launch(Overtaken)
    blocked, hanging = group.block(), group.hang(str(tmp_path / "proof"))
    group.health().wait(timeout=60)
    group.close(grace=1)
    assert (tmp_path / "proof").read_text() == "cleaned"
    for handle in (hanging, blocked):
        with pytest.raises(ClosedError):
            handle.wait(timeout=60)


def test_its_error_travels_with_notes_and_its_exit_is_an_error(launch: Callable[..., Any]) -> None:
    group = launch(Overtaken, name="failing")
    blocked = group.block()
    with pytest.raises(ValueError, match="no pulse") as caught:
        group.fail().wait(timeout=60)
    notes = "\n".join(caught.value.__notes__)
    assert "rank 0 of group 'failing'" in notes
    assert "concurrent_workers.py" in notes
    with pytest.raises(RemoteError, match="SystemExit: 3"):
        group.exit().wait(timeout=60)
    group.leave_exit_behind().wait(timeout=60)
    assert group.health().wait(timeout=60) == ["rlinf-concurrent"]
    group.release().wait(timeout=60)
    blocked.wait(timeout=60)


def test_messages_and_channels_work_in_it_while_a_def_blocks(cluster: Cluster, launch: Callable[..., Any]) -> None:
    channel = Channel.create("passed on", cluster=cluster)
    group, caller = launch(Overtaken, name="sender"), launch(Caller, name="taker")
    blocked, taken = group.block(), caller.take(channel, "sender")
    group.pass_on(channel, "taker").wait(timeout=60)
    assert taken.wait(timeout=60) == [["from beside", "message"]]
    group.release().wait(timeout=60)
    blocked.wait(timeout=60)
    channel.close()


def test_a_report_of_the_run_tells_it_from_the_def_that_has_the_main_thread(
    cluster: Cluster, launch: Callable[..., Any]
) -> None:
    group = launch(Overtaken, name="told")
    blocked, hanging = group.block(), group.hang()
    group.health().wait(timeout=60)
    served: dict[str, str] = {}
    until = time.monotonic() + 60
    while served.keys() != {"block", "hang"} and time.monotonic() < until:
        report = cluster._client.run(asking.report(cluster._client), what="a report").wait(timeout=60)
        (told,) = [process for process in report.processes if process.name == "told:0"]
        served = {each.method: each.name for each in told.activities if each.method}
    assert served["block"] == "thread MainThread"
    assert served["hang"].startswith("task ")
    hanging.cancel()
    group.release().wait(timeout=60)
    blocked.wait(timeout=60)


def test_what_cannot_be_concurrent_is_refused_where_it_is_written() -> None:
    async def stream(self: Any) -> Any:
        yield 1

    def step(self: Any) -> None: ...

    async def coroutine(self: Any) -> None: ...

    wrong: Any = concurrent
    with pytest.raises(TypeError, match=r"`async def` methods, and .*step is none, .*: make it `async def`"):
        wrong(step)
    with pytest.raises(TypeError, match=r"stream is an async generator, which streams: return a list"):
        wrong(stream)
    with pytest.raises(TypeError, match=r"write @concurrent below @staticmethod"):
        wrong(staticmethod(coroutine))
    with pytest.raises(TypeError, match=r"and 3 is none"):
        wrong(3)
    assert wrong(coroutine) is coroutine

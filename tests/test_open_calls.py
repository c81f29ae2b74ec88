"""Open calls in ``status()`` and in exit reports: no answered ones."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rlinf_async import Cluster, NodePlacementStrategy, WorkerDied, settings
from rlinf_async._client import direct_calls
from tests._support.workers import Plain

pytestmark = [pytest.mark.shared_cluster, pytest.mark.asyncio(loop_scope="module")]

LONG = 0.02
"""Seconds: of such a call the daemon hears."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.CALL_CHECK_S.variable, "10")
        async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
            yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def pair(cluster: Cluster) -> AsyncIterator[Any]:
    async with pair_of(cluster) as pair:
        yield pair


def pair_of(cluster: Cluster) -> Any:
    return Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0]), name="pair")


async def busy(cluster: Cluster) -> dict[str, list[str]]:
    found: dict[str, list[str]] = (await cluster.status())["busy"]
    return {name: [line.partition(" ")[0] for line in lines] for name, lines in found.items()}


async def test_status_tells_of_no_call_that_this_process_has_the_answer_of(cluster: Cluster, pair: Any) -> None:
    for group, method in ((pair, "sleep"), (pair[0], "sleep"), (pair[1], "block"), (pair, "sleep")):
        await getattr(group, method)(LONG)
        assert await busy(cluster) == {}
    waiting = pair[1].sleep(60)
    await pair[1].sleep(LONG)
    assert await busy(cluster) == {"pair:1": ["sleep"]}
    waiting.cancel()


async def test_status_tells_of_no_call_that_another_worker_has_the_answer_of(cluster: Cluster, pair: Any) -> None:
    group = "__import__('rlinf_async').WorkerGroup.from_group_name(type(self), 'pair')"
    async with Plain.create_group().launch(cluster, name="caller") as caller:
        for _ in range(3):
            await caller.run(f"{group}.sleep({LONG}).wait()")
            assert await busy(cluster) == {}


async def test_a_death_names_no_call_that_the_daemon_has_not_heard_the_end_of(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair[0].hello()
    answered = pair[0].sleep(0.1)
    await pair[0].sleep(LONG)  # the daemon has been told of the other one
    monkeypatch.setattr(direct_calls, "REPORT_DELAY_S", 60)
    await answered
    with pytest.raises(WorkerDied) as caught:
        await pair[0].die([0], "SIGKILL")
    assert [line.partition(" ")[0] for line in caught.value.methods] == ["die"]


async def test_a_death_names_no_relayed_call_of_which_the_worker_could_not_tell_any_more(
    cluster: Cluster, pair: Any
) -> None:
    await pair[0].run("setattr(sys.modules['rlinf_async._worker.direct_callers'], '_REPORT_DELAY_S', 60)")
    assert await busy(cluster) == {}
    with pytest.raises(WorkerDied) as caught:
        await pair[0].die([0], "SIGKILL")
    assert [line.partition(" ")[0] for line in caught.value.methods] == ["die"]


async def test_a_death_names_all_calls_that_were_open_the_latest_too(pair: Any) -> None:
    await pair[0].hello()
    waiting = pair[0].sleep(60)
    await pair[0].sleep(LONG)
    with pytest.raises(WorkerDied) as caught:
        await pair[0].die([0], "SIGKILL")
    assert [line.partition(" ")[0] for line in caught.value.methods] == ["sleep", "die"]
    with pytest.raises(WorkerDied):
        await waiting


async def test_a_caller_that_stands_still_does_not_hold_up_the_news_of_a_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(settings.CALL_CHECK_S.variable, "0.1")
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        pair, caller = pair_of(cluster), Plain.create_group().launch(cluster, name="caller")
        group = "__import__('rlinf_async').WorkerGroup.from_group_name(type(self), 'pair')"
        (pid,) = await caller.run(f"(self.log.append({group}[0].sleep(60)), os.getpid())[1]")
        waiting = pair[0].sleep(60)
        async with asyncio.timeout(5):
            while (await busy(cluster)).get("pair:0") != ["sleep"] * 2:
                pass
        os.kill(pid, signal.SIGSTOP)
        try:
            os.kill(pair.worker_info_list[0].worker.pid, signal.SIGKILL)
            async with asyncio.timeout(5):
                with pytest.raises(WorkerDied) as caught:
                    await waiting
            assert [line.partition(" ")[0] for line in caught.value.methods] == ["sleep"] * 2
        finally:
            os.kill(pid, signal.SIGCONT)

"""Calls while and after the node's daemon dies: each ends with an error, none where it is made."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
from typing import Any

import pytest

from rlinf_async import Cluster, NodeLost, NodePlacementStrategy
from rlinf_async._client.client import NodeClient
from rlinf_async._core import frames
from rlinf_async._core.pool import pool
from rlinf_async._core.segment import close_fds
from tests._support.workers import Plain


async def test_calls_of_other_threads_end_whenever_the_daemon_dies() -> None:
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        group = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0]), name="plain")
        await group.hello()
        daemon = (await cluster.status())["pid"]
        made: list[list[Any]] = [[], [], []]
        dead = threading.Event()

        def call(handles: list[Any]) -> None:
            while not dead.is_set():
                handles.append(group.acho(len(handles)))
                if len(handles) % 50 == 0:  # many are under way, and not ever more
                    with contextlib.suppress(NodeLost):
                        handles[-50].wait(5)
            handles.append(group.acho("after"))

        threads = [threading.Thread(target=call, args=(handles,)) for handles in made]
        cluster._client.events.on("closed", lambda facts: dead.set())
        for thread in threads:
            thread.start()
        os.kill(daemon, signal.SIGKILL)
        await asyncio.to_thread(dead.wait, 3)
        for thread in threads:
            await asyncio.to_thread(thread.join, 3)
        ended = []
        for handles in made:
            outcome: BaseException | None = None
            for handle in handles:
                outcome = None
                try:
                    await handle.async_wait(timeout=3)
                except NodeLost as error:
                    outcome = error
            ended.append(outcome)
        assert all(isinstance(outcome, NodeLost) for outcome in ended)


async def test_a_call_made_while_the_open_ones_end_leaves_none_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        client = cluster._client
        group = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0]), name="plain")
        await group.hello()
        handles = [group.sleep(30) for _ in range(30)]
        on_ended, gone, made, pairs = client.on_ended, asyncio.Event(), list[int](), list[tuple[int, int]]()

        def make(phase: str, _: object) -> None:  # a collection's finalizers let other threads run
            made.append(-len(made) - 1)
            client._calls[made[-1]] = client._calls[max(client._calls)]

        def ended(client: NodeClient) -> None:
            on_ended(client)
            pairs.extend(
                (number, number) for number in range(5000)
            )  # those that lie ready are made without a collection
            gc.callbacks.append(make)
            gc.set_threshold(1)

        def closed(_: object) -> None:
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(make)
            for call in made:
                client._calls.pop(call, None)
            gone.set()

        thresholds = gc.get_threshold()
        monkeypatch.setattr(client, "on_ended", ended)
        client.events.on("closed", closed)
        os.kill((await cluster.status())["pid"], signal.SIGKILL)
        async with asyncio.timeout(3):
            await gone.wait()
        assert made
        outcomes = [await handle.outcomes() for handle in handles if handle.done()]
        assert len(outcomes) == 30
        assert all(isinstance(outcome.error, NodeLost) for (outcome,) in outcomes)


async def test_memory_of_a_call_that_was_being_made_when_the_daemon_died_goes_with_the_cluster() -> None:
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        gone = asyncio.Event()
        cluster._client.events.on("closed", lambda facts: gone.set())
        os.kill((await cluster.status())["pid"], signal.SIGKILL)
        await gone.wait()
        close_fds([pool.write([bytes(100_000)], 100_000)])  # as a call does that began before
    assert pool._segments == []


async def test_memory_of_what_is_sent_while_the_cluster_is_closed_goes_with_it() -> None:
    async with Cluster(num_nodes=1, log_to_driver=False) as cluster:
        pass
    written = pool.write([bytes(100_000)], 100_000)  # by a thread that had still found the cluster open
    cluster._client.send((frames.PUT, 1), [written])
    assert pool._segments == []

"""The current cluster of a process, among several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rlinf_async._client import registry
from rlinf_async._client.client import NodeClient


@pytest.fixture
async def clients() -> AsyncIterator[list[NodeClient]]:
    """Two that have been made and have no socket."""
    made = [NodeClient(asyncio.get_running_loop()) for _ in range(2)]
    for number, client in enumerate(made):
        client.welcome = {"run": f"run-{number}"}
    yield made
    for client in made:
        client.close()


async def test_the_only_cluster_that_is_open_is_meant(clients: list[NodeClient]) -> None:
    with pytest.raises(RuntimeError, match="no cluster is open in this process"):
        registry.current()
    assert not registry.any_active()
    registry.activate(clients[0])
    assert registry.any_active()
    assert registry.current() is clients[0]


async def test_of_several_one_must_be_named_until_the_others_have_closed(clients: list[NodeClient]) -> None:
    for client in clients:
        registry.activate(client)
    with pytest.raises(RuntimeError, match=r"2 clusters are open in this process: .* cluster="):
        registry.current()
    clients[0].close()
    assert registry.current() is clients[1]


async def test_a_client_whose_daemon_died_before_its_activation_is_not_open(clients: list[NodeClient]) -> None:
    clients[0]._on_closed("killed")
    registry.activate(clients[0])
    assert not registry.any_active()


async def test_two_seats_of_one_run_are_one_cluster(clients: list[NodeClient]) -> None:
    """A script that enters Cluster() twice under the launcher, or a worker that enters one, is in one run."""
    clients[1].welcome = clients[0].welcome
    for client in clients:
        registry.activate(client)
    assert registry.current() is clients[0]
    clients[0].close()
    assert registry.current() is clients[1]


async def test_a_run_is_found_by_its_id(clients: list[NodeClient]) -> None:
    for client in clients:
        registry.activate(client)
    assert registry.active_in("run-1", "channel") is clients[1]
    clients[1].close()
    with pytest.raises(RuntimeError, match="no open cluster of run run-1"):
        registry.active_in("run-1", "channel")

"""Mesh of daemons at the start of a run, played by small programs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rlinf_async._core.frames import PROTOCOL
from rlinf_async._wire.credentials import NodeCredentials
from rlinf_async._wire.lifeline import Lifeline
from rlinf_async._wire.mesh import launch_error, on_all_nodes, start_nodes
from rlinf_async._wire.node_config import NodeConfig
from rlinf_async.errors import LaunchError, VersionMismatch
from tests._support.lifeline_programs import start

GOOD = """
birth = line()
say(event="up", address="10.0.0.%d:1" % birth["node"], socket="s%d" % birth["node"], pid=1, facts={"cpus": 2})
told = line()
assert told["op"] == "peers"
assert [peer["node"] for peer in told["peers"]] == list(range(len(told["peers"]))), told
assert not any("socket" in peer for peer in told["peers"])
say(event="ready")
line()
"""


@asynccontextmanager
async def nodes(**programs: str) -> AsyncIterator[tuple[list[Lifeline], list[NodeConfig]]]:
    lifelines: list[Lifeline] = []
    try:
        for name, program in programs.items():
            lifelines.append(await start(program, name=name))
        configs = [
            NodeConfig(run="0a1b2c3d", marker=far.marker, node=rank, name=far.name)
            for rank, far in enumerate(lifelines)
        ]
        yield lifelines, configs
    finally:
        for lifeline in lifelines:
            await lifeline.close(0.2)


CONFIG = NodeConfig(
    run="0a1b2c3d", marker="m", node=2, num_nodes=4, name="n", hidden=True, bind="::1",
    credentials=NodeCredentials("ca", "cert", "key"), log_dir="/logs", env={"A": "1"}, max_gpus=3, gpus=["0"],
    fake_gpus=4, labels=["big"], sync=["/near", "/far"], run_dir="/run", tee="0,3", launched=True,
    port_range=[20000, 20010], python_flags=["-O"],
)  # fmt: skip


def test_a_daemon_reads_its_configuration_as_it_was_made() -> None:
    usual = NodeConfig(run="0a1b2c3d", marker="m", labels=[], python_flags=[])
    for config in (CONFIG, usual):
        assert NodeConfig.from_json(json.dumps(config.to_json()).encode()) == config
    assert not [
        name for name, value in vars(CONFIG).items() if vars(usual)[name] == value if name not in ("run", "marker")
    ]
    assert usual.gpus is None  # find out; an empty list would be: use none


@pytest.mark.parametrize("protocol", [None, PROTOCOL + 1])
def test_a_configuration_of_another_protocol_is_told_both_versions(protocol: int | None) -> None:
    told = {"protocol": protocol, "field": "of that version"}
    with pytest.raises(VersionMismatch, match=f"the launcher speaks protocol {protocol}, .* protocol {PROTOCOL}"):
        NodeConfig.from_json(json.dumps(told).encode())


def test_a_field_that_is_missing_or_unknown_is_named() -> None:
    told = CONFIG.to_json()
    with pytest.raises(TypeError, match="'more'"):
        NodeConfig.from_json(json.dumps({**told, "more": 1}).encode())
    del told["marker"]
    with pytest.raises(TypeError, match="'marker'"):
        NodeConfig.from_json(json.dumps(told).encode())


async def test_every_node_is_told_of_every_node() -> None:
    seen: list[tuple[int, str]] = []
    async with nodes(a=GOOD, b=GOOD, c=GOOD) as (lifelines, configs):
        peers = await start_nodes(
            lifelines, configs, timeout=10, progress=lambda node, state, told: seen.append((node, state))
        )
    assert [peer["address"] for peer in peers] == ["10.0.0.0:1", "10.0.0.1:1", "10.0.0.2:1"]
    assert [peer["socket"] for peer in peers] == ["s0", "s1", "s2"]
    assert [peer["name"] for peer in peers] == ["a", "b", "c"]
    assert sorted(seen) == sorted((node, state) for node in range(3) for state in ("up", "ready"))


async def test_no_failure_hides_another() -> None:
    failing = {
        "dead": "line(); print('disk on fire', file=sys.stderr); sys.exit(3)",
        "good": GOOD,
        "unlike": "line(); say(event='failed', error='protocol 2, the launcher speaks 1'); line()",
    }
    seen: list[tuple[int, str]] = []
    async with nodes(**failing) as (lifelines, configs):
        with pytest.raises(LaunchError) as caught:
            await start_nodes(
                lifelines, configs, timeout=10, progress=lambda node, state, told: seen.append((node, state))
            )
    assert sorted(seen) == [(0, "failed"), (1, "up"), (2, "failed")]
    text = str(caught.value)
    assert text.startswith("2 of 3 nodes could not be started:\n  dead    its process ended with exit code 3\n")
    assert "          stderr | disk on fire" in text
    assert "  unlike  protocol 2, the launcher speaks 1" in text
    assert "good" not in text


async def test_a_node_that_cannot_reach_another_fails_the_start() -> None:
    alone = """
    say(event="up", address="a", socket="s", pid=1, facts={})
    line(); line()
    say(event="node_lost", node=0, reason="connection refused")
    line()
    """
    async with nodes(a=GOOD, b=alone) as (lifelines, configs):
        with pytest.raises(LaunchError, match="b  lost its connection to node 0: connection refused"):
            await start_nodes(lifelines, configs, timeout=10)


async def test_a_silent_node_is_named_with_what_it_was_doing_and_saying() -> None:
    silent = "print('loading modules...', flush=True); line(); line()"
    async with nodes(a=GOOD, b=silent) as (lifelines, configs):
        began = time.monotonic()
        with pytest.raises(LaunchError, match=r"1 of 2 (.|\n)*b  was still starting its daemon(.|\n)*loading modules"):
            await start_nodes(lifelines, configs, timeout=0.5)
        assert time.monotonic() - began < 3


async def test_after_the_first_failure_the_others_have_only_some_patience_left() -> None:
    async def work(index: int) -> str:
        if index == 0:
            raise LaunchError("refused")
        if index == 1:
            return "done"
        await asyncio.sleep(1000)
        raise AssertionError

    began = time.monotonic()
    results, failures = await on_all_nodes(3, work, deadline=None, doing="connecting", patience=0.05)
    assert results == {1: "done"}
    assert failures == {0: "refused", 2: "was still connecting when the others failed"}
    assert time.monotonic() - began < 2


def test_a_hidden_node_counts_only_when_it_failed() -> None:
    assert str(launch_error(["a", "b", "here"], {0: "x"}, {2})).startswith("1 of 2 nodes")
    assert str(launch_error(["a", "b", "here"], {0: "x", 2: "y"}, {2})).startswith("2 of 3 nodes")

"""Metrics of one node: devices, processes with and without rings, and a bound on what they have in these."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async._core.operations import ScrapeNode as Operation
from rlinf_async._recorder.state import metric_table as table
from rlinf_async._recorder.state.event_ring import EventRing, MetricKind, ring_path, size_of
from rlinf_launcher.daemon import node_metrics
from rlinf_launcher.daemon.channels import Channels
from rlinf_launcher.daemon.death_watch import DeathWatch
from rlinf_launcher.daemon.handlers import Requester
from rlinf_launcher.daemon.node_metrics import NodeMetricsReader
from rlinf_launcher.daemon.router import Router


class TwoGpus:
    """Probes of a node with a GPU and a MIG slice, whose work is not known."""

    async def device_use(self, timeout: float) -> dict[str, Any]:
        return {"0": {"used": 5, "memory": 10, "percent": 25}, "MIG-1": {"used": 1, "memory": 2}}


class Node:
    """A daemon's tables, without the daemon."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        loop = asyncio.get_running_loop()
        self.router = Router(loop, 0, lambda source, number, operation, fields: None)
        self.deaths = DeathWatch(self.router)
        channels = Channels(loop, self.router, set(), 1 << 20)
        self.metrics = NodeMetricsReader(self.router, channels, self.deaths, TwoGpus(), log_dir)  # type: ignore[arg-type]

    def attach_driver(self, *cells: str) -> None:
        endpoint = self.router.new_endpoint("driver")
        endpoint.is_known, endpoint.pid = True, os.getpid()
        if not cells:
            return
        data = bytearray(size_of(8))
        ring = EventRing(data, 8, {})
        for value, cell in enumerate(cells):
            ring.store(ring.cell(MetricKind.GAUGE, cell) or 0, value)
        path = ring_path(self.log_dir, endpoint.id)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)

    async def told(self) -> dict[str, Any]:
        return await self.metrics.node_metrics(Requester(0, 1), Operation())


async def test_devices_tell_what_is_known_of_them(tmp_path: Path) -> None:
    samples = (await Node(tmp_path).told())["samples"]
    assert samples[table.DEVICE_USED.name] == [["0", 5], ["MIG-1", 1]]
    assert samples[table.DEVICE_MEMORY.name] == [["0", 10], ["MIG-1", 2]]
    assert samples[table.DEVICE_LOAD.name] == [["0", 0.25]]


async def test_ends_that_were_not_expected_are_deaths(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.deaths.ended(5, None)
    node.deaths.ended(6, {"verdict": "was killed"})
    assert (await node.told())["samples"][table.DEATHS.name] == [[1]]


async def test_processes_without_a_ring_have_the_metrics_of_the_kernel_and_operators_none(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.attach_driver("loss")
    node.attach_driver()
    node.router.new_endpoint("operator").is_known = True
    told = await node.told()
    assert told["cells"] == {"loss": (MetricKind.GAUGE, [["driver", "0", 0.0]])}
    assert [row[:2] for row in told["samples"][table.MEMORY.name]] == [["driver", "0"], ["driver", "1"]]


async def test_a_node_serves_a_bounded_number_of_cells_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_metrics, "MAX_CELLS_PER_NODE", 3)
    node = Node(tmp_path)
    node.attach_driver("a", "b")
    node.attach_driver("a", "b")
    told = await node.told()
    assert {cell: len(rows) for cell, (_, rows) in told["cells"].items()} == {"a": 2, "b": 1}
    assert "of this node's processes 3 metrics are served, and no others" in caplog.text
    assert len(told["samples"][table.MEMORY.name]) == 2


async def test_a_link_counts_while_it_is_up_and_neither_silent_nor_over(tmp_path: Path) -> None:
    node = Node(tmp_path)
    links: Any = [(None, 0.0), (None, 2.5), ("closed", 0.0)]
    node.router.node_links.update(
        (number, SimpleNamespace(over=over, seconds_down=down)) for number, (over, down) in enumerate(links)
    )
    assert (await node.told())["samples"][table.NODE_LINKS.name] == [[1]]

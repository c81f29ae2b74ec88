"""Collection of one node's metrics from the daemon, the kernel and the metric cells in processes' rings.

The processes do not take part, so metrics are available even if a process is stopped or its loop is blocked.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from rlinf_async._core import clock, operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async._recorder.state import metric_table as table
from rlinf_async._recorder.state.event_ring import CELL, CELLS_AT, SLOTS_AT, ring_path
from rlinf_async._recorder.state.metric_table import MetricFamily
from rlinf_async._recorder.state.ring_contents import RingMetric, has_metrics, metrics_of

from .channels import Channels
from .death_watch import DeathWatch
from .endpoint import Endpoint
from .handlers import Requester
from .probes import Probes
from .process_state import cpu_seconds, resident_bytes
from .router import Router

logger = own_logger(__name__)

_DEVICE_USE_TIMEOUT_S: Final = 1.0
"""Seconds to wait for the graphics driver; if it does not answer, only the other metrics are served."""

_PROCESSES_PER_TURN: Final = 32

MAX_CELLS_PER_NODE: Final = 1 << 15  # limit on metric cells served per node, so that they fit into one frame

Samples = dict[str, list[list[Any]]]  # maps each metric to rows: labels except the node's, then the value


def metrics_in(log_dir: Path, endpoint: int) -> list[RingMetric]:
    """Return the metrics in a process's ring; none if the process has no complete ring."""
    try:
        with open(ring_path(log_dir, endpoint), "rb", buffering=0) as file:
            file.seek(CELLS_AT)
            if not has_metrics(file.read(CELL.size)):  # with hundreds of ranks per scrape, most files have no metrics
                return []
            file.seek(0)
            return metrics_of(file.read(SLOTS_AT))
    except (OSError, ValueError):
        return []


class NodeMetricsReader:
    """Handler for requests for one node's metrics."""

    def __init__(
        self, router: Router, channels: Channels, death_watch: DeathWatch, probes: Probes, log_dir: Path
    ) -> None:
        self._router = router
        self._channels = channels
        self._death_watch = death_watch
        self._probes = probes
        self._log_dir = log_dir
        self._rank_of_driver: dict[int, int] = {}
        self._driver_ranks = itertools.count()

    async def node_metrics(self, requester: Requester, op: operations.ScrapeNode) -> dict[str, Any]:
        """Return ``samples``, and ``cells``: a map from labelled name to the kind and rows of group, rank and value."""
        samples: Samples = defaultdict(list)
        began = clock.monotonic()
        await asyncio.sleep(0)
        samples[table.LOOP_LAG.name] = [[clock.monotonic() - began]]
        cells: dict[str, tuple[int, list[list[Any]]]] = {}
        alive = [endpoint for endpoint in self._router.endpoints.values() if _is_alive(endpoint)]
        room = MAX_CELLS_PER_NODE
        for number, endpoint in enumerate(alive):
            if number % _PROCESSES_PER_TURN == 0:
                await asyncio.sleep(0)  # let the daemon's more urgent tasks run
            identity = self._identity(endpoint)
            self._add_process(samples, endpoint, identity)
            found = metrics_in(self._log_dir, endpoint.id) if room else []
            for metric in found[:room]:
                cells.setdefault(metric.name, (int(metric.kind), []))[1].append([*identity, metric.value])
            if len(found) > room:
                logger.warning("of this node's processes %d metrics are served, and no others", MAX_CELLS_PER_NODE)
            room = max(0, room - len(found))
        self._add_node(samples)
        await self._add_devices(samples)
        return {"samples": samples, "cells": cells}

    def _identity(self, endpoint: Endpoint) -> tuple[str, str]:
        """Return group and rank; drivers are numbered from 0."""
        if endpoint.process is not None:
            return endpoint.process.setup.group, str(endpoint.process.setup.rank)
        if endpoint.root is not None:
            group, _, rank = endpoint.name.rpartition(":")
            return group, rank
        if endpoint.id not in self._rank_of_driver:
            self._rank_of_driver[endpoint.id] = next(self._driver_ranks)
        return "driver", str(self._rank_of_driver[endpoint.id])

    def _add_process(self, samples: Samples, endpoint: Endpoint, identity: tuple[str, str]) -> None:
        samples[table.MEMORY.name].append([*identity, resident_bytes(endpoint.os_pid)])
        samples[table.CPU.name].append([*identity, cpu_seconds(endpoint.os_pid)])
        if endpoint.process is not None:
            oldest = endpoint.pending_calls.ages(clock.monotonic(), 1)
            samples[table.OPEN_CALLS.name].append([*identity, len(endpoint.pending_calls)])
            samples[table.CALL_AGE.name].append([*identity, oldest[0][3] if oldest else 0.0])

    def _add_node(self, samples: Samples) -> None:
        links = self._router.node_links.values()
        samples[table.NODE_LINKS.name] = [[sum(each.over is None and not each.seconds_down for each in links)]]
        samples[table.DEATHS.name] = [[self._death_watch.deaths]]
        ranks: dict[str, int] = defaultdict(int)
        away: dict[str, int] = defaultdict(int)
        for endpoint in self._router.endpoints.values():
            if endpoint.process is not None:
                ranks[endpoint.process.setup.group] += _is_alive(endpoint)  # a dead group must appear with 0
                away[endpoint.process.setup.group] += endpoint.is_away
        samples[table.RANKS.name] = [[group, count] for group, count in ranks.items()]
        samples[table.AWAY.name] = [[group, count] for group, count in away.items()]
        families = (table.CHANNEL_ITEMS, table.CHANNEL_BYTES, table.CHANNEL_PUTS, table.CHANNEL_GETS)
        channels: dict[tuple[MetricFamily, str], int] = defaultdict(int)  # sums over channels that share a name
        for channel, values in self._channels.measures():
            for family, value in zip(families, values, strict=True):
                channels[family, channel] += value
        for (family, channel), value in channels.items():
            samples[family.name].append([channel, value])

        for hosted in self._channels.all_hosted():
            for state, count in hosted.ledger().items():
                samples[table.EXPERIENCE_SAMPLES.name].append([hosted.name, state, count])

    async def _add_devices(self, samples: Samples) -> None:
        for device, use in (await self._probes.device_use(_DEVICE_USE_TIMEOUT_S)).items():
            samples[table.DEVICE_USED.name].append([device, use["used"]])
            samples[table.DEVICE_MEMORY.name].append([device, use["memory"]])
            if "percent" in use:
                samples[table.DEVICE_LOAD.name].append([device, use["percent"] / 100])


def _is_alive(endpoint: Endpoint) -> bool:
    """True if a process of the run is alive; operators and unidentified connections do not count."""
    if endpoint.process is not None:
        return bool(endpoint.process.pid) and endpoint.process.exit_status is None
    return endpoint.is_known and endpoint.role != "operator" and endpoint.exit_report is None

"""Prometheus text of nodes' answers, and the address of its server."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rlinf_async._recorder.state import metric_table
from rlinf_async._recorder.state.event_ring import MetricKind
from rlinf_async._recorder.state.metric_names import cell_name
from rlinf_launcher.daemon.metrics_server import MetricsServer
from rlinf_launcher.daemon.metrics_text import text_of

GAUGE, COUNTER = int(MetricKind.GAUGE), int(MetricKind.COUNTER)
Answers = dict[str, dict[str, Any] | None]


def version(model: str, role: str) -> str:
    return cell_name("rlinf_weights_version", {"model": model, "role": role})


def answers() -> Answers:
    """A value for each of the framework's metrics on one node, weights and metrics of users on both; one is silent."""
    samples = {family.name: [[*family.labels, 1.5]] for family in metric_table.ALL}
    for family in (metric_table.NODE_UP, metric_table.WEIGHTS, metric_table.STALENESS, metric_table.SKIPPED):
        del samples[family.name]
    cells = {
        version("policy", "published"): (GAUGE, [["actor", "0", 7.0], ["actor", "1", 6.0]]),
        version("policy", "applied"): (GAUGE, [["rollout", "0", 7.0]]),
        cell_name("return", {"task": 'the "best"\n'}): (GAUGE, [["rollout", "0", 1.0]]),
        "episodes": (COUNTER, [["rollout", "0", 8.0]]),
        metric_table.SKIPPED.name: (COUNTER, [["rollout", "0", 9.0]]),
    }
    other = {
        version("policy", "applied"): [GAUGE, [["rollout", "1", 4.0]]],
        version("critic", "applied"): [GAUGE, [["rollout", "1", 2.0]]],
        "return": [GAUGE, [["rollout", "1", float("nan")]]],
    }
    return {
        "gpu00": {"samples": samples, "cells": cells},
        "gpu01": {"samples": {}, "cells": other},
        "gpu02": None,
    }


def scraped(text: bytes) -> dict[str, dict[str, float]]:
    """Return values by metric and label values, in the order of the labels' names."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = " ".join(value for _, value in sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {})
            found[sample.name][labels] = sample.value
    return found


async def test_every_metric_of_the_table_is_served_with_live_nodes() -> None:
    found = scraped(await text_of(answers()))
    assert found.keys() == {family.name for family in metric_table.ALL} | {"return", "episodes_total"}
    assert found["rlinf_node_up"] == {"gpu00": 1.0, "gpu01": 1.0, "gpu02": 0.0}
    assert found["rlinf_cpu_seconds_total"] == {"group gpu00 rank": 1.5}
    assert found["rlinf_recorder_skipped_operations_total"] == {"rollout gpu00 0": 9.0}


async def test_user_metrics_have_their_process_as_labels() -> None:
    found = scraped(await text_of(answers()))
    assert found["episodes_total"] == {"rollout gpu00 0": 8.0}
    assert found["return"].keys() == {'rollout gpu00 0 the "best"\n', "rollout gpu01 1"}


async def test_staleness_counts_from_the_latest_published_version() -> None:
    found = scraped(await text_of(answers()))
    assert found["rlinf_weights_staleness_versions"] == {"rollout policy gpu00 0": 0.0, "rollout policy gpu01 1": 3.0}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: apt-get install prometheus")
async def test_promtool_has_no_complaint_about_any_metric() -> None:
    done = subprocess.run(["promtool", "check", "metrics"], input=await text_of(answers()), capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


async def talk(address: str, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_the_server_answers_metrics_only_and_drops_silent_clients() -> None:
    async def ask() -> Answers:
        return answers()

    server = MetricsServer(ask)
    address = await server.open("127.0.0.1", 0)
    try:
        found = await talk(address, b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert found.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=")
        head, _, body = found.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        assert b'rlinf_node_up{node="gpu02"} 0.0\n' in body
        assert (await talk(address, b"HEAD / HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
        assert (await talk(address, b"GET /secrets HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
        assert (await talk(address, b"POST /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
        assert (await talk(address, b"\xff\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
        with pytest.raises(ConnectionResetError):  # it is not read to its end
            await talk(address, b"x" * (1 << 20))
        silent, writer = await asyncio.open_connection(*address.rsplit(":", 1))
    finally:
        async with asyncio.timeout(5):
            await server.close()
    try:
        assert await silent.read() == b""
    finally:
        writer.close()


async def test_a_port_that_is_taken_is_an_error() -> None:
    async def ask() -> Answers:
        return {}

    first, second = MetricsServer(ask), MetricsServer(ask)
    address = await first.open("127.0.0.1", 0)
    try:
        with pytest.raises(OSError, match="address already in use"):
            await second.open("127.0.0.1", int(address.rsplit(":", 1)[1]))
    finally:
        await first.close()
        await second.close()

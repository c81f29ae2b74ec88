"""Claims on the collectors of the TorchRL that is installed, over three schemes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

if importlib.util.find_spec("torchrl") is None:
    pytest.skip("TorchRL is not installed: pip install 'rlinf-async[torchrl]'", allow_module_level=True)

# The process from which workers are forked, once they were pickled, imports TorchRL at the same time as the program.
PROGRAM = """
import multiprocessing, multiprocessing.forkserver as server
multiprocessing.set_forkserver_preload(["tests.torchrl.collecting"])
server.ensure_running()
from tests.torchrl import collecting
collecting.main()
"""

every_kind = pytest.mark.parametrize("kind", ["multiprocess", "shared memory", "distributed"])
both_ways = pytest.mark.parametrize("way", ["forked", "pickled"])


@pytest.fixture(scope="module")
def story() -> Any:
    """What the program says."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RL_WARNINGS": "0", "PYTHONWARNINGS": "ignore"}
    program = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@both_ways
@every_kind
def test_workers_act_by_exactly_the_weights_that_were_sent_last(story: Any, way: str, kind: str) -> None:
    told = story[way][kind]
    assert [set(actions) for actions in told["batches"]] == [{expected} for expected in told["expected"]]
    assert [set(versions) for versions in told["versions"]] == [{version} for version in range(5)]
    first, *_, last, _ = told["expected"]
    assert abs(last - 3) < abs(first - 3) / 10, "it trains"


@every_kind
def test_a_worker_that_is_killed_is_named_within_a_second_and_the_other_one_goes_on(story: Any, kind: str) -> None:
    told = story["forked"][kind]
    assert told["error"].startswith("PeerLost")
    assert "worker 0 does not have version 7" in told["error"]
    assert "worker 1" not in told["error"]
    assert told["took"] < 1
    assert told["survivor"] == 8


def test_a_collector_in_a_process_of_ones_own_has_each_version_and_no_forward_pass_sees_two(story: Any) -> None:
    told = story["apart"]
    assert [{*map(tuple, actions)} for actions in told["exact"]] == [{(value, value)} for value in (0.0, 1.0, 2.0)]
    assert all(first == last for first, last in told["during"])
    assert len({first for first, _ in told["during"]}) > 3
    assert told["code"] == 0


def test_workers_with_a_factory_begin_alike(story: Any) -> None:
    told = story["factory"]
    assert len(set(told["first"])) == 1
    assert set(told["second"]) == {told["expected"]}


@every_kind
def test_what_keeps_a_worker_from_coming_is_told_by_its_collector_at_once(story: Any, kind: str) -> None:
    error, took = story["broken"][kind]
    assert error.startswith("ValueError: this environment is broken")
    assert took < 10


def test_a_send_that_is_interrupted_before_the_workers_come_may_be_repeated(story: Any) -> None:
    assert story["refusals"]["interrupted"] == ["KeyboardInterrupt()"] * 2


def test_what_cannot_be_is_refused(story: Any) -> None:
    told = story["refusals"]
    assert "use MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme, Dist" in told["other schemes"]
    assert "a Collector, which has none, takes weight_recv_schemes=" in told["without workers"]
    assert "'policy' is builtin_function_or_method" in told["no module"]
    assert "connect() comes before send()" in told["too early"]
    assert "cannot be worker 1 of 1" in told["no such worker"]
    assert "would pass nothing on to them" in told["not a leaf"]
    assert "by asyncio.to_thread()" in told["coroutine"]

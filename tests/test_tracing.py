"""Traces of a run: content, clocks, kills."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rlinf_async import Channel, Cluster, ConfigError, NodePlacementStrategy, Tracer, WorkerDied
from rlinf_async._recorder import recording
from rlinf_async._wire.lifeline import Lifeline
from tests._support import leaks
from tests._support.trace_files import Drawn, Trace
from tests._support.traced_workers import Busy

MS = Decimal(1000)
CHECKOUT = Path(__file__).parents[1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def started(path: Path, **options: Any) -> Cluster:
    return Cluster(trace=path, log_to_driver=False, **options)


@dataclass
class Run:
    """One that has been traced.  Attributes: id: its own; path: of its file."""

    id: str
    path: Path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """For the tests that only look at what is drawn: calls of all kinds, one after the other."""
    path = tmp_path_factory.mktemp("run") / "trace.json"
    with leaks.none_left():
        return Run(asyncio.run(_run_everything(path)), path)


async def _run_everything(path: Path) -> str:
    async with started(path) as cluster:
        group = Busy.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="busy")
        first = group.execute_on(0)
        await group.ping()
        await group.block()
        await group.execute_on(1).ping()
        assert [item async for item in group.count(2)]
        with pytest.raises(ZeroDivisionError):
            await first.fail()
        await group.exchange()
        await group.exchange_in_coroutines()
        await group.broadcasts()
        async with Channel.create("obs", cluster=cluster) as channel:
            await group.put_and_get(channel)
            await channel.put(1)
            await channel.get()
        await group.timed()
        async with Channel.create("slow", cluster=cluster) as channel:
            getting = first.get_one(channel)
            await first.is_traced()
            await asyncio.sleep(0.05)
            await channel.put(1)
            await getting
        await asyncio.gather(*(first.overlap(number) for number in range(4)))
        await first.overlapping_messages(8)
        assert await first.breed() == [0]
        return cluster.run_id


@pytest.fixture
def trace(run: Run) -> Trace:
    return Trace(run.path)


def test_every_call_is_a_span_of_its_caller_and_of_each_callee_with_an_arrow_to_each(trace: Trace) -> None:
    assert trace.processes == {"driver", "busy:0", "busy:1", "busy:0:0"}
    names = ("__init__", "block", "count", "fail", "ping")
    drawn = [(caller, callee) for caller, callee in trace.arrows if callee.name in names]
    arrows = sorted((caller.name, callee.process, callee.name) for caller, callee in drawn)
    both = [
        (f"busy.{name}", f"busy:{rank}", name) for name in ("__init__", "block", "count", "ping") for rank in (0, 1)
    ]
    assert arrows == sorted([*both, ("busy.ping", "busy:1", "ping"), ("busy.fail", "busy:0", "fail")])
    for caller, callee in trace.arrows:
        assert caller.process == "driver"
        assert caller.begin <= callee.begin <= callee.end <= caller.end
        assert callee.args == ({"failed": True} if callee.name == "fail" else {})


def test_messages_channels_and_timers_are_spans_inside_the_call_that_does_them(trace: Trace) -> None:
    for call, process, names in (
        ("exchange", "busy:0", ["send busy:1", "recv busy:1"]),
        ("exchange", "busy:1", ["recv busy:0", "send busy:0"]),
        ("exchange_in_coroutines", "busy:0", ["send busy:1", "recv busy:1"]),
        ("broadcasts", "busy:0", ["broadcast busy:0 busy:1"]),
        ("broadcasts", "busy:1", ["broadcast busy:0 busy:1"]),
        ("put_and_get", "busy:0", ["put obs", "get obs"]),
        ("timed", "busy:1", ["timed", "inner", "mine", "func"]),
    ):
        (span,) = [span for span in trace.of(process, call) if span.category == "call"]
        assert [each.name for each in trace.within(span)] == names, call
    assert trace.of("busy:0", "send busy:1")[0].args["bytes"] > 0
    assert trace.of("busy:1", "inner")[0].category == "busy"
    assert trace.of("busy:0", "mine")[0].args == {"step": 3}
    assert trace.of("driver", "put obs")
    assert trace.of("driver", "get obs")
    assert not trace.of("busy:0", "hidden")


def test_coroutines_that_overlap_have_tracks_of_their_own(trace: Trace) -> None:
    """Reading the trace has checked that nothing on one track overlaps."""
    calls = trace.of("busy:0", "overlap")
    assert len({span.track for span in calls}) == 4
    for span in calls:
        assert [each.name for each in trace.within(span)] == ["outer", "inner"]
    assert len(trace.of("busy:0", "send busy:0")) == len(trace.of("busy:0", "recv busy:0")) == 8


def test_a_subprocess_that_is_a_worker_has_its_place(trace: Trace) -> None:
    (span,) = trace.of("busy:0:0", "sub")
    assert [each.name for each in trace.within(span)] == ["send busy:0"]
    assert trace.of("busy:0", "recv busy:0:0")


def test_users_may_record_what_they_do_in_a_script_and_read_the_file_while_the_run_goes_on(path: Path) -> None:
    with started(path) as cluster:
        group = Busy.create_group().launch(cluster, name="busy")
        Tracer.trace_begin("phase", "script", {"number": 1})
        with Tracer.trace_span("inside"):
            group.ping().wait()
        Tracer.trace_end("phase", "script")
        Tracer.trace_end("never begun")
        assert Tracer.finalize() == str(path)
        trace = Trace(path)
        assert len(trace.of("busy:0", "ping")) == 1
        (phase,) = trace.of("driver", "phase")
        assert (phase.category, phase.args) == ("script", {"number": 1})
        assert [span.name for span in trace.within(phase)] == ["inside", "busy.ping"]
        group.ping().wait()
    assert len(Trace(path).of("busy:0", "ping")) == 2


async def test_a_worker_that_is_killed_has_left_all_that_had_ended(path: Path) -> None:
    async with started(path) as cluster:
        group = Busy.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="busy")
        await Tracer.finalize()
        await group.execute_on(0).steps(5000)
        with pytest.raises(WorkerDied):
            await group.execute_on(0).kill_itself()
        await group.execute_on(1).ping()
        await Tracer.finalize()
        Trace(path)
    trace = Trace(path)
    assert len(trace.of("busy:0", "step")) == 5000
    assert trace.of("driver", "busy.kill_itself")[0].args == {}
    assert not trace.of("busy:0", "kill_itself")
    assert trace.of("busy:1", "ping")


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_a_file_that_is_whole_up_to_its_last_line(path: Path) -> None:
    script = (
        "import os, signal\n"
        "from rlinf_async import Cluster, Tracer\n"
        "from tests._support.traced_workers import Busy\n"
        f"cluster = Cluster(trace={str(path)!r}, log_to_driver=False)\n"
        "group = Busy.create_group().launch(cluster, name='busy')\n"
        # Spans come by themselves: it is killed when some have.
        f"while open({str(path)!r}).read().count('step') < 1000:\n"
        "    group.steps(500).wait()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    if not path.read_bytes().endswith(b"]}\n"):  # killed within a write, which the kernel ends at a page's border
        assert path.stat().st_size % os.sysconf("SC_PAGESIZE") == 0
        path.write_text(path.read_text().rpartition(",\n")[0] + "\n]}\n")
    assert len(Trace(path).of("busy:0", "step")) >= 256


async def test_a_run_that_is_not_traced_records_nothing() -> None:
    async with Cluster(log_to_driver=False) as cluster:
        group = Busy.create_group().launch(cluster, name="busy")
        assert recording.log is None
        assert await group.is_traced() == [False]
        with Tracer.trace_span("nothing"):
            Tracer.trace_begin("nothing")
            Tracer.trace_end("nothing")
        assert await Tracer.finalize() is None


@pytest.mark.slow
async def test_the_configuration_turns_it_on_and_an_argument_or_the_variable_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"cluster": {"num_nodes": 1, "tracer": {"enable": True, "output_file": str(tmp_path / "config.json")}}}
    async with Cluster(cluster_cfg=config, log_to_driver=False):
        assert recording.log is not None
    assert recording.log is None
    monkeypatch.setenv("RLINF_TRACE", str(tmp_path / "variable.json"))
    async with Cluster(cluster_cfg=config, log_to_driver=False) as cluster:
        # A run that a worker starts would write into the same file.
        assert await Busy.create_group().launch(cluster, name="busy").variable("RLINF_TRACE") == [None]
    async with Cluster(cluster_cfg=config, trace=str(tmp_path / "argument.json"), log_to_driver=False):
        pass
    async with Cluster(cluster_cfg=config, trace=False, log_to_driver=False):
        assert recording.log is None
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "variable.json", "argument.json"}
    async with Cluster(trace=True, distributed_log_dir=str(tmp_path / "logs"), log_to_driver=False):
        pass
    assert Trace(tmp_path / "logs" / "trace.json").processes == set()


def test_a_file_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the trace cannot be written to .*Is a directory"):
        started(tmp_path)


@pytest.mark.slow
def test_under_the_launcher_a_flag_is_enough(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from rlinf_async import Cluster, NodePlacementStrategy\n"
        "from tests._support.traced_workers import Busy\n"
        "for name in ('first', 'second'):\n"
        "    with Cluster() as cluster:\n"
        "        Busy.create_group().launch(cluster, NodePlacementStrategy([0, 1]), name=name).ping().wait()\n"
    )
    command = [sys.executable, "-m", "rlinf_launcher", "--local-nodes", "2", "--trace", "run.json", script]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    trace = Trace(tmp_path / "run.json")
    assert {"first:0", "first:1", "second:0", "second:1", "driver"} == trace.processes
    assert len([callee for _, callee in trace.arrows if callee.name == "ping"]) == 4


def drawn_late(trace: Trace, rank: int) -> list[tuple[Drawn, Drawn]]:
    """Calls of one rank, without the first ones."""
    return [(a, b) for a, b in trace.arrows if b.process == f"busy:{rank}" and b.name == "ping"][5:]


def assert_aligned(trace: Trace) -> None:
    """What happens on one node between two things on the other one is drawn between them, within a millisecond."""
    for rank in (0, 1):
        calls = drawn_late(trace, rank)
        assert len(calls) > 50
        assert all(caller.begin - MS <= callee.begin for caller, callee in calls)
        assert all(callee.end <= caller.end + MS for caller, callee in calls)
        # The fastest call leaves no room for a clock that is wrong by more.
        assert min(caller.end - caller.begin for caller, _ in calls) < 5 * MS
    for sent, received in zip(trace.of("busy:0", "send busy:1"), trace.of("busy:1", "recv busy:0"), strict=True):
        assert sent.begin <= received.end + MS


async def run_on_two_nodes(path: Path) -> None:
    async with started(path, local_nodes=2) as cluster:
        group = Busy.create_group().launch(cluster, NodePlacementStrategy([0, 1]), name="busy")
        for _ in range(100):
            await group.ping()
        await group.exchange()


@pytest.mark.slow
async def test_spans_of_two_nodes_line_up_although_a_daemon_has_another_clock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them another one than the driver, and than the other daemon."""

    def elsewhen(number: int) -> list[str]:
        seconds = (100_000, 40_000)[number]
        return ["unshare", "--time", f"--monotonic={seconds}", "--fork", "--kill-child=SIGKILL"]

    probe = subprocess.run([*elsewhen(0), "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"a clock of its own needs a time namespace: {probe.stderr.strip()}")
    start = Lifeline.start
    started_so_far = 0

    async def start_elsewhen(argv: list[str], **options: Any) -> Lifeline:
        nonlocal started_so_far
        started_so_far += 1
        return await start([*elsewhen(started_so_far - 1), *argv], **options)

    monkeypatch.setattr(Lifeline, "start", start_elsewhen)
    await run_on_two_nodes(path)
    assert started_so_far == 2
    trace = Trace(path)
    assert_aligned(trace)
    times = [span.begin for span in trace.spans]
    assert max(times) - min(times) < 60_000 * MS

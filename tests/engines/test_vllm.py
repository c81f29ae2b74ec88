"""vLLM as a worker group: updates under load, and deaths of each of its processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from unittest import mock

import psutil
import pytest
import pytest_asyncio

pytest.importorskip("vllm", reason="vLLM is not installed: make engines runs these in an environment that has it")
from rlinf_async import Cluster, NodePlacementStrategy, WorkerDied
from rlinf_async.engines import Completion, EngineGroup, Request
from rlinf_async.engines.engine import EngineSettings
from rlinf_async.engines.vllm_backed import VllmBacked
from tests.engines.engine_trainers import NoiseTrainer
from tests.engines.tiny_model import make_model

pytestmark = [pytest.mark.engines, pytest.mark.asyncio(loop_scope="module"), pytest.mark.shared_cluster]

OPTIONS = {
    "enforce_eager": True,
    "max_model_len": 512,
    "dtype": "float32",
    "max_num_seqs": 64,
    "kv_cache_memory_bytes": 64 << 20,
}
PROMPT = [5, 6, 7]
KILLS = int(os.environ.get("RLINF_ENGINE_KILLS", "1"))
"""Times that each process of an engine is killed and stopped."""
STALL_S = 15.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("model")))


class Setup:
    def __init__(self, cluster: Cluster, trainer: Any, llm: EngineGroup) -> None:
        self.cluster = cluster
        self.trainer = trainer
        self.llm = llm

    async def settled(self, version: int) -> None:
        """Wait until all engines sample with a version."""
        async with asyncio.timeout(600):
            await self.trainer.delivered()
            while min(await self.llm.versions()) < version:
                await asyncio.sleep(0.02)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def setup(model: str) -> AsyncIterator[Setup]:
    async with Cluster(local_nodes=1, log_to_driver=False) as cluster:
        trainer = NoiseTrainer.create_group(model, verify="sha256").launch(
            cluster, NodePlacementStrategy([0]), name="trainer", seed=0
        )
        llm = EngineGroup("vllm", model=model, **OPTIONS).launch(
            cluster,
            NodePlacementStrategy([0, 0]),
            name="llm",
            follow="trainer",
            verify="sha256",
            stall_timeout=STALL_S,
            restart="rank",
            max_restarts=100,
            env={"VLLM_CPU_OMP_THREADS_BIND": "nobind"},  # by itself, each engine would bind its threads to core 0
        )
        await llm
        yield Setup(cluster, trainer, llm)


async def sample_until(llm: EngineGroup, is_over: asyncio.Event, found: list[Completion]) -> None:
    while not is_over.is_set():
        found += await sample_all(llm)


async def test_every_update_reaches_both_engines_under_load(setup: Setup) -> None:
    updates = int(os.environ.get("RLINF_ENGINE_UPDATES", "20"))
    found: list[Completion] = []
    is_over = asyncio.Event()
    sampling = asyncio.ensure_future(sample_until(setup.llm, is_over, found))
    pauses: list[float] = []
    try:
        for _ in range(updates):
            [version] = await setup.trainer.update()
            await setup.settled(version)
            [digests] = await setup.trainer.digests()
            for checksums in await setup.llm.checksums():
                assert {name: digests[name] for name in checksums} == checksums
                assert len(checksums) > 10
            for stats in await setup.llm.stats():
                pauses.append(stats["pause_s"] - stats["load_s"])
    finally:
        is_over.set()
        await sampling
    assert {len(each.tokens) for each in found} == {100}
    assert all(len(each.versions) == 100 and each.versions == sorted(each.versions) for each in found)
    assert any(len(set(each.versions)) > 1 for each in found), "no request was under way during an update"
    print(
        f"{updates} updates, {len(found)} completions; pause beside the load: {sorted(pauses)[len(pauses) // 2]:.3f} s"
    )


async def test_log_probs_are_those_of_the_trainers_forward_pass(setup: Setup) -> None:
    [version] = await setup.trainer.update()
    await setup.settled(version)
    completion = await setup.llm.complete(PROMPT, max_tokens=40, ignore_eos=True)
    assert set(completion.versions) == {version}
    [expected] = await setup.trainer.log_probs(PROMPT + completion.tokens, 40)
    assert completion.log_probs == pytest.approx(expected, abs=1e-4)


async def sample_all(llm: EngineGroup) -> list[Completion]:
    return [each async for each in llm.generate([PROMPT] * 8, max_tokens=100, ignore_eos=True)]


def scheduler_of(llm: EngineGroup, rank: int) -> psutil.Process:
    own = psutil.Process(llm.workers.worker_info_list[rank].worker.pid)
    [scheduler] = [each for each in own.children() if "EngineCore" in each.name() + " ".join(each.cmdline())]
    return scheduler


def process_tree(llm: EngineGroup, rank: int) -> dict[str, psutil.Process]:
    """Return the processes of one engine, by what they are."""
    scheduler = scheduler_of(llm, rank)
    [worker] = [each for each in scheduler.children() if "Worker" in each.name() + " ".join(each.cmdline())]
    return {"rank": psutil.Process(scheduler.ppid()), "scheduler": scheduler, "worker": worker}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", ["rank", "scheduler", "worker"])
async def test_no_completion_is_lost_when_a_process_of_an_engine_fails(
    setup: Setup, victim: str, number: signal.Signals
) -> None:
    llm = setup.llm
    deaths: asyncio.Queue[WorkerDied] = asyncio.Queue()
    llm.workers.on_death(partial(asyncio.get_running_loop().call_soon_threadsafe, deaths.put_nowait))
    for _ in range(KILLS):
        processes = process_tree(llm, 0)
        while not deaths.empty():
            deaths.get_nowait()
        found: list[Completion] = []
        is_over = asyncio.Event()
        sampling = asyncio.ensure_future(sample_until(llm, is_over, found))
        try:
            while len(found) < 8:
                await asyncio.sleep(0.01)
            [version] = await setup.trainer.update()
            begun = time.monotonic()
            os.kill(processes[victim].pid, number)
            if victim == "rank" and number == signal.SIGSTOP:
                before = len(found)
                while len(found) < before + 40:
                    await asyncio.sleep(0.05)
                os.kill(processes[victim].pid, signal.SIGCONT)
            else:
                death = await asyncio.wait_for(deaths.get(), 60)
                took = time.monotonic() - begun
                limit = 1.0 if number == signal.SIGKILL else 2 * STALL_S
                print(f"{victim} {number.name}: told after {took:.2f} s: {death.verdict}")
                assert took < limit
                if victim != "rank":
                    assert str(processes[victim].pid) in death.verdict
            [version] = await setup.trainer.update()
            await setup.settled(version)
        finally:
            is_over.set()
            await sampling
        assert len(found) % 8 == 0
        assert {len(each.tokens) for each in found} == {100}
        assert sorted(each.index for each in found) == sorted(list(range(8)) * (len(found) // 8))
        for process in processes.values():
            assert (victim == "rank" and number == signal.SIGSTOP) or not process.is_running()


@contextlib.asynccontextmanager
async def another(setup: Setup, kind: str, model: str, on_update: Any, **options: Any) -> AsyncIterator[Setup]:
    """Launch one more engine, with a trainer of its own."""
    trainer = NoiseTrainer.create_group(model, "another", verify="sha256").launch(
        setup.cluster, NodePlacementStrategy([0]), name="other", seed=1
    )
    llm = EngineGroup(kind, model=model, **OPTIONS, **options).launch(
        setup.cluster,
        NodePlacementStrategy([0]),
        name="another",
        follow="other",
        on_update=on_update,
        verify="sha256",
        restart="rank",
        max_restarts=100,
        env={"VLLM_CPU_OMP_THREADS_BIND": "0|1"} if "tensor_parallel_size" in options else {},
    )
    async with trainer, llm:
        yield Setup(setup.cluster, trainer, llm)


@pytest.mark.parametrize("kind", ["vllm", "http"])
async def test_aborted_requests_begin_anew_and_have_one_version(setup: Setup, model: str, kind: str) -> None:
    async with another(setup, kind, model, "abort") as it:
        found: list[Completion] = []
        is_over = asyncio.Event()
        sampling = asyncio.ensure_future(sample_until(it.llm, is_over, found))
        try:
            for count in range(1, 4):
                while len(found) < 8 * count:
                    await asyncio.sleep(0.01)
                [version] = await it.trainer.update()
                await it.settled(version)
        finally:
            is_over.set()
            await sampling
    assert {len(each.tokens) for each in found} == {100}
    assert all(len(set(each.versions)) == 1 for each in found)
    assert len({each.versions[0] for each in found}) > 1


async def test_a_tensor_parallel_engine_loads_shards_of_one_version_and_survives_the_kill_of_a_worker(
    setup: Setup, model: str
) -> None:
    deaths: asyncio.Queue[WorkerDied] = asyncio.Queue()
    async with another(setup, "vllm", model, "keep", tensor_parallel_size=2) as it:
        it.llm.workers.on_death(partial(asyncio.get_running_loop().call_soon_threadsafe, deaths.put_nowait))
        for count in range(1 + KILLS):
            [version] = await it.trainer.update()
            await it.settled(version)
            [digests] = await it.trainer.digests()
            [checksums] = await it.llm.checksums()
            assert {name: digests[name] for name in checksums} == checksums
            [[tokens, _]] = await it.trainer.greedy(PROMPT, 20)
            completion = await it.llm.complete(PROMPT, max_tokens=20, temperature=0, ignore_eos=True)
            assert completion.tokens == tokens
            if count == KILLS:
                break
            workers = [each for each in scheduler_of(it.llm, 0).children() if "Worker" in each.name()]
            assert len(workers) == 2
            sampling = asyncio.ensure_future(sample_all(it.llm))
            await asyncio.sleep(0.2)
            begun = time.monotonic()
            workers[1].kill()
            death = await asyncio.wait_for(deaths.get(), 60)
            print(f"tensor-parallel worker: told after {time.monotonic() - begun:.2f} s: {death.verdict}")
            assert str(workers[1].pid) in death.verdict
            assert {len(each.tokens) for each in await sampling} == {100}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # vLLM's import calls torch.jit
async def test_a_prefix_is_dropped_where_an_update_is_loaded_before_the_request() -> None:
    from rlinf_async.engines.vllm_engine import VllmEngine

    engine = object.__new__(VllmEngine)
    VllmBacked.__init__(engine, EngineSettings("", {}, on_update="wait"), "llm:0")
    engine._numbers, engine._llm = itertools.count(), mock.AsyncMock()
    engine._llm.generate = mock.Mock(side_effect=asyncio.CancelledError)
    await engine._hold()
    asking = asyncio.ensure_future(anext(engine.generate(Request(PROMPT), PROMPT, prefix=[8])))
    await asyncio.sleep(0)
    engine._version = 2
    await engine._release()
    await asyncio.gather(asking, return_exceptions=True)
    [[prompt, *_], _] = engine._llm.generate.call_args
    assert prompt["prompt_token_ids"] == PROMPT


async def test_an_engine_that_cannot_start_says_the_cause(setup: Setup, model: str) -> None:
    group = EngineGroup("vllm", model=model, **OPTIONS | {"kv_cache_memory_bytes": 1000})
    with pytest.raises(RuntimeError, match=r"(?s)initialization failed.*\| ValueError: No available memory"):
        await group.launch(setup.cluster, NodePlacementStrategy([0]), name="cannot_start")

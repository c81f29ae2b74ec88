"""Requests to vLLM through a group of engines, beside vLLM's ``AsyncLLM`` in the bench's own process.

    make engines-env
    .venv-vllm/bin/python -m benches.bench_engines [--rounds 10] [--quick]

Both have an engine of the same tiny model, alive all the time, and take turns.  The model is so small that vLLM's own
work per token, and what stands around it, is most of the time.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final

from rlinf_async import Cluster, NodePlacementStrategy
from rlinf_async.engines import EngineGroup
from tests.engines.tiny_model import make_model

from . import measure
from .measure import OURS, Case, Target
from .options import parse

BENCH: Final = "engines"
BARE: Final = "bare AsyncLLM"
PROMPT: Final = [5, 6, 7, 8]
TOKENS: Final = 64
ENGINE: Final = {
    "enforce_eager": True,
    "max_model_len": 512,
    "dtype": "float32",
    "max_num_seqs": 64,
    "kv_cache_memory_bytes": 64 << 20,
    "disable_log_stats": True,
}

RATE: Final = Case(
    BENCH, "requests", "requests/s", more_is_better=True, targets=(Target(0.88, BARE, at_least=True),),
    note=f"256 requests of {TOKENS} tokens, 64 in flight",
)  # fmt: skip
FIRST: Final = {
    in_flight: Case(
        BENCH,
        f"first_token_{in_flight}",
        "ms",
        1e3,
        note=f"beside {in_flight} streams in flight; at most {most} ms more",
    )
    for in_flight, most in ((4, 3), (64, 30))
}

Stream = Callable[[int], AsyncIterator[Any]]
"""Yields something when the first token is there, and again for later ones; the argument is the number of tokens."""
Complete = Callable[[], Awaitable[None]]


async def rate(complete: Complete, count: int) -> list[float]:
    """Requests per second, with 64 in flight."""
    left = iter(range(count))

    async def one_after_the_other() -> None:
        for _ in left:
            await complete()

    begun = time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(64)))
    return [count / (time.perf_counter() - begun)]


async def first_token(stream: Stream, in_flight: int) -> list[float]:
    """Seconds until the first token of each of ten requests, beside so many that go on."""
    is_over = asyncio.Event()

    async def go_on() -> None:
        while not is_over.is_set():
            async with aclosing(stream(TOKENS)) as items:
                async for _ in items:
                    pass

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight - 1):
            group.create_task(go_on())
        await asyncio.sleep(0.3)
        samples = []
        for _ in range(10):
            begun = time.perf_counter()
            async with aclosing(stream(2)) as items:
                await anext(items)
                samples.append(time.perf_counter() - begun)
                async for _ in items:
                    pass
        is_over.set()
    return samples


def of_group(llm: EngineGroup) -> tuple[Complete, Stream]:
    async def complete() -> None:
        completion = await llm.complete(PROMPT, max_tokens=TOKENS, ignore_eos=True)
        assert len(completion.tokens) == len(completion.log_probs) == TOKENS

    def stream(tokens: int) -> AsyncIterator[Any]:
        return llm.stream(PROMPT, max_tokens=tokens, ignore_eos=True)

    return complete, stream


def of_bare(engine: Any) -> tuple[Complete, Stream]:
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    numbers = itertools.count()

    def stream(tokens: int, kind: Any = RequestOutputKind.DELTA) -> AsyncIterator[Any]:
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, logprobs=0, output_kind=kind)
        found: AsyncIterator[Any] = engine.generate(TokensPrompt(prompt_token_ids=PROMPT), params, f"r{next(numbers)}")
        return found

    async def complete() -> None:
        async for output in stream(TOKENS, RequestOutputKind.FINAL_ONLY):
            assert len(output.outputs[0].token_ids) == len(output.outputs[0].logprobs) == TOKENS

    return complete, stream


async def bench(model: str, rounds: int, quick: bool, wants: Callable[[str], bool]) -> None:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **ENGINE))
    try:
        async with Cluster(local_nodes=1, log_to_driver=False) as cluster:
            llm = EngineGroup("vllm", model=model, **ENGINE).launch(cluster, NodePlacementStrategy([0]), name="llm")
            await llm
            contestants: dict[str, tuple[Complete, Stream]] = {OURS: of_group(llm), BARE: of_bare(engine)}
            count = 64 if quick else 256
            works = [(RATE, {who: partial(rate, each[0], count) for who, each in contestants.items()})]
            for in_flight, case in FIRST.items():
                works += [(case, {who: partial(first_token, each[1], in_flight) for who, each in contestants.items()})]
            for case, measures in works:
                if wants(case.name):
                    await _by_turns(case, measures, rounds)
    finally:
        engine.shutdown(1.0)


async def _by_turns(case: Case, measures: dict[str, Callable[[], Awaitable[Sequence[float]]]], rounds: int) -> None:
    found = []
    for index in range(-1, rounds):
        names = list(measures) if index % 2 else list(measures)[::-1]
        measured = {who: list(await measures[who]()) for who in names}
        if index >= 0:
            found.append({who: measured[who] for who in measures})
    row = case.row(found)
    row["more_ms"] = (
        None
        if case is RATE
        else 1e3 * statistics.median(statistics.median(each[OURS]) - statistics.median(each[BARE]) for each in found)
    )
    measure.print_row(row)


def main() -> None:
    options = parse("vLLM in a group of engines, beside bare vLLM.", rounds=10, peers=())
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    with tempfile.TemporaryDirectory() as folder:
        model = str(make_model(Path(folder)))
        asyncio.run(bench(model, 1 if options.quick else options.rounds, options.quick, options.wants))


if __name__ == "__main__":
    main()

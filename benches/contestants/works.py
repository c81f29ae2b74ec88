"""Contestant's end of the line protocol; measurements of calls, launches and memory for all frameworks.

A contestant is a process that reads one JSON object per line, ``{"work": name, …}``, makes the measurement and answers
with one line, ``{"samples": […]}`` or ``{"error": traceback}``. It exits at the end of its input. All frameworks share
the measurements; each only defines how it launches and calls workers. This file needs only the standard library,
because it also runs in the peers' environments.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

Samples = list[float]


class Framework:
    """Interface that each framework implements. ``first`` is the group that ``start`` launched.

    The workers have the methods ``ping`` (async) and ``ping_def``, which return their argument, ``use_torch``, ``pid``,
    and ``numel`` and ``summed`` of a tensor.
    """

    first: Any = None

    async def start(self, workers: int) -> None:
        """Start the framework and launch ``first``, without waiting for the constructors."""
        raise NotImplementedError

    async def launch(self, workers: int) -> Any:
        """Launch more workers, without waiting for their constructors."""
        raise NotImplementedError

    async def end(self, group: Any) -> None:
        """Stop a group that ``launch`` returned."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop everything."""

    def one(self, method: str) -> Awaitable[Any]:
        """Call the first worker of ``first``, without arguments."""
        raise NotImplementedError

    def any(self, method: str) -> Awaitable[Any]:
        """Call the worker of ``first`` with the fewest open calls."""
        raise NotImplementedError

    def one_in_turn(self, method: str) -> Awaitable[Any]:
        """Call the workers of ``first`` in turn, one each time."""
        raise NotImplementedError

    def all(self, group: Any, method: str, *args: Any) -> Awaitable[Sequence[Any]]:
        """Call every worker of a group."""
        raise NotImplementedError

    async def together(self, calls: Iterable[Awaitable[Any]]) -> None:
        """Start all calls, and then wait for all of them."""
        await asyncio.gather(*calls)

    def tensor(self, mebibytes: int) -> Any:
        """Return a large float32 argument, written once so that its pages exist."""
        import torch

        return torch.ones(mebibytes << 18)


class Works:
    """Measurements by the names that the benches use; in seconds, except for rates and MiB."""

    def __init__(self, framework: Framework, born: float) -> None:
        self._framework = framework
        self._born = born
        self._tensors: dict[int, Any] = {}

    async def cold(self, workers: int, method: str) -> Samples:
        """Return the seconds from the first line of this process's script to the first replies."""
        framework = self._framework
        await framework.start(workers)
        await framework.all(framework.first, method)
        return [time.perf_counter() - self._born]

    async def more(self, workers: int, method: str, settle: float = 0.0) -> Samples:
        """Return the seconds from the launch of more workers to their first replies."""
        await asyncio.sleep(settle)
        framework = self._framework
        began = time.perf_counter()
        group = await framework.launch(workers)
        await framework.all(group, method)
        taken = time.perf_counter() - began
        await framework.end(group)
        return [taken]

    async def memory(self) -> Samples:
        """Return the proportional set size of every worker, in MiB."""
        framework = self._framework
        return [pss(pid) for pid in await framework.all(framework.first, "pid")]

    async def growth(self, workers: int, calls: int) -> dict[str, Samples]:
        """Launch a separate group; return seconds to launch, seconds per group call, MiB per worker."""
        framework = self._framework
        began = time.perf_counter()
        group = await framework.launch(workers)
        pids = await framework.all(group, "pid")
        launched = time.perf_counter() - began
        for _ in range(min(20, calls)):
            await framework.all(group, "ping")
        taken = await _timed(lambda: framework.all(group, "ping"), calls)
        sizes = [pss(pid) for pid in pids]
        await framework.end(group)
        return {"launch": [launched], "call": taken, "memory": sizes}

    async def call(self, count: int, method: str) -> Samples:
        return await _timed(lambda: self._framework.one(method), count)

    async def pipelined(self, count: int, method: str) -> Samples:
        """Return the calls per second to one worker, all in flight."""
        one = self._framework.one
        began = time.perf_counter()
        await self._framework.together(one(method) for _ in range(count))
        return [count / (time.perf_counter() - began)]

    async def any_call(self, count: int) -> Samples:
        """Return the ratio of a call that any rank takes to one to a named rank, alternating."""
        named = _timed_once(lambda: self._framework.one("ping"))
        anyone = _timed_once(lambda: self._framework.any("ping"))
        return [await anyone() / await named() for _ in range(count)]

    async def any_in_flight(self, count: int, in_flight: int) -> Samples:
        """Return the same ratio for this many open calls, compared with calls to the named ranks in turn."""
        samples = []
        for call in (self._framework.any, self._framework.one_in_turn):
            began, calls = time.perf_counter(), deque[Awaitable[Any]]()
            for _ in range(count):
                if len(calls) == in_flight:
                    await calls.popleft()
                calls.append(call("ping"))
            await self._framework.together(calls)
            samples.append(time.perf_counter() - began)
        return [samples[0] / samples[1]]

    async def group_call(self, count: int, method: str) -> Samples:
        framework = self._framework
        return await _timed(lambda: framework.all(framework.first, method), count)

    async def group_pipelined(self, count: int, ranks: int, method: str) -> Samples:
        """Return calls times ranks per second, all in flight."""
        framework = self._framework
        began = time.perf_counter()
        await framework.together(framework.all(framework.first, method) for _ in range(count))
        return [count * ranks / (time.perf_counter() - began)]

    async def argument(self, mebibytes: int, count: int, method: str) -> Samples:
        """Measure a large tensor as an argument to every worker."""
        framework = self._framework
        if mebibytes not in self._tensors:
            self._tensors[mebibytes] = framework.tensor(mebibytes)
        tensor = self._tensors[mebibytes]
        return await _timed(lambda: framework.all(framework.first, method, tensor), count)

    async def close(self) -> Samples:
        began = time.perf_counter()
        await self._framework.stop()
        return [time.perf_counter() - began]


async def _timed(call: Callable[[], Awaitable[Any]], count: int) -> Samples:
    samples = []
    for _ in range(count):
        began = time.perf_counter()
        await call()
        samples.append(time.perf_counter() - began)
    return samples


def _timed_once(call: Callable[[], Awaitable[Any]]) -> Callable[[], Coroutine[Any, Any, float]]:
    async def timed() -> float:
        return (await _timed(call, 1))[0]

    return timed


async def ticks(count: int | None, done: asyncio.Event | None = None) -> Samples:
    """Return the lateness of millisecond timers on the running loop, of ``count`` timers or until ``done``."""
    loop = asyncio.get_running_loop()
    samples: Samples = []
    while len(samples) < count if count is not None else not (done and done.is_set()):
        due = loop.time() + 0.001
        await asyncio.sleep(0.001)
        samples.append(max(0.0, loop.time() - due))
    return samples


def p99(samples: Samples) -> float:
    return sorted(samples)[len(samples) * 99 // 100]


def pss(pid: int) -> float:
    """Return a process's own memory plus its share of shared memory, in MiB."""
    return _memory(pid, "Pss")


def private(pid: int) -> float:
    """Return a process's own memory, in MiB."""
    return _memory(pid, "Private_Dirty") + _memory(pid, "Private_Clean")


def _memory(pid: int, name: str) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"/proc/{pid}/smaps_rollup says nothing of {name}")
    return int(found[1]) / 1024


class Answers:
    """Writer of lines to the bench; other output of this process and its children goes to stderr."""

    def __init__(self) -> None:
        self._lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def send(self, answer: Any) -> None:
        self._lines.write(json.dumps(answer) + "\n")
        self._lines.flush()


async def serve(works: object) -> None:
    """Answer requests on the running loop until the input ends, each by a coroutine function of ``works``."""
    answers = Answers()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        try:
            work: Callable[..., Coroutine[Any, Any, Any]] = getattr(works, request.pop("work"))
            answer = {"samples": await work(**request)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.send(answer)


def run(framework: Framework, born: float) -> None:
    """Run a framework's contestant script."""
    asyncio.run(serve(Works(framework, born)))

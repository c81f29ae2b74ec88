"""``Experiencing``, the worker that puts into experiences and takes from them; the same for a driver."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any, Final

from rlinf_async import Experience
from tests.simulation.needing import Needing
from tests.simulation.operations import Operation
from tests.simulation.subject import begin, follow

LEASE_S: Final = 5.0

_TAKES = itertools.count()


class Experiencing(Needing):
    """Does with an experience what it is told, and notes it."""

    async def contribute(self, experience: Experience, line: int, numbers: Sequence[int], *facts: Any) -> None:
        await contribute(self.name, experience, line, numbers, *facts)

    async def consume(self, experience: Experience, line: int, times: int, groups: int, how: str, key: Any) -> None:
        await consume(self.name, experience, line, times, groups, how, key)

    async def advance(self, experience: Experience, line: int, version: int, restart: bool) -> None:
        operation = begin(self.name, "e_version", line, version, restart)
        await follow(operation, experience.set_version(version, restart=restart), lambda _: "set")
        _excuse(operation, "ClosedError", "ValueError")  # of two calls at once the later one may come first


def _excuse(operation: Operation, *names: str) -> None:
    if operation.error is not None and operation.error[0] in names:
        operation.value, operation.error = operation.error[0], None


async def contribute(
    who: str, experience: Experience, line: int, numbers: Sequence[int], name: int, lag: int, how: str, key: Any
) -> None:
    """Put samples one behind the other, made by weights that are ``lag`` versions old."""
    for number in numbers:
        operation = begin(who, "e_wish", line, how)
        asked = experience.wanted() if how == "wanted" else _version(experience)
        await follow(operation, asked, lambda version: ("version", version))
        _excuse(operation, "ClosedError", "PeerLost")
        if not isinstance(operation.value, tuple):
            return
        version = max(0, (operation.value[1] or 0) - lag)
        operation = begin(who, "e_put", line, number, name, version)
        timeout = 0.05 if how == "soon" else None
        sample = (line, number, name, version)
        work = experience.put(sample, version=version, group=name, key=key, timeout=timeout)
        await follow(operation, work, lambda _: "in")
        _excuse(operation, "ClosedError", "DeadlineExceeded")


async def _version(experience: Experience) -> int | None:
    version: int | None = (await experience.stats()).version
    return version


async def consume(who: str, experience: Experience, line: int, times: int, groups: int, how: str, key: Any) -> None:
    for _ in range(times):
        nonce = next(_TAKES)
        operation = begin(who, "e_take", line, nonce, groups, how)
        await follow(operation, _take(who, experience, line, nonce, groups, how, key), lambda _: "well")
        _excuse(operation, "EndOfChannel", "ClosedError", "ValueError", "LookupError", "LeaseLost")
        if operation.value in ("EndOfChannel", "ClosedError", "ValueError") or operation.error is not None:
            return


async def _take(who: str, experience: Experience, line: int, nonce: int, groups: int, how: str, key: Any) -> None:
    stale = {"on_stale": lambda samples, behind: samples} if how == "stale" else {}
    async with experience.take(groups, key, **stale) as batch:
        samples = [[list(sample) for sample in group] for group in batch]
        begin(who, "e_had", line, nonce, samples, how, batch.version)
        numbers = [[number for _, number, *_ in group] for group in samples]
        if how == "fail":
            raise LookupError("not wanted")
        if how == "long":
            await asyncio.sleep(LEASE_S + 0.5)
        if how == "part":
            await batch.done()
            begin(who, "e_took", line, nonce, numbers.pop(0))
            raise LookupError("no more")
        await asyncio.sleep(0.001)
    begin(who, "e_took", line, nonce, [number for group in numbers for number in group])

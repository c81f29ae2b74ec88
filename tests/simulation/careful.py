"""``Careful``, the worker whose methods clean up, and that waits for several works; what its driver does too."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from rlinf_async import Channel, ClosedError, WorkerGroup, concurrent, wait_all
from rlinf_async.testing import monotonic
from tests.simulation.crew import Crew, excuse
from tests.simulation.families import CREW
from tests.simulation.operations import Operation, all_of
from tests.simulation.subject import begin, follow, noted
from tests.simulation.waiting_families import Part

RUNS_S: Final = 0.1
"""Of a call before it is given up."""

_FOR_EVER_S: Final = 1e6


class Careful(Crew):
    """Cleans up, and waits for several works."""

    # -- cleanups -----------------------------------------------------------------------------------------------

    async def tidy(self, nonce: int, clean_s: float) -> None:
        await self._stay(nonce, clean_s)

    @concurrent
    async def tidy_beside(self, nonce: int, clean_s: float) -> None:
        await self._stay(nonce, clean_s)

    async def tidy_stream(self, nonce: int, clean_s: float) -> AsyncIterator[int]:
        yield nonce
        await self._stay(nonce, clean_s)

    async def _stay(self, nonce: int, clean_s: float) -> None:
        begin(self.name, "k_run", nonce)
        try:
            await asyncio.sleep(_FOR_EVER_S)
        finally:
            with noted(self.name, "k_clean", nonce):
                await asyncio.sleep(clean_s)

    async def have_tidied(self, rank: int, method: str, first: str, nonce: int, clean_s: float) -> None:
        await have_tidied(self.name, await self._find_crew(), rank, method, first, nonce, clean_s)

    async def _find_crew(self) -> Any:
        if CREW not in self._groups:
            self._groups[CREW] = await WorkerGroup.from_group_name(Careful, CREW)
        return self._groups[CREW]

    # -- several works ------------------------------------------------------------------------------------------

    @concurrent
    async def nap(self, nonce: int, seconds: float, fails: bool) -> int:
        begin(self.name, "c_run", nonce)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            begin(self.name, "c_cancelled", nonce)
            raise
        if fails:
            raise LookupError(f"part {nonce}")
        return nonce

    async def wait_for(
        self, channel: Channel, wait: int, parts: Sequence[Part], how: str, patience: float | None
    ) -> None:
        await wait_for(Parts(self.name, await self._find_crew(), channel, wait, self), parts, how, patience)

    def wait_blocking(self, channel: Channel, wait: int, parts: Sequence[Part]) -> None:
        members = WorkerGroup.from_group_name(Careful, CREW)
        wait_blocking(Parts(self.name, members, channel, wait, self), parts)


async def have_tidied(who: str, members: Any, rank: int, method: str, first: str, nonce: int, clean_s: float) -> None:
    """Call a method, and give the call up, in one way or another."""
    operation = begin(who, "k_call", nonce, f"{CREW}:{rank}", first)
    call = getattr(members[rank], method)(nonce, clean_s)

    async def work() -> str:
        try:
            await read()
        except ClosedError:
            return "closed"
        return "ended"

    async def read() -> None:
        async with asyncio.timeout(RUNS_S if first == "timeout" else None):
            if method != "tidy_stream":
                await call
            else:
                async for _ in call:
                    pass

    task = asyncio.ensure_future(follow(operation, work(), str))
    await asyncio.wait([task], timeout=RUNS_S)
    if first == "task":
        task.cancel()
    elif first.startswith("cancel"):
        for _ in range(2 if first == "cancel twice" else 1):
            call.close() if method == "tidy_stream" else call.cancel()
            await asyncio.sleep(RUNS_S)
    await all_of([task])


class Parts:
    """Begins the works of one wait, and notes each of its calls.

    Args:
        worker: the rank that waits; None of a driver.
    """

    _nonces = itertools.count()

    def __init__(self, who: str, members: Any, channel: Channel, wait: int, worker: Careful | None = None) -> None:
        self.who = who
        self.wait = wait
        self._worker = worker
        self._members = members
        self._channel = channel

    def begin(self, part: Part, *, blocks: bool = False, is_followed: bool = False) -> tuple[Any, Any]:
        """Return the work of a part, and what it gives."""
        kind, of, *more = part
        if kind in ("then", "then fails", "nested"):
            is_nested = kind == "nested" and not blocks
            work, result = self.begin(of, blocks=blocks, is_followed=is_followed or not is_nested)  # type: ignore[arg-type]
            if is_nested:
                return wait_all(work), [result]
            return work.then(_fail if kind == "then fails" else _follow), "followed"
        seconds = float(more[0])  # type: ignore[arg-type]
        nonce = next(self._nonces)
        worker = self._worker
        if kind == "late recv" and worker is not None:  # it sends itself nothing
            return worker.recv(CREW, worker._rank, timeout=seconds, async_op=True), None
        if kind == "send" and worker is not None and of != worker._rank:
            return worker.send(nonce, CREW, of, async_op=True), None  # type: ignore[arg-type]
        if kind in ("late get", "late recv"):
            return self._channel.get(key=nonce, timeout=seconds, async_op=True), None
        if kind in ("item", "send"):
            return self._channel.put(nonce, key=nonce, async_op=True), None
        facts = nonce, _FOR_EVER_S if kind == "stays" else seconds, kind == "fails"
        begin(self.who, "c_part", self.wait, *facts[:2], is_followed)
        if kind == "call of all":
            return self._members.nap(*facts), [nonce] * len(self._members)
        if kind == "any":
            return self._members.any().nap(*facts), nonce
        return self._members[of].nap(*facts), [nonce]


def _follow() -> str:
    return "followed"


def _fail() -> None:
    raise LookupError("the function that follows")


async def wait_for(of: Parts, parts: Sequence[Part], how: str, patience: float | None) -> None:
    """Wait for several works in a coroutine."""
    operation, began = begin(of.who, "c_wait", of.wait, parts, how, patience), monotonic()
    works, results = zip(*(of.begin(part) for part in parts), strict=True)

    async def work() -> Any:
        every = wait_all(*works)
        async with asyncio.timeout(patience):
            if how == "then":
                return await every.then(every.wait)
            if how == "twice":
                await asyncio.wait([asyncio.ensure_future(every.async_wait(0.03))])
            return await every

    await follow(operation, work(), lambda found: found == list(results))
    _end(of, operation, began)


def wait_blocking(of: Parts, parts: Sequence[Part]) -> None:
    """Wait for several works where no loop runs."""
    operation, began = begin(of.who, "c_wait", of.wait, parts, "all", None), monotonic()
    works, results = zip(*(of.begin(part, blocks=True) for part in parts), strict=True)
    try:
        operation.value = wait_all(*works) == list(results)
    except Exception as error:
        operation.error = type(error).__name__, str(error)
    operation.ended = True
    _end(of, operation, began)


def _end(of: Parts, operation: Operation, began: float) -> None:
    name = "" if operation.error is None else operation.error[0]
    begin(of.who, "c_ended", of.wait, monotonic() - began, name, operation.value)
    excuse(operation, "LookupError")

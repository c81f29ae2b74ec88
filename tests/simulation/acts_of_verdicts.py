"""Acts of programs that stand still, which the run says by itself, and of slow ones, of which nobody says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from rlinf_async import Channel, settings
from rlinf_async._inspection import asking
from rlinf_async._inspection.state.verdict import Verdict
from rlinf_async._simulation.stand_ins import replace
from tests.simulation import subject
from tests.simulation.families import CREW
from tests.simulation.judgement import Violation
from tests.simulation.stage import Stage

_STANDS_S: Final = 200.0
"""Deadline of a wait that nothing ends: far enough behind the first word for no verdict to count on it."""

_BESIDE_S: Final = 4.0
"""The same, and the pause of slow programs, where others want the same ranks."""

_OF_MESSAGES: Final = frozenset(("hooks", "messages"))
"""Families whose messages these waits would take."""

_MIN_AGE_S: Final = 4.0
"""Age of waits from which on a verdict finds them standing still."""

_MOMENTS: Final = 6
"""Questions to a run that goes on."""


class _Said:
    """The logger of verdicts that nobody has asked for."""

    def __init__(self) -> None:
        self.stuck: list[Verdict] = []

    def warning(self, _: str, *facts: Any) -> None:
        self.stuck += [each for each in facts if isinstance(each, Verdict) and each.is_stuck]

    def info(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def stuck_verdicts() -> Iterator[list[Verdict]]:
    """Gather the verdicts of the block which say, unasked, that the run stands still."""
    said = _Said()
    restore = replace(asking, "logger", said)
    try:
        yield said.stuck
    finally:
        restore()


class VerdictActs(Stage):
    """Verdicts."""

    async def do_v_stands(self, how: str) -> None:
        """Wait for what never comes; the verdict and the word about the wait have to say so."""
        if not self.is_judged():
            if not _OF_MESSAGES & set(self.program.families):
                self.start(f"a program that stands still: {how}", self.begin_and_wait(self.begin, how))
            return
        after = self.random.uniform(_MIN_AGE_S, _STANDS_S / 2)
        verdicts, stuck = await self.watch(self.begin(how, _STANDS_S), how, [after])
        if not all(verdict.is_stuck for verdict in verdicts):
            text = f"{how}: all wait for {after:.1f} s, and the verdict: {verdicts[0]}"
            self.hung.append(Violation("verdict", text))
        if not stuck:
            text = f"{how}: all wait for {_STANDS_S:g} s, and no word after {settings.WAIT_WARNING_S():g} s says so"
            self.hung.append(Violation("verdict", text))

    async def do_v_goes_on(self, how: str, seconds: float) -> None:
        """Wait for what comes late, and nobody says that it does not come."""
        if not self.is_judged():
            if not _OF_MESSAGES & set(self.program.families):
                self.start(f"a slow program: {how}", self.begin_and_wait(self.begin_slowly, how))
            return
        moments = [self.random.uniform(0, 3 * seconds) for _ in range(_MOMENTS)]
        verdicts, stuck = await self.watch(self.begin_slowly(how, seconds), how, moments)
        stuck += [verdict for verdict in verdicts if verdict.is_stuck]
        self.hung += [Violation("verdict", f"{how}: all go on, and the verdict: {verdict}") for verdict in stuck]

    def begin(self, how: str, seconds: float) -> list[Awaitable[Any]]:
        members, size = self.groups[CREW], len(self.program.placement[CREW])
        if how == "recv":
            return [members.wait_in_circle(seconds)]
        if how == "blocking recv":
            return [members.block_in_circle(seconds)]
        if how == "calls":
            return [members[0].call_along([*range(1, size), 0], seconds, 0.0)]
        if how == "itself":
            return [members[0].call_along([0], seconds, 0.0)]
        if how == "broadcast":
            return [members[rank].join_broadcast(size - 1, seconds) for rank in range(size - 1)]
        if how == "locks":
            return [members.lock_crosswise(seconds)]
        channels = self.make_channels(size)
        if how == "channels":
            return [
                members[rank].take_and_pass(channels[rank], channels[(rank + 1) % size], seconds, 0.0)
                for rank in range(size)
            ]
        if how == "nobody puts":
            return [members[size - 1].take_and_pass(channels[0], channels[0], seconds, 0.0)]
        assert how == "nobody puts for the driver"
        return [channels[0].get(timeout=seconds)]

    def begin_slowly(self, how: str, seconds: float) -> list[Awaitable[Any]]:
        members, size = self.groups[CREW], len(self.program.placement[CREW])
        limit = None if self.is_judged() else 10 * _BESIDE_S
        if how == "line":
            return [members.pass_on(seconds, limit)]
        if how == "blocking line":
            return [members.pass_on_blocking(seconds, limit)]
        if how == "calls":
            return [members[0].call_along([*range(1, size)], limit or _STANDS_S, seconds)]
        channels = self.make_channels(size)
        line = [
            members[rank].take_and_pass(channels[rank - 1], channels[rank], limit or _STANDS_S, seconds)
            for rank in range(1, size)
        ]
        return [*line, members[0].fill(channels[0], 1, seconds)]

    def make_channels(self, count: int) -> list[Channel]:
        nonce = next(self.nonces)
        nodes = [number % self.program.nodes for number in range(count)]
        names = [f"v{nonce}-{number}" for number in range(count)]
        return [
            Channel.create(name, cluster=self.cluster, node_rank=node) for name, node in zip(names, nodes, strict=True)
        ]

    async def wait_for(self, waits: list[Awaitable[Any]], how: str) -> None:
        follow = [subject.follow(subject.begin("driver", "v_wait", how), wait) for wait in waits]
        await asyncio.gather(*follow)

    async def begin_and_wait(self, begin: Callable[[str, float], list[Awaitable[Any]]], how: str) -> None:
        """A group whose launch has failed refuses the calls themselves."""
        await self.wait_for(begin(how, _BESIDE_S), how)

    async def watch(
        self, waits: list[Awaitable[Any]], how: str, moments: list[float]
    ) -> tuple[list[Verdict], list[Verdict]]:
        """Wait for them all; return the verdicts of these moments, and those that words said the run stands still."""
        loop = asyncio.get_running_loop()
        questions: list[asyncio.Task[Any]] = []
        with stuck_verdicts() as stuck:
            # Timers, and no task that sleeps: a driver that will go on may end any wait for all that a verdict knows.
            for moment in moments:
                loop.call_later(moment, lambda: questions.append(loop.create_task(self.ask())))
            await self.wait_for(waits, how)
        await asyncio.sleep(max(moments))
        verdicts = [await question for question in questions]
        return [verdict for verdict in verdicts if verdict is not None], stuck

    def is_judged(self) -> bool:
        """Nothing else waits, and nothing is broken."""
        return self.program.is_calm and self.program.families == ("verdicts",)

    async def ask(self) -> Verdict | None:
        """The verdict, which has to come soon whatever has happened."""
        try:
            async with asyncio.timeout(60):
                verdict: Verdict = await self.cluster.why()
                return verdict
        except TimeoutError:
            self.hung.append(Violation("hang", "there is no verdict within a minute"))
        except Exception as error:
            if self.program.is_calm:
                self.hung.append(Violation("error", f"no verdict: {type(error).__name__}: {error}"))
        return None

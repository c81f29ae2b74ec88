"""Acts of a program in a world, and the promises that hold after each of them and at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from rlinf_async.errors import PeerLost
from tests.weights.machine.worlds import FOLLOWERS, World

Act = tuple[str, tuple[Any, ...], float]
"""A name, arguments, and seconds until the next act."""

PINNED = 2
"""Slots that tensors which somebody keeps may pin at each follower."""


@dataclass
class Player:
    """Plays acts.

    Attributes:
        numbers: that were given to sends.
        unsent: numbers of which the trainer has said that nobody gets them.
    """

    world: World
    how: dict[str, Any]

    def __post_init__(self) -> None:
        self.number = 0
        self.unsent: set[int] = set()
        self.seen: set[int] = set()
        self.mortal: set[Any] = set()
        """Those that have died, whose calls may fail."""
        self.is_open = True
        self.is_patient = False
        self.following: set[int] = set()
        """Those that follow the present trainer."""
        self.disturbed: set[int] = set()
        """Those that have refused, or that may have read until a deadline: they may lack the last version."""
        self._calls: list[asyncio.Task[Any]] = []

    async def play(self, acts: list[Act]) -> None:
        await self.world.trainer("open", self.how)
        for name, arguments, pause in acts:
            await getattr(self, name)(*arguments)
            await asyncio.sleep(pause * self.world.second)
            for who in range(FOLLOWERS):
                self._begin(self._look(who), who)
            if name == "wait":
                await self._settle()
                await self._everybody_has_it()
        await self._end()

    # -- acts -----------------------------------------------------------------------------------------------------

    def _begin(self, call: Coroutine[Any, Any, Any], who: Any) -> None:
        """Have something done that the next act does not wait for."""
        self._calls.append(asyncio.create_task(self._forgiving(call, who)))

    async def _forgiving(self, call: Coroutine[Any, Any, Any], who: Any) -> Any:
        try:
            return await call
        except PeerLost:
            if who not in self.mortal:
                raise

    async def add(self, who: int) -> None:
        if self.is_open:
            self.following.add(who)
        self._begin(self.world.follower(who, "follow", self.how, self.how["dtypes"][who]), who)

    async def remove(self, who: int) -> None:
        self.following.discard(who)
        self._begin(self.world.follower(who, "leave"), who)

    async def publish(self, count: int, seconds: float) -> None:
        numbers = list(range(self.number + 1, self.number + 1 + count))
        self.number += count
        await self.world.trainer("send", numbers, seconds * self.world.second)

    async def publish_patiently(self, count: int = 1) -> None:
        """With a deadline that does not pass: a version ends when whoever lacks it has answered, or has gone."""
        self.is_patient = True
        await self.publish(count, 1e6)

    async def hand(self, who: int, pause: float, is_later: bool) -> None:
        """Send one version, and have a call bring the one before it, or the one after it."""
        self.number += 2
        numbers = [self.number - 1, self.number]
        await self.world.trainer("send", [numbers[not is_later]], 5.0 * self.world.second)
        await asyncio.sleep(pause * self.world.second)
        self._begin(self.world.follower(who, "hand", numbers[is_later]), who)

    async def deliver(self, seconds: float | None) -> None:
        if len(self.following) < FOLLOWERS:
            seconds = 5.0  # without a deadline it waits for the ranks that have never followed, until ``ack_timeout``
        await self.world.trainer("deliver", None if seconds is None else seconds * self.world.second)

    async def cancel(self, turns: int, begins: bool) -> None:
        self.number += begins
        await self.world.trainer("cancel", [self.number] if begins else [], turns)

    async def refuse(self, who: int) -> None:
        self.disturbed.add(who)
        self._begin(self.world.follower(who, "refuse"), who)

    async def mend(self, who: int) -> None:
        self._begin(self.world.follower(who, "mend"), who)

    async def read(self, who: int) -> None:
        self.disturbed.add(who)
        self._begin(self.world.follower(who, "read"), who)

    async def release(self, who: int) -> None:
        self._begin(self.world.follower(who, "release"), who)

    async def keep(self, who: int) -> None:
        self._begin(self.world.follower(who, "keep"), who)

    async def die(self, who: int) -> None:
        self.mortal.add(who)
        self.following.discard(who)
        self.disturbed.discard(who)
        await self.world.die(who)

    async def stop(self, who: int, seconds: float) -> None:
        await self.world.stop(who, seconds * self.world.second)

    async def wait(self) -> None:
        """Time passes."""

    async def close(self, fails: bool) -> None:
        self._is_closed()
        await self._note_trainer()
        await self.world.trainer("close", fails=fails)

    def _is_closed(self) -> None:
        self.is_open = False
        self.following.clear()

    async def trainer_dies(self) -> None:
        self._is_closed()
        self.mortal.add("trainer")
        await self._note_trainer()
        await self.world.trainer_dies()

    async def restart(self) -> None:
        self.is_open = True
        await self.world.trainer("open", self.how)

    # -- promises -------------------------------------------------------------------------------------------------

    async def _look(self, who: int) -> int:
        version, seen, faults = await self.world.follower(who, "look")
        self.seen.update(seen)
        assert not faults, f"follower {who}: {faults}"
        return int(version)

    async def _note_trainer(self) -> None:
        unsent, faults = await self.world.trainer("story")
        assert not faults, f"trainer: {faults}"
        self.unsent.update(unsent)

    async def _settle(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            await call

    async def _end(self) -> None:
        """Mend everything; then everybody has what is sent."""
        await asyncio.sleep(12 * self.world.second)  # who was stopped goes on
        everybody = range(FOLLOWERS)
        if not self.is_patient:
            await self._rest()  # although some may be read yet
        for who in everybody:
            await self.world.follower(who, "release")
        await self._rest()
        await self._settle()
        if self.is_open:
            await self._ends_everything("whoever lacks it has answered, or has gone")
            await self._everybody_has_it()
            await self._two_ways()
            await self._one_leaves()
            await self.cancel(self.number % 8, True)
            await self._rest()
        else:
            await self.restart()
        for who in everybody:
            await self.world.follower(who, "mend")
            if who not in self.following:
                self.disturbed.discard(who)
                await self.add(who)
        await self._settle()
        await self.world.trainer("connect")
        await self._everybody_has_it()
        for count in (1, 1, 9):
            await self._deliver_to_all(count)
        told = asyncio.gather(*(self.world.follower(who, "ended", 30.0) for who in everybody))
        await asyncio.sleep(self.world.second)
        await self.close(False)
        assert set(await told) <= {"ClosedError", "PeerLost"}, "their trainer has left"
        for who in everybody:
            await self.world.follower(who, "leave")
            assert await self._look(who) == self.number, "closing leaves the last version"
        await self._settle()
        lost = {number for number in self.seen if not 0 < number <= self.number} | self.seen & self.unsent
        assert not lost, f"followers have read {sorted(lost)}, which were not published"

    async def _everybody_has_it(self) -> None:
        """If nothing is under way, who follows undisturbed has the last version, also one that has come late."""
        if self.is_open and (last := await self.world.trainer("idle_at")) is not None:
            for who in sorted(self.following - self.disturbed):
                assert await self.world.follower(who, "has", last), f"follower {who} never gets version {last}"

    async def _two_ways(self) -> None:
        """The later one stays of two versions that wait for a reader, one from a call and one from the link."""
        for is_later in (True, False):
            for who in sorted(self.following - self.disturbed)[:1]:
                await self.read(who)
                await asyncio.sleep(self.world.second)
                await self.hand(who, 0.0 if is_later else 5.0, is_later)
                await asyncio.sleep(self.world.second)
                await self.release(who)
                await self._settle()
                self.disturbed.discard(who)
                if "sent" in await self._rest():
                    later = self.number - is_later  # a call brings nothing in some worlds
                    assert await self.world.follower(who, "has", later), f"follower {who} has lost version {later}"

    async def _one_leaves(self) -> None:
        """Nobody waits for one that leaves, or dies, before it has a version."""
        for who in sorted(self.following)[:1]:
            await self.read(who)
            await asyncio.sleep(self.world.second)
            await self.publish_patiently(self.how["behind"] + 2)
            await (self._rest() if self.how["behind"] else asyncio.sleep(self.world.second))
            await (self.remove if self.number % 2 else self.die)(who)
            await self._settle()
            await self._rest()
            await self._ends_everything("whoever lacks it has gone")

    async def _ends_everything(self, why: str) -> None:
        undelivered = await self.world.trainer("undelivered")
        assert not undelivered, f"versions {undelivered} are under way, and {why}"

    async def _deliver_to_all(self, count: int) -> None:
        for _ in range(6):  # an earlier failure is told once, and nothing is sent then
            await self.publish(count, 60_000.0)
            if "sent" in (await self._rest())[-1:]:
                break
        else:
            raise AssertionError("nothing can be sent any more")
        for _ in range(6):
            await self.deliver(60_000.0)
            if (told := await self._rest()) == ["delivered"]:
                break
        else:
            raise AssertionError(f"version {self.number} is not delivered: {told}")
        await self._ends_everything("everybody has a later one")
        for who in range(FOLLOWERS):
            assert await self._look(who) == self.number, f"follower {who} has not version {self.number}"
        if self.how["counts_memory"]:
            each, hosts = max(3, self.how["behind"] + 2), len({*self.how["nodes"]} - {0})
            left = FOLLOWERS * (each + 1) if hosts else 0  # by hosts that are gone, and not forgotten yet
            most = each * (1 + hosts) + PINNED * FOLLOWERS + left
            assert (slots := await self.world.trainer("slots")) <= most, f"{slots} slots are open"

    async def _rest(self) -> list[str]:
        """Wait until all operations of the trainer have ended."""
        told: list[str] = []
        with contextlib.suppress(PeerLost) if "trainer" in self.mortal else contextlib.nullcontext():
            told = await self.world.trainer("rest", self.how["rest_s"])
            await self._note_trainer()
        return told

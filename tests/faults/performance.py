"""Executes one program, step by step, on a stage's cluster."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rlinf_async import Cluster, PeerLost
from tests.faults import acts, channel_acts, steps
from tests.faults.judgement import Violation
from tests.faults.scene import HungError, Scene, send_signal
from tests.faults.storm import StormError
from tests.faults.waits import PATIENCE_S
from tests.faults.words import Words

ACTS: dict[type, Callable[[Scene, Any], Awaitable[None]]] = {
    steps.Call: acts.call,
    steps.Send: acts.send,
    steps.Open: channel_acts.open_,
    steps.Close: channel_acts.close,
    steps.Put: channel_acts.put,
    steps.Get: channel_acts.get,
    steps.Cancel: acts.cancel,
    steps.Fork: acts.fork,
    steps.Starve: acts.starve,
    steps.Sever: acts.sever,
    steps.Stop: acts.stop,
    steps.Kill: acts.kill,
    steps.Exec: acts.exec_,
    steps.Pause: acts.pause,
    steps.Settle: acts.settle,
    steps.KillDaemon: acts.kill_daemon,
}


class Performance:
    """Carries out one program; its ``scene`` has what it is judged by."""

    def __init__(self, cluster: Cluster, daemon: int, words: Words, folder: Path) -> None:
        self.scene = Scene(cluster, daemon, words, folder)

    async def play(self, program: steps.Program) -> list[Violation]:
        """What hangs, or fails outside of the journals; those are judged afterwards."""
        scene = self.scene
        found, hung = [], []
        try:
            await asyncio.gather(scene.launch("a"), scene.launch("b"))
            for step in program:
                await ACTS[type(step)](scene, step)
            await self._end()
        except HungError as error:
            hung = [str(error), *(wait.name for wait in scene.waits.open())]
        except Exception as error:  # of something that the program cannot go on without
            kind = "death" if isinstance(error, PeerLost) else "error"
            found.append(Violation(kind, f"{type(error).__name__}: {error}"))
        finally:
            scene.journal.close()
            await scene.waits.give_up()
        found += [Violation("hang", name) for name in dict.fromkeys(hung)]
        for name, failure in scene.waits.errors():
            if isinstance(failure, StormError):
                found.append(Violation(failure.kind, f"{name}: {failure}"))
        return found

    async def _end(self) -> None:
        """Everything ends once faults are over, channels are closed, and each receive has something to receive."""
        scene = self.scene
        if not scene.daemon_died:
            await asyncio.sleep(scene.until - asyncio.get_running_loop().time())
            for life in scene.replaced:
                send_signal(life.pid, signal.SIGKILL)
            await channel_acts.close_all(scene)
            await self._settle("recv", "send")
            if not scene.replaced:
                await acts.end_messages(scene, "a")
                await acts.end_messages(scene, "b")
        await self._settle()
        if not scene.daemon_died:
            await channel_acts.drain_all(scene)

    async def _settle(self, *but: str) -> None:
        if hung := await self.scene.waits.settle(but=but):
            raise HungError(hung[0].name)

    async def close(self) -> list[Violation]:
        """Ends the workers; after a program that went well."""
        works = [life.group.close() for life in self.scene.lives]
        try:
            async with asyncio.timeout(PATIENCE_S * 2):
                for work in works:
                    await work.async_wait()
        except TimeoutError:
            return [Violation("hang", "the closing of the groups")]
        return []

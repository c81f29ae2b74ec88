"""Waits of a random program's driver, with the deadline after which one counts as a hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

PATIENCE_S = 4.0
"""Seconds in which nothing that is waited for has ended, after which all of it hangs."""


@dataclass
class Wait:
    """One thing that is waited for.

    Attributes:
        name: in words.
        meets: what it may wait for: ``channel`` and ``recv`` end when their counterparts come, or at the end.
    """

    name: str
    meets: str
    future: asyncio.Future[Any]
    cancellable: bool = True


class Waits:
    """All waits of one program; on the loop."""

    def __init__(self) -> None:
        self.all: list[Wait] = []

    def start(self, name: str, coroutine: Coroutine[Any, Any, Any], meets: str = "") -> asyncio.Task[Any]:
        """A task; its error is its journal's to judge."""
        task = asyncio.create_task(coroutine, name=name)
        task.add_done_callback(_look_at)
        self.all.append(Wait(name, meets, task))
        return task

    def start_thread(self, name: str, function: Callable[[], Any], meets: str = "") -> None:
        """A thread, which nobody can cancel."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        future.add_done_callback(_look_at)

        def finish(error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        def run() -> None:
            error: BaseException | None = None
            try:
                function()
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(finish, error)
            except RuntimeError:
                pass  # the loop is closed: it was too late

        threading.Thread(target=run, name=name, daemon=True).start()
        self.all.append(Wait(name, meets, future, cancellable=False))

    def open(self) -> list[Wait]:
        return [wait for wait in self.all if not wait.future.done()]

    def cancel(self, index: int) -> None:
        """Cancels the ``index``-th of the open ones, counted from the youngest."""
        waits = [wait for wait in reversed(self.open()) if wait.cancellable]
        if index < len(waits):
            waits[index].future.cancel()

    async def settle(self, *, but: Iterable[str] = ()) -> list[Wait]:
        """Waits for all but those that meet such a thing.

        Returns:
            Those that hang.
        """
        while True:
            open_ = [wait for wait in self.open() if wait.meets not in set(but)]
            if not open_:
                return []
            futures = [wait.future for wait in open_]
            done, _ = await asyncio.wait(futures, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return open_

    async def give_up(self) -> None:
        """Cancels what is open; it has a moment for that."""
        left = [wait.future for wait in self.open()]
        for future in left:
            future.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)

    def errors(self) -> list[tuple[str, BaseException]]:
        """What has failed, but for cancellations."""
        found = []
        for wait in self.all:
            if wait.future.done() and not wait.future.cancelled():
                error = wait.future.exception()
                if error is not None:
                    found.append((wait.name, error))
        return found


def _look_at(future: asyncio.Future[Any]) -> None:
    """So that an error, which is in a journal too, is not told of as one that nobody has seen.

    Its traceback would hold on to results, and with them to memory that counts as left.
    """
    if not future.cancelled() and (error := future.exception()) is not None:
        error.with_traceback(None)

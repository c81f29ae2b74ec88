"""Makes waits raise ``LoopNotRunning`` if they need a user's event loop that was stopped or closed.

A cluster opened in a coroutine uses the loop that runs the coroutine. A wait on that loop continues only while the loop
runs; a wait from another thread would last forever once the loop has stopped (``run_until_complete`` has returned) or
is closed, which asyncio does not report. So each such wait schedules a callback on the loop, and later checks whether
the callback ran::

    waiting thread ── call_soon_threadsafe(sign) ──► loop        at the beginning, and again after each sign
    waiting thread    LOOP_TURN_S later: no sign, and the loop is not running: LoopNotRunning

A running loop without a sign is busy with user code, which is not an error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, Protocol

from rlinf_async import settings
from rlinf_async._core import clock
from rlinf_async.errors import LoopNotRunning

# True once a cluster of this process has used a user's loop; before that, waits need no watch.
is_needed = False

# The user's loop, if there has been only one; a wait on that loop needs no watch.
only: asyncio.AbstractEventLoop | None = None


def live_on(loop: asyncio.AbstractEventLoop) -> None:
    global is_needed, only
    only = loop if not is_needed or only is loop else None
    is_needed = True


_RECIPE: Final = """\
Have one loop serve all:

    # pytest-asyncio, pyproject.toml: tests run on the loop of their session's fixtures
    [tool.pytest.ini_options]
    asyncio_default_fixture_loop_scope = "session"
    asyncio_default_test_loop_scope = "session"     # or @pytest.mark.asyncio(loop_scope="session")
    # elsewhere: open the Cluster where no loop runs; it then has a loop in a background thread, which serves all
    cluster = Cluster(num_nodes=1)                  # in a def, not in an async def"""


class LoopBound(Protocol):
    """The part of an awaited ``Work`` that the watch reads: its loop and its description."""

    def _user_loop(self) -> asyncio.AbstractEventLoop | None: ...

    def _describe(self) -> str: ...


class LoopWatch:
    """A watch for one wait: checks that the loop runs, next at ``due`` in seconds of the monotonic clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: LoopBound) -> None:
        self._loop = loop
        self._work = work
        self._seconds = settings.LOOP_TURN_S()
        self._timer: asyncio.TimerHandle | None = None
        self._ask()

    def _ask(self) -> None:
        self.due = clock.monotonic() + self._seconds
        self._has_turned = False
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._sign)

    def _sign(self) -> None:
        self._has_turned = True

    def check(self) -> None:
        """Raise LoopNotRunning if the loop is closed or has not run the callback. Call this once the watch is due."""
        check_open(self._loop, self._work._describe)
        if not self._has_turned and not self._loop.is_running():
            raise LoopNotRunning(
                f"the event loop on which this cluster lives, {self._loop!r}, is not running and has not turned for "
                f"{self._seconds:g} s: nothing of the cluster is answered meanwhile (waiting for "
                f"{self._work._describe()}). {_RECIPE}"
            )
        self._ask()

    def check_on(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
        """Schedule the checks on the running loop; an error is set on the future for which the task waits."""

        def look() -> None:
            try:
                self.check()
            except LoopNotRunning as error:
                if not future.done():
                    future.set_exception(error)
            else:
                self.check_on(loop, future)

        self._timer = loop.call_later(self.due - clock.monotonic(), look)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def check_open(loop: asyncio.AbstractEventLoop, describe: Callable[[], str]) -> None:
    """Raise LoopNotRunning, with the result of ``describe``, if a loop is closed."""
    if loop.is_closed():
        raise closed(loop, describe())


def closed(loop: asyncio.AbstractEventLoop, what: str) -> LoopNotRunning:
    return LoopNotRunning(
        f"the event loop that this cluster lived on, {loop!r}, is closed: nothing of the cluster is answered any more "
        f"({what}). {_RECIPE}"
    )


def watch(work: LoopBound, own: asyncio.AbstractEventLoop | None) -> LoopWatch | None:
    """Return a watch for a wait on the loop ``own`` or in a thread; None if the wait needs no user's loop.

    Raises:
        LoopNotRunning: the loop is closed.
    """
    loop = work._user_loop()
    if loop is None or loop is own:
        return None
    check_open(loop, work._describe)
    return LoopWatch(loop, work)

"""``SimLoop``, an event loop with virtual time that runs one callback per turn; its selector and hosts."""

from __future__ import annotations

import asyncio
import functools
import heapq
import selectors
import threading
from asyncio import events
from collections.abc import Coroutine
from math import inf
from typing import Any, Final

from rlinf_async import work
from rlinf_async._core import clock
from rlinf_async._simulation.scheduler import ScheduledProcess, Scheduler, SimulatedDeath, ThreadActor, moment_of
from rlinf_async._simulation.sim_process import SimProcess
from rlinf_async._wire.reading.idle_reader import IdleReader
from rlinf_async._wire.reading.shared_selector import SharedSelector

TICK_S: Final = 1e-6
"""Minimum wait in seconds; a shorter wait could vanish in rounding."""


class _SerialHash:
    """A base class of objects hashed by serial number, so that sets of them have the same order in every run."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # Serials start at 1 in each simulation, because the order within a set depends on the values of the hashes.
        # tests/simulation/test_sim_cluster.py::test_two_seeds_are_two_runs
        self._serial: int = next(options["loop"]._scheduler.serials)
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._serial


class SimTask(_SerialHash, asyncio.Task[Any]):
    pass


class SimFuture(_SerialHash, asyncio.Future[Any]):
    pass


def _callback_name(callback: Any) -> str:
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return f"task {getattr(task.get_coro(), '__qualname__', '')}"
    while isinstance(callback, functools.partial):
        callback = callback.func
    return getattr(callback, "__qualname__", type(callback).__name__)


class SimSelector(SharedSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(0)

    def fileno(self) -> int:
        return self._epoll.fileno()


class SimLoop(asyncio.SelectorEventLoop):
    """An event loop of a simulated process, run by a thread, or turn by turn by the scheduler."""

    _ready: Any
    _scheduled: Any

    def __init__(self, scheduler: Scheduler, selector: SimSelector | None = None) -> None:
        self.selector = selector or SimSelector()
        self._scheduler = scheduler
        self._left = 0
        self._process = scheduler.current
        scheduler.watch(self.selector.fileno())
        super().__init__(self.selector)
        self.set_task_factory(_new_task)  # type: ignore[arg-type]
        if scheduler.current is not None:
            scheduler.current.loops.append(self)

    def _make_self_pipe(self) -> None:
        self._ssock = self._csock = None

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        pass  # the scheduler polls the loop's selector

    def time(self) -> float:
        return clock.monotonic()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, **options: Any
    ) -> asyncio.TimerHandle:
        """Schedule at least a tick from now; otherwise, rounding could make a wait's timer fire early repeatedly."""
        return super().call_at(max(when, self.time() + 2 * TICK_S), callback, *args, **options)

    def create_future(self) -> Any:
        return SimFuture(loop=self)

    def due(self) -> float:
        if self._ready or self._stopping:  # type: ignore[attr-defined]
            return -inf
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
            heapq.heappop(scheduled)._scheduled = False
        return float(scheduled[0]._when) if scheduled else inf

    def watched(self) -> tuple[int, ...]:
        return (self.selector.fileno(),)

    def _run_once(self) -> None:
        """Run one turn per scheduler step; called by ``run_forever``, on a thread."""
        host = self._scheduler.current_actor()
        assert host is not None
        host.park(self)
        self.turn()
        while self._stopping and self._left:  # type: ignore[attr-defined]  # collected callbacks run
            host.park(self)
            self.turn()

    def turn(self) -> None:
        """Run one callback; once all collected callbacks have run, collect ready and due callbacks."""
        ready = self._ready
        if not self._left:
            self._process_events(self.selector.select())  # type: ignore[attr-defined]
            now = self.time() + TICK_S  # with rounding, the exact moment might never come
            scheduled = self._scheduled
            while scheduled and scheduled[0]._when <= now:
                handle = heapq.heappop(scheduled)
                handle._scheduled = False
                ready.append(handle)
            self._left = len(ready)
        while self._left:
            self._left -= 1
            handle = ready.popleft()
            if not handle._cancelled:
                name = "" if self._process is None else self._process.name
                self._scheduler.note(name, _callback_name(handle._callback))
                handle._run()
                break

    def end(self) -> None:
        if not self.is_closed():
            for task in asyncio.all_tasks(self):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            self._scheduler.unwatch(self.selector.fileno())
            self.selector.close()
            self._closed = True
            self._ready.clear()
            self._scheduled.clear()

    def _check_closed(self) -> None:
        if self._process is None or not self._process.has_ended:  # code that outlives its process gets no error
            super()._check_closed()  # type: ignore[misc]

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), SimulatedDeath):
            super().call_exception_handler(context)

    def close(self) -> None:
        self.end()


def _new_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    return SimTask(coroutine, loop=loop, **options)


class LoopActor:
    """An actor for an event loop that the scheduler runs on its own thread."""

    def __init__(self, scheduler: Scheduler, process: SimProcess, loop: SimLoop, name: str) -> None:
        self.process: ScheduledProcess = process
        self.loop = loop
        self.name = name
        self._wakeups: Any = None
        self.watched = loop.watched
        self.due = loop.due if process.rate == 1.0 else self._due
        loop._thread_id = threading.get_ident()  # type: ignore[attr-defined]  # marks the loop as running
        scheduler.add(self)

    def _due(self) -> float:
        return moment_of(self.loop.due(), self.process.rate)

    def run(self) -> None:
        events._set_running_loop(self.loop)
        before, work._per_thread.wakeups = (
            work._per_thread.wakeups,
            self._wakeups,
            # Keep this per thread, because a real thread has only one loop.
        )
        try:
            self.loop.turn()
        finally:
            events._set_running_loop(None)
            self._wakeups, work._per_thread.wakeups = work._per_thread.wakeups, before

    def where(self) -> str:
        tasks = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        return f"{len(tasks)} tasks wait: " + ", ".join(sorted(task.get_name() for task in tasks)[:5])


class SimIdleReader(IdleReader):
    """A reader for a worker's main thread, which parks when it waits outside its loop."""

    def __init__(self, scheduler: Scheduler, host: ThreadActor, loop: SimLoop, other: SimSelector) -> None:
        super().__init__(loop, loop.selector, other)
        self._scheduler = scheduler
        self._host = host
        self._until = inf
        scheduler.watch(self._epoll.fileno())

    def due(self) -> float:
        return self._until

    def watched(self) -> tuple[int, ...]:
        return (self._epoll.fileno(),)

    def read_for(self, seconds: float) -> None:
        self._until = clock.monotonic() + max(seconds, TICK_S)  # a shorter wait might never end
        self._host.park(self)
        super().read_for(0)

    def forget(self) -> None:
        self._scheduler.unwatch(self._epoll.fileno())
        super().forget()

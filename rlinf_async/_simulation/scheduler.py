"""``Scheduler``: runs one actor of a simulation at a time, chosen by a seed; time passes only when none can run.

    scheduler = Scheduler(seed=7)
    scheduler.add(LoopActor(loop, process))      an event loop that the scheduler runs turn by turn
    ThreadActor(scheduler, process, main)        a thread that runs while it has the baton, and parks
    scheduler.at(scheduler.now + 3, cut)         a fault, or a message that arrives
    scheduler.run_until(task.done)

Every simulated loop and thread is an actor, with a time from which it can run, and epoll descriptors that let it run
earlier. The seed's next random number chooses among the runnable actors.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import itertools
import random
import select
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, Final, Protocol

START_S: Final = 1000.0
"""Virtual time at the start."""

_MAX_TURNS_AT_ONCE: Final = 100_000
_ONCE_S: Final = 0.001
"""Virtual duration in which ``_MAX_TURNS_AT_ONCE`` turns count as an endless loop."""

SIMULATED: Final = "simulated "
"""Prefix of simulated threads' names."""

_MAX_TURN_S: Final = 20.0
"""Real seconds after which a turn counts as blocked outside the simulation."""


_start, _join = threading.Thread.start, threading.Thread.join


class SimulationError(Exception):
    """The simulation cannot continue, because every actor waits forever or one waits for something not simulated."""


class SimulatedDeath(BaseException):
    """Raised in an ended process's threads to end them."""


class ScheduledProcess(Protocol):
    name: str
    pid: int
    stopped_until: float
    starved_until: float
    turn_s: float
    rate: float
    has_ended: bool
    actors: list[Any]
    loops: list[Any]
    on_exit: Callable[[int], None]

    def enter(self) -> None: ...

    def entered(self) -> contextlib.AbstractContextManager[None]: ...

    def keep(self) -> None: ...


class Actor(Protocol):
    process: ScheduledProcess
    name: str

    def due(self) -> float:
        """Return the time from which the actor can run without an event."""

    def watched(self) -> tuple[int, ...]:
        """Return the epoll descriptors whose readiness lets the actor run immediately."""

    def run(self) -> None: ...

    def where(self) -> str: ...


class ParkedWait(Protocol):
    """A parked thread's wait, which lasts until a given time, or until a descriptor is ready."""

    def due(self) -> float: ...

    def watched(self) -> tuple[int, ...]: ...


def moment_of(time: float, rate: float) -> float:
    """Return the virtual time at which a clock of this rate shows ``time``."""
    return time if rate == 1.0 or abs(time) == inf else START_S + (time - START_S) / rate


class SimLog:
    """A log of a run's events, reproducible for each seed: a hash of all lines, and the last lines."""

    def __init__(self, kept: int = 4000) -> None:
        self.kept: deque[str] = deque(maxlen=kept)
        self.count = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def __repr__(self) -> str:
        return f"<SimLog [{self.count} lines, {self.digest}]>"

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def note(self, now: float, who: str, what: str) -> None:
        line = f"{now - START_S:12.6f}  {who:<24} {what}"
        self.count += 1
        self._digest.update(line.encode())
        self.kept.append(line)


class Scheduler:
    """The virtual clock, and the choice of the next actor.

    Attributes:
        now: virtual time in seconds.
        random: seeded generator that makes every choice of the simulation.
        writes: separate seeded generator for partial socket writes, so that other choices are unaffected.
        current: process whose globals are installed.
        grave: an ended process, whose globals are installed while code runs that has outlived its own process.
        steps: number of turns so far.
        serials: numbers for tasks and futures, in order of creation.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.writes = random.Random(f"writes of seed {seed}")
        self.now = START_S
        self.steps = 0
        self._then, self._steps_then = START_S, 0
        self.current: ScheduledProcess | None = None
        self.grave: ScheduledProcess
        self.back = _closed_lock()
        self.running: Actor | None = None
        self.threads: dict[int, ThreadActor] = {}
        self.has_stuck_threads = False
        self._thread = threading.get_ident()
        self.log = SimLog()
        self._actors: dict[Actor, None] = {}
        self._epoll = select.epoll()
        self._numbers = itertools.count()
        self.serials = itertools.count(1)
        self._timers: list[tuple[float, int, Callable[[], None]]] = []

    def __repr__(self) -> str:
        return f"<Scheduler [{self.now - START_S:.3f} s, {self.steps} turns, {len(self._actors)} actors]>"

    # -- threads ------------------------------------------------------------------------------------------------

    def in_simulation(self) -> bool:
        """True if the calling thread runs simulated code or code left behind by an ended process."""
        return (self.running is not None or self.current is self.grave) and self.owns_thread()

    def owns_thread(self) -> bool:
        return threading.get_ident() == self._thread or threading.get_ident() in self.threads

    def current_actor(self) -> ThreadActor | None:
        """Return the actor of the calling thread; None on threads that cannot park."""
        return self.threads.get(threading.get_ident())

    def actor_of(self, thread: threading.Thread) -> ThreadActor | None:
        # An ended thread has an actor, too, because it may be joined later.
        actors = [] if self.current is None else self.current.actors
        return next((each for each in actors if isinstance(each, ThreadActor) and each.is_run_by(thread)), None)

    def add(self, actor: Actor) -> None:
        self._actors[actor] = None

    def remove(self, actor: Actor) -> None:
        self._actors.pop(actor, None)

    def watch(self, fd: int) -> None:
        """Wake actors when this epoll descriptor becomes readable."""
        self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        self._epoll.unregister(fd)

    def read_clock(self) -> float:
        process = self.current
        return self.now if process is None or process.rate == 1.0 else START_S + (self.now - START_S) * process.rate

    def note(self, who: str, what: str) -> None:
        self.log.note(self.now, who, what)

    def at(self, when: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), callback))

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        self.at(self.now + seconds, callback)

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run turns until ``done`` returns True; raise SimulationError if no actor can ever run again."""
        while not done():
            self._step()

    def _step(self) -> None:
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()
        readable = {fd for fd, _ in self._epoll.poll(0)}
        now = self.now
        ready = []
        next_due = inf
        for actor in self._actors:
            if (from_ := actor.process.stopped_until) > now:
                next_due = min(next_due, from_)
                continue
            due = actor.due()
            if due <= now or (readable and not readable.isdisjoint(actor.watched())):
                ready.append(actor)
            elif due < next_due:
                next_due = due
        if ready:
            actor = ready[0] if len(ready) == 1 else ready[int(self.random.random() * len(ready))]
            self.steps += 1
            if self.steps - self._steps_then > _MAX_TURNS_AT_ONCE:
                raise SimulationError(self._describe_livelock())
            actor.process.enter()
            self.running = actor
            actor.run()
            self.running = None
            if (turn_s := actor.process.turn_s) and not actor.process.has_ended:
                actor.process.stopped_until = max(actor.process.stopped_until, now + turn_s)
            return
        if self._timers:
            next_due = min(next_due, self._timers[0][0])
        if next_due == inf:
            places = "\n".join(f"  {actor.name}: {actor.where()}" for actor in self._actors)
            raise SimulationError(f"nothing can run any more, and something still waits:\n{places}")
        if next_due - self._then > _ONCE_S:
            self._then, self._steps_then = next_due, self.steps
        self.now = next_due

    def _describe_livelock(self) -> str:
        last = "\n".join(list(self.log.kept)[-20:])
        return f"{_MAX_TURNS_AT_ONCE} turns within {_ONCE_S:g} s of virtual time: something turns for ever\n{last}"

    def await_baton(self, actor: ThreadActor) -> None:
        if not self.back.acquire(timeout=_MAX_TURN_S):
            actor.is_stuck = self.has_stuck_threads = True
            raise SimulationError(
                f"{actor.name} waits for something that is not simulated (a real sleep, socket, lock or subprocess):\n"
                f"{actor.stack()}"
            )

    def forget(self) -> None:
        self._timers.clear()
        self._actors.clear()
        self.threads.clear()
        self.running = None

    def close(self) -> None:
        self._epoll.close()


def _closed_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class ThreadActor:
    """A thread of a simulated process; it runs from one park to the next while all others are blocked."""

    def __init__(
        self,
        scheduler: Scheduler,
        process: ScheduledProcess,
        name: str,
        main: Callable[[], None],
        stands_for: threading.Thread | None = None,
    ) -> None:
        """``stands_for`` is the thread object that simulated code asked to start."""
        self._stands_for = stands_for
        self.process = process
        self.name = name
        self._scheduler = scheduler
        self._main = main
        self._go = _closed_lock()
        self._waiting: ParkedWait | None = None
        self._thread = threading.Thread(target=self._run, name=f"{SIMULATED}{name}", daemon=True)
        self._has_begun = False
        self.has_ended = False
        self.is_stuck = False
        self.parks = 0
        scheduler.add(self)

    def __repr__(self) -> str:
        return f"<ThreadActor {self.name} {'ended' if self.has_ended else 'alive'}>"

    def is_run_by(self, thread: threading.Thread) -> bool:
        return thread in (self._thread, self._stands_for)

    def due(self) -> float:
        waiting, rate = self._waiting, self.process.rate
        if waiting is None:
            return -inf
        return waiting.due() if rate == 1.0 else moment_of(waiting.due(), rate)

    def watched(self) -> tuple[int, ...]:
        return self._waiting.watched() if self._waiting is not None else ()

    def run(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            _start(self._thread)
        else:
            self._go.release()
        self._scheduler.await_baton(self)

    def park(self, waiting: ParkedWait) -> None:
        """Pass the baton on, and block this thread until the wait may have ended."""
        if self.process.has_ended:
            raise SimulatedDeath
        self._waiting = waiting
        self.parks += 1
        self._scheduler.back.release()
        self._go.acquire()
        if self.process.has_ended:
            raise SimulatedDeath

    def end(self) -> None:
        if self._has_begun and not self.has_ended and not self.is_stuck:
            self.process.enter()
            self._scheduler.running = self
            self._go.release()
            self._scheduler.await_baton(self)
            self._scheduler.running = None
            _join(self._thread)

    def _run(self) -> None:
        self._scheduler.threads[threading.get_ident()] = self
        try:
            self._main()
        except SimulatedDeath:
            pass
        finally:
            self.has_ended = True
            self._scheduler.threads.pop(threading.get_ident())
            self._scheduler.remove(self)
            self._scheduler.back.release()

    def stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)[-8:]) if frame is not None else "(ended)"

    def where(self) -> str:
        return f"parked\n{self.stack()}"

"""``Scheduler`` of a simulation: one thing runs at a time, chosen by a seed; time passes where nothing can run.

    scheduler = Scheduler(seed=7)
    scheduler.add(LoopActor(loop, process))      an event loop that is turned by the scheduler itself
    ThreadActor(scheduler, process, main)        a thread that runs while it has the baton, and parks
    scheduler.at(scheduler.now + 3, cut)         a fault, a message that arrives
    scheduler.run_until(task.done)

Everything that is simulated is an actor: it says from which moment on it can run, and which epoll descriptors make it
run earlier.  Of those that can, the seed's next number chooses.
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
"""The clock at the beginning."""

_MAX_TURNS_AT_ONCE: Final = 100_000
_ONCE_S: Final = 0.001
"""Virtual time in which so many turns are taken for a loop that never ends."""

SIMULATED: Final = "simulated "
"""What the names of simulated threads begin with."""

_MAX_TURN_S: Final = 20.0
"""Seconds of real time for one turn, after which a thread is taken for blocked by something that is not simulated."""


_start, _join = threading.Thread.start, threading.Thread.join


class SimulationError(Exception):
    """The simulation cannot go on: everything waits for ever, or something waits outside of it."""


class SimulatedDeath(BaseException):
    """Ends a thread of a process that has ended."""


class Process(Protocol):
    """What the scheduler and threads know of a simulated process."""

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

    def enter(self) -> None:
        """Makes the globals of all modules this process's own."""

    def entered(self) -> contextlib.AbstractContextManager[None]:
        """Have the block find this process's globals, and what follows it those of the process before."""

    def keep(self) -> None:
        """Keeps the globals as they are, for the next time."""


class Actor(Protocol):
    """What the scheduler runs."""

    process: Process
    name: str

    def due(self) -> float:
        """The moment from which on it can run by itself."""

    def watched(self) -> tuple[int, ...]:
        """Epoll descriptors that let it run at once."""

    def run(self) -> None:
        """One turn."""

    def where(self) -> str:
        """What it waits at, for an error."""


class Waiting(Protocol):
    """What a parked thread waits for: a loop or a gate."""

    def due(self) -> float: ...

    def watched(self) -> tuple[int, ...]: ...


def moment_of(time: float, rate: float) -> float:
    """When a clock of this rate shows a time."""
    return time if rate == 1.0 or abs(time) == inf else START_S + (time - START_S) / rate


class SimLog:
    """What has happened, line by line: the same in every run of a seed.

    Attributes:
        digest: of all lines.
        kept: the last ones.
    """

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
    """The clock and the choice.

    Attributes:
        now: virtual time in seconds.
        random: of the seed; every choice of the simulation is one of its numbers.
        writes: of the seed, too, for what sockets take: the other choices are the same without it.
        current: the process whose turn it is.
        grave: an ended process, whose globals code finds that ended processes leave behind.
        steps: turns so far.
        serials: of tasks and futures, in the order in which they are made.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.writes = random.Random(f"writes of seed {seed}")
        self.now = START_S
        self.steps = 0
        self._then, self._steps_then = START_S, 0
        self.current: Process | None = None
        self.grave: Process
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

    def is_here(self) -> bool:
        """True if the calling thread runs simulated code, or code that an ended process has left behind."""
        return (self.running is not None or self.current is self.grave) and self.owns_thread()

    def owns_thread(self) -> bool:
        """Whether the calling thread is one of the simulation's."""
        return threading.get_ident() == self._thread or threading.get_ident() in self.threads

    def actor_here(self) -> ThreadActor | None:
        """The calling thread, where it may park."""
        return self.threads.get(threading.get_ident())

    def actor_of(self, thread: threading.Thread) -> ThreadActor | None:
        return next((actor for actor in self.threads.values() if actor.is_run_by(thread)), None) or next(
            (actor for actor in self._actors if isinstance(actor, ThreadActor) and actor.is_run_by(thread)), None
        )

    def add(self, actor: Actor) -> None:
        self._actors[actor] = None

    def remove(self, actor: Actor) -> None:
        self._actors.pop(actor, None)

    def watch(self, fd: int) -> None:
        """Learns of readiness of an epoll descriptor."""
        self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        self._epoll.unregister(fd)

    def read_clock(self) -> float:
        """The time by the clock of the process whose turn it is."""
        process = self.current
        return self.now if process is None or process.rate == 1.0 else START_S + (self.now - START_S) * process.rate

    def note(self, who: str, what: str) -> None:
        """Writes into the log."""
        self.log.note(self.now, who, what)

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Calls back at a moment, in no process."""
        heapq.heappush(self._timers, (when, next(self._numbers), callback))

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        self.at(self.now + seconds, callback)

    def run_until(self, done: Callable[[], bool]) -> None:
        """Takes turns until that is so.

        Raises:
            SimulationError: nothing can run, and nothing ever will.
        """
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
                raise SimulationError(self._tell_livelock())
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

    def _tell_livelock(self) -> str:
        last = "\n".join(list(self.log.kept)[-20:])
        return f"{_MAX_TURNS_AT_ONCE} turns within {_ONCE_S:g} s of virtual time: something turns for ever\n{last}"

    def await_baton(self, actor: ThreadActor) -> None:
        """Until a thread parks."""
        if not self.back.acquire(timeout=_MAX_TURN_S):
            actor.is_stuck = self.has_stuck_threads = True
            raise SimulationError(
                f"{actor.name} waits for something that is not simulated (a real sleep, socket, lock or subprocess):\n"
                f"{actor.stack()}"
            )

    def forget(self) -> None:
        """Lets go of everything that was to happen."""
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
    """A thread of a simulated process, which runs between two of its parkings while all others stand still."""

    def __init__(
        self,
        scheduler: Scheduler,
        process: Process,
        name: str,
        main: Callable[[], None],
        stands_for: threading.Thread | None = None,
    ) -> None:
        """``stands_for`` is the thread that simulated code has wanted to start."""
        self._stands_for = stands_for
        self.process = process
        self.name = name
        self._scheduler = scheduler
        self._main = main
        self._go = _closed_lock()
        self._waiting: Waiting | None = None
        self._thread = threading.Thread(target=self._run, name=f"{SIMULATED}{name}", daemon=True)
        self._has_begun = False
        self.has_ended = False
        self.is_stuck = False
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

    def park(self, waiting: Waiting) -> None:
        """Hands the baton on until what is waited for may be there; on this thread."""
        if self.process.has_ended:
            raise SimulatedDeath
        self._waiting = waiting
        self._scheduler.back.release()
        self._go.acquire()
        if self.process.has_ended:
            raise SimulatedDeath

    def end(self) -> None:
        """Ends the thread of a process that has ended, wherever it is parked."""
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

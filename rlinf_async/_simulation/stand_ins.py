"""Stand-ins for functions that start threads, create loops or block; they affect only simulated threads.

In a simulated process, a new thread becomes an actor that runs while it has the baton, a new loop has virtual time, and
a blocking wait parks its thread. Other threads of the program see the real functions.
"""

from __future__ import annotations

import array
import asyncio
import atexit
import concurrent.futures
import contextlib
import errno
import functools
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import inf
from types import MethodType
from typing import Any, Final

import uvloop

from rlinf_async._core import clock
from rlinf_async._simulation import self_view
from rlinf_async._simulation.scheduler import SIMULATED, Scheduler, SimulatedDeath, ThreadActor
from rlinf_async._simulation.sim_loop import TICK_S, SimLoop
from rlinf_async._waits import thread_gate
from rlinf_async._waits.thread_gate import LockGate

_OUTSIDE: Final = frozenset({"rlinf-blocked-loop", "rlinf-output"})
"""Framework threads that are not actors, because they wait only for the kernel."""


_SHARE_CUT_SHORT: Final = 0.0
"""Fraction of socket writes that the kernel accepts only in part, or temporarily refuses."""


class WaitUntil:
    """A wait for a condition, or until a given time."""

    def __init__(self, condition: Callable[[], bool], seconds: float | None) -> None:
        self._condition = condition
        self._until = inf if seconds is None else clock.monotonic() + max(seconds, TICK_S)

    def due(self) -> float:
        return -inf if self._condition() else self._until

    def watched(self) -> tuple[int, ...]:
        return ()


class SimGate:
    """The gate of a simulated thread that does nothing else while it waits."""

    __slots__ = ("_actor", "_is_open")

    def __init__(self, actor: ThreadActor) -> None:
        self._actor = actor
        self._is_open = False

    def open(self) -> None:
        self._is_open = True

    def wait(self, seconds: float) -> bool:
        self._actor.park(WaitUntil(lambda: self._is_open, seconds))
        return self._is_open


_scheduler: Scheduler | None = None


def sleep(seconds: float) -> None:
    """Block a ``def`` method or a driver's thread for some seconds, which are virtual within a simulation."""
    actor = None if _scheduler is None else _scheduler.current_actor()
    if actor is None:
        threading.Event().wait(seconds)
    else:
        actor.park(WaitUntil(lambda: False, seconds))


def _run_jobs(jobs: deque[Callable[[], None]]) -> None:
    while jobs:
        jobs[0]()
        jobs.popleft()


def run_job(future: concurrent.futures.Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except SimulatedDeath:
        raise
    except BaseException as error:
        future.set_exception(error)


def monotonic() -> float:
    """Return the seconds of the framework's clock, which are virtual within a simulation."""
    return clock.monotonic()


@contextlib.contextmanager
def installed(scheduler: Scheduler) -> Iterator[None]:
    """Install the stand-ins while the block runs."""

    def new_gate() -> Any:
        actor = scheduler.current_actor()
        return LockGate() if actor is None else SimGate(actor)

    def new_loop() -> Any:
        return SimLoop(scheduler) if scheduler.in_simulation() else _REAL.new_event_loop()

    def start(thread: threading.Thread) -> None:
        process = scheduler.current
        if process is None or not scheduler.in_simulation() or thread.name in _OUTSIDE:
            _REAL.start(thread)
            return
        process.actors.append(ThreadActor(scheduler, process, f"{process.name} {thread.name}", thread.run, thread))

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        actor, other = scheduler.current_actor(), actor_of(thread)
        if other is None or (actor is None and not other.has_ended):
            _REAL.join(thread, timeout)
        elif actor is not None:
            actor.park(WaitUntil(lambda: other.has_ended, timeout))

    def is_alive(thread: threading.Thread) -> bool:
        actor = actor_of(thread)
        return _REAL.is_alive(thread) if actor is None else not actor.has_ended

    def actor_of(thread: threading.Thread) -> ThreadActor | None:
        return scheduler.actor_of(thread) if scheduler.in_simulation() else None

    def wait(condition: threading.Condition, timeout: float | None = None) -> bool:
        """Park until the condition is notified; events, semaphores, queues and futures also wait through conditions."""
        actor = scheduler.current_actor()
        if actor is None:
            return _REAL.wait(condition, timeout)
        waiter = threading.Lock()
        waiter.acquire()
        condition._waiters.append(waiter)  # type: ignore[attr-defined]
        saved = condition._release_save()  # type: ignore[attr-defined]
        try:
            actor.park(WaitUntil(lambda: not waiter.locked(), timeout))
        finally:
            condition._acquire_restore(saved)  # type: ignore[attr-defined]
            if waiter.locked():
                condition._waiters.remove(waiter)  # type: ignore[attr-defined]
        return not waiter.locked()

    def submit(executor: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        """Run jobs one at a time, even if the executor has several threads."""
        process = scheduler.current
        if process is None or not scheduler.in_simulation() or executor._shutdown:  # a real executor refuses it
            return _REAL.submit(executor, function, *args, **options)
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        jobs = executor.__dict__.setdefault("_simulated_jobs", deque())
        jobs.append(functools.partial(run_job, future, functools.partial(function, *args, **options)))
        if len(jobs) == 1:
            name = f"{process.name} {executor._thread_name_prefix}"
            process.actors.append(ThreadActor(scheduler, process, name, functools.partial(_run_jobs, jobs)))
        return future

    def shutdown(executor: ThreadPoolExecutor, wait: bool = True, **options: Any) -> None:
        actor, jobs = scheduler.current_actor(), executor.__dict__.get("_simulated_jobs", ())
        for job in list(jobs)[1:] if options.get("cancel_futures") else ():
            job.args[0].cancel()
        if jobs and wait and actor is not None:
            actor.park(WaitUntil(lambda: not jobs, None))
        _REAL.shutdown(executor, wait, **options)

    def is_outside() -> bool:
        """True on a thread outside the simulation; a simulation's stuck threads stay inside after its end."""
        if _scheduler is scheduler:
            return not scheduler.owns_thread()
        return not threading.current_thread().name.startswith(SIMULATED)

    def register(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Register exit functions, except methods of objects that end with their simulated process."""
        is_of_a_thing = isinstance(function, MethodType) and not isinstance(function.__self__, type)
        return function if is_of_a_thing and scheduler.in_simulation() else _REAL.register(function, *args, **options)

    def run_exit_functions() -> None:
        """Do nothing for a simulated process, because all exit functions belong to the host process."""
        if is_outside():
            _REAL.run_exit_functions()

    # `os.environ` also writes to the C library's environment, which only the host process has.
    def put_variable(name: bytes, value: bytes) -> None:
        if not scheduler.in_simulation():
            _REAL.put_variable(name, value)

    def remove_variable(name: bytes) -> None:
        if not scheduler.in_simulation():
            _REAL.remove_variable(name)

    def exit_process(code: int) -> None:
        if is_outside():
            _REAL.exit_process(code)
        if (process := scheduler.current) is not None and not process.has_ended and scheduler.in_simulation():
            process.on_exit(code)
        raise SimulatedDeath

    def recvmsg_into(sock: socket.socket, *args: Any) -> tuple[int, list[Any], int, Any]:
        size, ancillary, flags, address = _REAL.recvmsg_into(sock, *args)
        process = scheduler.current
        if not ancillary or process is None or not scheduler.in_simulation() or process.starved_until <= scheduler.now:
            return size, ancillary, flags, address
        for _, _, numbers in ancillary:
            for fd in array.array("i", numbers):
                os.close(fd)
        return size, [], flags | socket.MSG_CTRUNC, address

    def accepted_bytes(sock: socket.socket, size: int, has_descriptors: bool) -> int:
        """Return how many of ``size`` bytes the socket accepts; raise the kernel's error (OSError) if none."""
        if not scheduler.in_simulation() or sock.gettimeout() != 0 or scheduler.writes.random() >= _SHARE_CUT_SHORT:
            return size
        how = scheduler.writes.choice(("part", "part", "none", "short"))
        if how == "none":
            raise BlockingIOError(errno.EAGAIN, "the send buffer of a simulated socket is full")
        if how == "short" and has_descriptors:
            raise OSError(errno.ETOOMANYREFS, "too many descriptors of simulated processes are under way")
        # Accept eighths of the size, because a pickle's size varies by a byte from run to run: a choice that depended
        # on it would change all later choices, and a seed would not determine its run
        # (tests/simulation/test_sim_cluster.py).
        return max(1, size * scheduler.writes.choice((0, 1, 3, 5, 7)) // 8)

    def send(sock: socket.socket, data: Any, flags: int = 0) -> int:
        return _REAL.send(sock, data[: accepted_bytes(sock, len(data), False)], flags)

    def sendmsg(sock: socket.socket, buffers: Any, ancillary: Any = (), flags: int = 0) -> int:
        """Send only the accepted bytes; all descriptors travel with the first byte, as in the kernel."""
        data = b"".join(buffers)
        return _REAL.sendmsg(sock, [data[: accepted_bytes(sock, len(data), bool(ancillary))]], ancillary, flags)

    def refuse_ended_processes(stand_in: Callable[..., Any]) -> Callable[..., Any]:
        """Reject calls from ended processes, whose leftover code would start real threads and wait forever."""

        @functools.wraps(stand_in)
        def refuse(*args: Any, **options: Any) -> Any:
            if scheduler.in_simulation() and scheduler.current is not None and scheduler.current.has_ended:
                raise SimulatedDeath
            return stand_in(*args, **options)

        return refuse

    places: list[tuple[Any, str, Any]] = [
        (thread_gate._PerThread, "make", staticmethod(refuse_ended_processes(new_gate))),
        (asyncio, "new_event_loop", refuse_ended_processes(new_loop)),
        (asyncio.events, "new_event_loop", refuse_ended_processes(new_loop)),
        (uvloop, "new_event_loop", refuse_ended_processes(new_loop)),
        (atexit, "register", register),
        (atexit, "_run_exitfuncs", run_exit_functions),
        (os, "_exit", exit_process),
        (os, "putenv", put_variable),
        (os, "unsetenv", remove_variable),
        (time, "sleep", refuse_ended_processes(sleep)),
        (threading.Thread, "start", refuse_ended_processes(start)),
        (threading.Thread, "join", refuse_ended_processes(join)),
        (threading.Thread, "is_alive", is_alive),
        (threading.Condition, "wait", refuse_ended_processes(wait)),
        (ThreadPoolExecutor, "submit", refuse_ended_processes(submit)),
        (ThreadPoolExecutor, "shutdown", shutdown),
        (socket.socket, "recvmsg_into", recvmsg_into),
        (socket.socket, "send", send),
        (socket.socket, "sendmsg", sendmsg),
        *self_view.places(scheduler),
    ]
    global _scheduler
    _scheduler = scheduler
    restores = [replace(place, name, value) for place, name, value in places]
    try:
        yield
    finally:
        _scheduler = None
        for (_, name, _), restore in zip(places, restores, strict=True):
            # A thread waiting outside the simulation continues for a while, and may try to end its process.
            if name not in ("_exit", "_run_exitfuncs") or not scheduler.has_stuck_threads:
                restore()


def replace(place: Any, name: str, value: Any) -> Callable[[], None]:
    """Set an attribute of a module or class; return a function that restores the old value."""
    if name in vars(place):
        restore = functools.partial(setattr, place, name, vars(place)[name])
    else:
        restore = functools.partial(delattr, place, name)
    setattr(place, name, value)
    return restore


class _REAL:
    register: Callable[..., Any] = staticmethod(atexit.register)  # type: ignore[arg-type]  # generic in its function
    run_exit_functions = staticmethod(atexit._run_exitfuncs)
    exit_process = staticmethod(os._exit)
    put_variable = staticmethod(os.putenv)
    remove_variable = staticmethod(os.unsetenv)
    new_event_loop = staticmethod(asyncio.new_event_loop)
    start = threading.Thread.start
    join = threading.Thread.join
    is_alive = threading.Thread.is_alive
    wait = threading.Condition.wait
    submit = ThreadPoolExecutor.submit
    shutdown = ThreadPoolExecutor.shutdown
    recvmsg_into = socket.socket.recvmsg_into
    send = socket.socket.send
    sendmsg = socket.socket.sendmsg

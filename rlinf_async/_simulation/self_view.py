"""Stand-ins for a process's view of itself and the kernel's view of it: tasks, threads and CPU state.

Reports of a run, and so all verdicts, rely on these views. Without stand-ins, a simulated process would report the
tasks and threads of all simulated processes, and the CPU time of the simulation.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import FrameType
from typing import Any, Final

from rlinf_async._inspection import own_activities, own_threads
from rlinf_async._inspection.activity_states import States
from rlinf_async._inspection.system_calls import SystemCall
from rlinf_async._simulation.scheduler import ScheduledProcess, Scheduler, ThreadActor
from rlinf_launcher.daemon import inspection, process_state

_FOLDER: Final = os.path.dirname(__file__) + os.sep  # noqa: PTH120  compared with names of files as strings

_FOREVER: Final = SystemCall("futex", (0, 128, 0, 0, 0, 0))
_FOR_A_TIME: Final = SystemCall("clock_nanosleep")

_NUM_FIELDS: Final = 50


@dataclass(frozen=True)
class SimThread:
    name: str
    ident: int
    native_id: int | None
    daemon: bool = True


def places(scheduler: Scheduler) -> list[tuple[Any, str, Any]]:
    """Return each stand-in as a triple: the object to patch, the attribute's name, the stand-in."""
    current_frames, enumerate_threads, main_thread = sys._current_frames, threading.enumerate, threading.main_thread

    def actors() -> list[ThreadActor]:
        process = scheduler.current
        assert process is not None
        return [each for each in process.actors if isinstance(each, ThreadActor) and _is_alive(each)]

    def frames() -> Mapping[int, FrameType]:
        found = current_frames()
        if not scheduler.in_simulation():
            return found
        idents = [each._thread.ident or 0 for each in actors()]
        return {ident: _user_frame(found[ident]) for ident in idents if ident in found}

    def enumerated() -> list[Any]:
        return [_as_thread(each) for each in actors()] if scheduler.in_simulation() else enumerate_threads()

    def main() -> Any:
        if not scheduler.in_simulation():
            return main_thread()
        process = scheduler.current
        assert process is not None
        first = process.actors[0] if process.actors else None
        # A driver's loop runs on the scheduler's thread, so its tasks belong to none of the driver's own threads.
        return _as_thread(first) if isinstance(first, ThreadActor) else SimThread("MainThread", scheduler._thread, None)

    def actor_of(native_id: int | None) -> ThreadActor | None:
        return next((each for each in actors() if each._thread.native_id == native_id), None)

    # The kernel also counts waits for the interpreter's lock, which a loaded machine makes longer than a whole report.
    # tests/simulation/test_sim_verdicts.py::test_the_kernels_count_of_a_threads_sleeps_changes_no_verdict
    def sleeps(native_id: int | None) -> int:
        actor = actor_of(native_id)
        return 0 if actor is None else actor.parks

    def system_call_of(native_id: int | None) -> SystemCall:
        actor = actor_of(native_id)
        waiting = None if actor is None else actor._waiting
        if waiting is None or waiting.watched() or waiting.due() == -inf:
            return SystemCall()
        return _FOREVER if waiting.due() == inf else _FOR_A_TIME

    def stat_of(pid: int) -> list[str]:
        process = _process(scheduler, pid)
        if process is None:
            raise FileNotFoundError(f"no simulated process has pid {pid}")
        state = "T" if process.stopped_until - scheduler.now > process.turn_s else "S"
        return [state, *["0"] * _NUM_FIELDS]

    return [
        (sys, "_current_frames", frames),
        (threading, "enumerate", enumerated),
        (threading, "main_thread", main),
        (own_activities, "all_tasks", lambda: _tasks(scheduler)),
        (own_threads, "system_call_of", system_call_of),
        (own_threads, "_sleeps", sleeps),
        (States, "_native_id", lambda states, ident: states._threads[ident].native_id),
        (process_state, "stat_of", stat_of),
        (inspection, "children_of", lambda known: {}),
        (inspection, "_wake_witness", lambda endpoint: False),
    ]


def _is_alive(actor: ThreadActor) -> bool:
    return actor._has_begun and not actor.has_ended


def _as_thread(actor: ThreadActor) -> SimThread:
    thread, given = actor._thread, actor._stands_for
    name = "MainThread" if actor is actor.process.actors[0] else actor.name if given is None else given.name
    return SimThread(name, thread.ident or 0, thread.native_id)


def _user_frame(frame: FrameType) -> FrameType:
    """Return the innermost frame outside the simulation's code, where a parked thread waits."""
    found: FrameType | None = frame
    while found is not None and found.f_code.co_filename.startswith(_FOLDER):
        found = found.f_back
    return found or frame


def _tasks(scheduler: Scheduler) -> list[asyncio.Task[Any]]:
    process = scheduler.current
    assert process is not None
    found = [task for loop in process.loops for task in asyncio.all_tasks(loop) if not task.done()]
    return sorted(found, key=hash)


def _process(scheduler: Scheduler, pid: int) -> ScheduledProcess | None:
    """Return the living process with this pid. A driver has the simulation's pid, as reported by the kernel."""
    for actor in scheduler._actors:
        if pid == (os.getpid() if actor.process.name == "driver" else actor.process.pid):
            return actor.process
    return None

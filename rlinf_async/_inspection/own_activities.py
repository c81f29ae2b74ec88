"""``own_activities``: the tasks and threads of this process in which user code runs or waits.

Any thread may examine them, and running code need not record anything. An activity that changes during the examination
may be reported in either state, so conclusions require two reports.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Final

from rlinf_async._inspection.activity_states import Key, Observation, States
from rlinf_async._inspection.code_frames import frames_from, has_users, line_of, stack_of
from rlinf_async._inspection.loop_threads import occupied_by, turn_age
from rlinf_async._inspection.own_tasks import Task, above, all_tasks, handed_over
from rlinf_async._inspection.served_calls import ServedCall
from rlinf_async._inspection.state.run_report import Activity, ActivityState
from rlinf_async._inspection.wait_ages import WaitAges
from rlinf_async._waits import slow_waits

_MAX_TASKS: Final = 2000  # a process with more tasks counts as busy


def own_activities(
    calls: Callable[[], Iterable[ServedCall]] = list,
    ages: WaitAges | None = None,
    blocked: asyncio.AbstractEventLoop | None = None,
) -> list[Activity]:
    """Return the activities of this process. Any thread may call this.

    Args:
        blocked: the loop that handles frames, if it is blocked; no answer can end a wait before that loop runs again.
    """
    ages = WaitAges() if ages is None else ages
    ages.begin()
    look = _Look(list(calls()), ages)
    look.see()
    if blocked is not None:
        look.hold_up_all(blocked)
    return look.reported()


class _Look:
    def __init__(self, calls: list[ServedCall], ages: WaitAges) -> None:
        self._calls = {call.task: call for call in calls if call.task is not None}
        self._blocking = next((call for call in calls if call.task is None), None)
        self._main = threading.main_thread().ident or 0
        stacks = {ident: frames_from(frame) for ident, frame in sys._current_frames().items()}
        tasks = all_tasks()
        self._left_out = max(0, len(tasks) - _MAX_TASKS)
        self._tasks = tasks[:_MAX_TASKS]
        threads = {thread.ident: thread for thread in threading.enumerate() if thread.ident is not None}
        self._states = States(self._tasks, stacks, threads, ages)
        self._occupied = {ident: occupied_by(ident, frames) for ident, frames in stacks.items()}
        self._loop_threads = self._threads_of_loops()
        for where in self._occupied.values():
            for future in handed_over(where.loop):
                self._states.carry(future, where.task or where.ident)
        self._seen: dict[Key, Observation] = {}

    def see(self) -> None:
        for task in self._tasks:
            self._seen[task] = self._see_task(task)
        for ident in self._occupied:
            if (thread := self._see_thread(ident)) is not None:
                self._seen[ident] = thread
        self._hold_up()
        self._pass_calls_on()

    # -- one by one ---------------------------------------------------------------------------------------------

    def _see_task(self, task: Task) -> Observation:
        loop = task.get_loop()
        thread = self._loop_threads.get(loop)
        running = next((where for where in self._occupied.values() if where.task is task), None)
        if running is not None:
            seen = self._states.running(task, running.ident, running.inner)
            seen.blocks = True
        elif asyncio.current_task(loop) is task:  # the task resumed after the stacks were read
            seen = Observation(task, self._states.name_of(task), [], is_users=True)
        else:
            seen = self._states.suspended(task)
            seen.loop_thread = None if seen.state is ActivityState.WAITING else thread
        seen.call = next((self._calls[each] for each in above(task) if each in self._calls), None)
        if seen.call is None and thread == self._main and loop.is_running():
            seen.call = self._blocking  # the loop runs within the method
        if seen.call is not None and seen.call.task is task:
            seen.is_users = True
            if seen.call.is_paused:
                self._states.wait_for_caller(seen, seen.call)
                seen.loop_thread = None
        return seen

    def _see_thread(self, ident: int) -> Observation | None:
        """Return a thread's activity, apart from its loop's tasks; None if it has none."""
        where = self._occupied[ident]
        call = self._blocking if ident == self._main else None
        if where.loop is None:
            seen = self._states.running(ident, ident, where.inner)
            seen.call = call
            seen.is_users = seen.is_users or call is not None
            return seen
        if where.task is None and has_users(where.inner):  # a loop callback
            return dataclasses.replace(self._states.running(ident, ident, where.inner), blocks=True)
        if not has_users(where.outer):
            return None
        # User code has called a function that runs a loop. If the function is asyncio.run(), the loop's tasks are
        # reported and mention the call. If it is a blocking method of the framework, only this activity shows the wait.
        main = self._seen.get(where.main)
        told = any(self._seen[task].is_users for task in self._tasks if task.get_loop() is where.loop)
        name = self._states.name_of(ident)
        if main is not None and not told:
            frames = [*where.outer, *main.frames]
            return dataclasses.replace(main, key=ident, name=name, frames=frames, is_users=True, call=call)
        if call is None:
            return None
        awaits = [] if main is None else [main.key]
        state = ActivityState.WAITING if awaits else ActivityState.RUNNING
        return Observation(ident, name, where.outer, is_users=True, state=state, awaits=awaits, call=call)

    # -- relations between activities -----------------------------------------------------------------------------

    def _threads_of_loops(self) -> dict[asyncio.AbstractEventLoop, int]:
        """Return the thread of each loop; for a worker's loop, the main thread, even during a ``def`` method."""
        found = {task.get_loop(): self._main for task in self._calls}
        found |= dict(slow_waits.loops())
        found |= {where.loop: ident for ident, where in self._occupied.items() if where.loop is not None}
        return found

    def _hold_up(self) -> None:
        """Record that tasks that could otherwise continue wait for the activity that blocks their loop's thread."""
        for seen in self._seen.values():
            where = None if seen.loop_thread is None else self._occupied.get(seen.loop_thread)
            if where is None:
                continue
            # The task's loop is inside another task's step, or is not running because a method occupies its thread.
            blocking = self._seen.get(where.task if seen.key.get_loop() is where.loop else where.ident)
            if blocking is not None and blocking is not seen and blocking.state is ActivityState.WAITING:
                seen.state, seen.wait, seen.age, seen.awaits = ActivityState.WAITING, None, None, [blocking.key]

    def hold_up_all(self, loop: asyncio.AbstractEventLoop) -> None:
        where = next((each for each in self._occupied.values() if each.loop is loop), None)
        blocking = None if where is None else self._seen.get(where.task or where.ident)
        if where is not None and blocking is not None and blocking.state is not ActivityState.WAITING:
            blocking.age = turn_age(where)  # the turn may be older than the wait within it
        for seen in self._seen.values():
            on_it = isinstance(seen.key, asyncio.Task) and seen.key.get_loop() is loop
            if (
                blocking is None
                or seen is blocking
                or seen.state is not ActivityState.WAITING
                or not (on_it or seen.is_row)
            ):
                continue
            if seen.wait is None or seen.wait.every:
                seen.awaits.append(blocking.key)

    def _pass_calls_on(self) -> None:
        serving = [seen for seen in self._seen.values() if seen.call is not None]
        while serving:
            seen = serving.pop()
            for key in (*seen.awaits, *seen.one_of):
                if (other := self._seen.get(key)) is not None and other.call is None:
                    other.call = seen.call
                    serving.append(other)

    # -- the report ---------------------------------------------------------------------------------------------

    def reported(self) -> list[Activity]:
        found: dict[Key, Observation] = {}
        waiting = [seen for seen in self._seen.values() if seen.is_users]
        while waiting:
            seen = waiting.pop()
            if seen.key not in found:
                found[seen.key] = seen
                waiting += [self._seen[key] for key in (*seen.awaits, *seen.one_of) if key in self._seen]
        reported = sorted((self._activity(seen) for seen in found.values()), key=lambda activity: activity.name)
        calls = [*self._calls.values(), *([] if self._blocking is None else [self._blocking])]
        served = {(activity.source, activity.number) for activity in reported}
        # Calls that have begun or ended since the stacks were read count as running.
        reported += [
            Activity(f"call {call.number}", ActivityState.RUNNING, None, call.method, call.source, call.number)
            for call in calls
            if (call.source, call.number) not in served
        ]
        return (
            [*reported, Activity(f"{self._left_out} more tasks", ActivityState.RUNNING)] if self._left_out else reported
        )

    def _activity(self, seen: Observation) -> Activity:
        call = seen.call
        return Activity(
            seen.name,
            seen.state,
            seen.age,
            method="" if call is None else call.method,
            source=0 if call is None else call.source,
            number=0 if call is None else call.number,
            wait=seen.wait,
            # asyncio keeps the awaited tasks in unordered sets.
            awaits=sorted(self._seen[key].name for key in seen.awaits if key in self._seen),
            line=line_of(seen.frames),
            stack=stack_of(seen.frames),
            blocks=seen.blocks,
        )

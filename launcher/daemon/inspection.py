"""``Inspection``: reports on a node's processes, combining their own answers with facts from daemon and kernel.

All processes are asked at the same time.  After ``RLINF_INSPECTION_TIMEOUT_S`` the stacks of silent processes are read,
also in parallel, within 1 s::

    daemon ── "inspect": round ──────────────► process
    daemon ◄── Inspected: round, activities ── process
    daemon ── a byte ────────────────────────► a driver whose loop is blocked
    daemon ◄── Inspected: all rounds ───────── its responder thread (_inspection/blocked_loop_responder.py)
    daemon ◄── stacks (stack_reader.py) ────── a process in which no thread answers

A stopped process receives neither the request nor a signal. Each request has its own round, even if several run at
once; only the stacks of a process are read once for all rounds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import stat
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._core import clock, frames, operations
from rlinf_async._inspection.state import stack_dump
from rlinf_async._inspection.state.run_report import (
    IN_DEBUGGER,
    LOOP_BLOCKED,
    Activity,
    LeftDriver,
    OpenCall,
    ProcessReport,
    from_data,
    to_data,
)

from . import process_state
from .channels import Channels
from .child_processes import children_of
from .endpoint import Endpoint
from .handlers import Requester
from .process_state import IN_KERNEL, cpu_seconds, start_of
from .router import Router
from .stack_reader import StackReader

_PARTS: Final = frozenset({"activities", "queues", "oldest"})

_OLDEST: Final = 5  # open calls listed per process in part "oldest"; a process may have thousands

_ENDED: Final = "ended"  # prefix of a dead process's state, here and in process_state.py

_ACTIVITIES_PER_TURN: Final = 64

_WITNESS_S: Final = 0.5  # time limit for the thread that answers for a blocked loop; it may have to wait for the GIL

_MAX_LEFT: Final = 8  # departed drivers to remember; a notebook may attach and detach often

_MAX_CALLS: Final = 1 << 14  # open calls in one answer, shared evenly by its processes; about 1 MiB at 70 bytes each

_MAX_TOLD_BYTES: Final = 6 << 20  # limit for all activities in one answer; a frame holds at most 8 MiB


@dataclass(frozen=True)
class _ProcessAnswer:
    """A process's activities as plain data, and its open calls; ``trouble`` says why the process did not answer."""

    activities: list[Any] = field(default_factory=list)
    trouble: str = ""
    answered: bool = False
    calls: list[OpenCall] | None = None


class Inspection:
    """Handlers for reports on one node's processes; ``in_debugger`` maps each rank stopped in pdb to the location."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        router: Router,
        node_name: str,
        channels: Channels,
        gone: Container[int],
        in_debugger: Mapping[int, str],
    ) -> None:
        self._loop = loop
        self._router = router
        self._node_name = node_name
        self._channels = channels
        self._gone = gone
        self._in_debugger = in_debugger
        self._stacks = StackReader(loop)
        self._left: dict[int, tuple[float, str]] = {}
        """Maps the pid of each departed driver to its time of departure and its start time in kernel ticks."""
        self._numbers = itertools.count(1)
        self._rounds: dict[int, dict[int, asyncio.Future[_ProcessAnswer]]] = {}
        """Maps round and endpoint to the answer's future; the answer or the process's end resolves it."""

    def __repr__(self) -> str:
        return f"<Inspection [{len(self._rounds)} rounds, {self._stacks!r}]>"

    # -- operations ---------------------------------------------------------------------------------------------

    async def inspect(self, requester: Requester, op: operations.Inspect) -> dict[str, Any]:
        """Return reports on this node's processes with the given numbers, or on all its processes if none are given.

        Returns:
            ``processes``, ``queues`` and ``left`` as in ``run_report.py``; ``ended`` maps each requested process that
            has ended to a description of its end.
        """
        if unknown := set(op.parts) - _PARTS:
            raise ValueError(f"Inspect: parts are {' and '.join(sorted(_PARTS))}, got {', '.join(sorted(unknown))}")
        found, ended = self._look_up(op.numbers)
        answers = await self._ask(found) if "activities" in op.parts else {}
        most = _OLDEST if "oldest" in op.parts else self._max_calls_per_process()
        processes = [self._report(endpoint, answers.get(endpoint.id), most) for endpoint in found]
        if answers:
            children = children_of({endpoint.os_pid for endpoint in self._router.endpoints.values() if endpoint.os_pid})
            for process in processes:
                process["children"] = [to_data(child) for child in children.get(process["pid"], ())]
            _fit(processes)
        ended |= {
            process["endpoint"]: process["trouble"].removeprefix(f"{_ENDED}: ")
            for process in processes
            if process["trouble"].startswith(_ENDED)
        }
        queues = self._channels.reports() if "queues" in op.parts else []
        left = [to_data(driver) for driver in self._left_drivers()]
        return {"processes": processes, "queues": [to_data(queue) for queue in queues], "ended": ended, "left": left}

    async def inspected(self, requester: Requester, op: operations.Inspected) -> None:
        """Record a process's answer; ignore it if its round has ended or did not ask the process."""
        is_for_loop = op.round == operations.ALL_ROUNDS
        rounds = self._rounds.values() if is_for_loop else [self._rounds.get(op.round, {})]
        futures = [futures[requester.endpoint] for futures in rounds if requester.endpoint in futures]
        process = self._router.endpoints.get(frames.number_of(requester.endpoint))
        if process is None or all(future.done() for future in futures):
            return
        # Read the calls now, not when all processes have answered, because this process may reply to a call that it
        # reports as running before the others answer.
        calls = _open_calls(process, self._max_calls_per_process())
        answer = dataclasses.replace(await _checked(op.activities), calls=calls)
        if is_for_loop and answer.answered:
            answer = dataclasses.replace(answer, trouble=LOOP_BLOCKED)
        for future in futures:
            if not future.done():
                future.set_result(answer)

    def drop(self, gone: int) -> None:
        """Resolve the open questions to an ended process."""
        self._stacks.drop(gone)
        for answers in self._rounds.values():
            if gone in answers and not answers[gone].done():
                answers[gone].set_result(_ProcessAnswer())

    def note_left(self, driver: Endpoint) -> None:
        """Remember a driver that closed its connection, since its process may still be running."""
        if driver.role == "driver" and (start := start_of(driver.pid)):
            self._left.pop(driver.pid, None)
            self._left[driver.pid] = (clock.monotonic(), start)
            if len(self._left) > _MAX_LEFT:
                del self._left[next(iter(self._left))]

    def _left_drivers(self) -> list[LeftDriver]:
        back = {endpoint.os_pid for endpoint in self._router.endpoints.values()}
        self._left = {pid: left for pid, left in self._left.items() if pid not in back and start_of(pid) == left[1]}
        return [LeftDriver(pid, self._node_name, clock.monotonic() - when) for pid, (when, _) in self._left.items()]

    # -- asking -------------------------------------------------------------------------------------------------

    async def _ask(self, endpoints: list[Endpoint]) -> dict[int, _ProcessAnswer]:
        """Return the processes' answers, or their stacks; takes at most the timeout plus 1 s."""
        told = {each.id: _ProcessAnswer(trouble=self.state_of(each)) for each in endpoints}
        # If so far only the kernel knows that a process has ended, wait until this daemon has processed the end, so
        # that the report includes the exit status.
        ending = {each.id for each in endpoints if told[each.id].trouble.startswith(_ENDED) and not self._end_of(each)}
        asked = [each for each in endpoints if told[each.id].trouble in ("", IN_KERNEL) or each.id in ending]
        if not asked:
            return told
        number = next(self._numbers)
        answers = self._rounds[number] = {each.id: self._loop.create_future() for each in asked}
        try:
            for each in asked:
                self._router.send_event(each.id, "inspect", {"round": number})
            await asyncio.wait(answers.values(), timeout=settings.INSPECTION_TIMEOUT_S())
            silent = [each for each in asked if not answers[each.id].done()]
            if woken := [answers[each.id] for each in silent if _wake_witness(each)]:
                await asyncio.wait(woken, timeout=_WITNESS_S)
            told |= await self._read_stacks([each for each in silent if not answers[each.id].done()])
            # An answer that arrived during the dump takes precedence over the stacks.
            return told | {endpoint: answer.result() for endpoint, answer in answers.items() if answer.done()}
        finally:
            del self._rounds[number]

    async def _read_stacks(self, silent: list[Endpoint]) -> dict[int, _ProcessAnswer]:
        told = {each.id: _ProcessAnswer(trouble=self.state_of(each)) for each in silent}
        dumps = {
            each.id: self._stacks.read(each) for each in silent if told[each.id].trouble in ("", IN_KERNEL)
        }  # the other processes were stopped in the meantime
        if dumps:
            await asyncio.wait(dumps.values())
        for endpoint, dump in dumps.items():
            stacks = dump.result()
            state = f", {told[endpoint].trouble}" if told[endpoint].trouble else ""
            why = f": {stacks.trouble}" if stacks.trouble else ""
            threads = stack_dump.activities(stacks.text, settings.INSPECTION_TIMEOUT_S())
            told[endpoint] = _ProcessAnswer([to_data(thread) for thread in threads], f"does not answer{state}{why}")
        return told

    # -- known state -------------------------------------------------------------------------------------

    def _look_up(self, numbers: list[int]) -> tuple[list[Endpoint], dict[int, str]]:
        """Return the requested processes of the run, and a map from each missing endpoint to how it ended."""
        endpoints = self._router.endpoints
        wanted: Iterable[Endpoint | None] = (
            map(endpoints.get, dict.fromkeys(numbers)) if numbers else endpoints.values()
        )
        found = [each for each in wanted if each is not None and _is_of_the_run(each)]
        asked_for = {frames.endpoint(self._router.node, number) for number in numbers}
        missing = asked_for - {endpoint.id for endpoint in found}
        return found, {each: "left the run" if each in self._gone else "is not of this run" for each in missing}

    def _end_of(self, endpoint: Endpoint) -> str:
        """Describe how a process ended; empty while it is alive."""
        if endpoint.exit_report is not None:
            verdict: str = frames.unpack(endpoint.exit_report)["verdict"]
            return f"{verdict}, is away and started again" if endpoint.is_away else verdict
        if endpoint.process is not None and endpoint.process.exit_status is not None:
            return endpoint.process.exit_status.text
        return "left the run" if endpoint.id in self._gone else ""

    def state_of(self, endpoint: Endpoint) -> str:
        """Describe a process's state if it is unusual; empty otherwise."""
        if how := self._end_of(endpoint):
            return f"{_ENDED}: {how}"
        if where := self._in_debugger.get(endpoint.id):
            return f"{IN_DEBUGGER} at {where}"
        image = None if endpoint.process is None else endpoint.process.image
        state = process_state.state_of(endpoint.os_pid, image) if endpoint.os_pid else ""
        return state or ("" if endpoint.is_known else "is being started")

    def _max_calls_per_process(self) -> int:
        return max(_OLDEST, _MAX_CALLS // max(1, len(self._router.endpoints)))

    def _report(self, endpoint: Endpoint, told: _ProcessAnswer | None, most: int) -> dict[str, Any]:
        """Return one process's report as plain data, with its ``most`` oldest calls."""
        how = self._end_of(endpoint)
        answered = told is not None and told.answered and not how
        if how or told is None:
            told = _ProcessAnswer(trouble=self.state_of(endpoint))
        role, name, group, rank = _identity(endpoint)
        report = ProcessReport(
            endpoint.id, role, name, group, rank, self._router.node, self._node_name, endpoint.os_pid,
            told.trouble, answered, cpu=cpu_seconds(endpoint.os_pid), owed=len(endpoint.pending_calls),
        )  # fmt: skip
        calls = [] if how else _open_calls(endpoint, most) if told.calls is None else told.calls
        return vars(report) | {"calls": [vars(call) for call in calls], "activities": told.activities}


def _is_of_the_run(endpoint: Endpoint) -> bool:
    """True if a process belongs to the run: neither an operator nor an unidentified connection."""
    return endpoint.role != "operator" and (endpoint.process is not None or endpoint.is_known)


def _identity(endpoint: Endpoint) -> tuple[str, str, str, int]:
    if endpoint.process is not None:
        setup = endpoint.process.setup
        return "worker", setup.name, setup.group, setup.rank
    if endpoint.root is not None:
        group, _, rank = endpoint.name.rpartition(":")
        return "subprocess", endpoint.name, group, int(rank)
    return "driver", "driver", "", -1


def _open_calls(endpoint: Endpoint, most: int) -> list[OpenCall]:
    return [OpenCall(*call) for call in endpoint.pending_calls.ages(clock.monotonic(), most)]


def _wake_witness(endpoint: Endpoint) -> bool:
    """Wake the thread that answers for a process's blocked loop; return False if the process has none."""
    if endpoint.witness is None:
        return False
    try:
        fd = os.open(f"/proc/{endpoint.os_pid}/fd/{endpoint.witness}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # The process may have closed the descriptor, so that its number now belongs to another file, even a pipe of the
        # user's program.  In that case, the pipe receives a stray byte, but only in a process that closes descriptors
        # that it does not own.
        return stat.S_ISFIFO(os.fstat(fd).st_mode) and os.write(fd, b"\0") == 1
    except OSError:  # the pipe is full because nothing reads from it
        return False
    finally:
        os.close(fd)


async def _checked(activities: list[Any]) -> _ProcessAnswer:
    """Validate activities sent by a process, which are untrusted and must fit into another frame."""
    checked: list[Any] = []
    try:
        for first in range(0, len(activities), _ACTIVITIES_PER_TURN):
            if first:
                await asyncio.sleep(0)  # let the daemon's more urgent tasks run
            part = activities[first : first + _ACTIVITIES_PER_TURN]
            checked += [to_data(from_data(Activity, activity)) for activity in part]
        frames.pack(checked)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        return _ProcessAnswer(trouble=f"its answer makes no sense ({type(error).__name__}: {error})"[:200])
    return _ProcessAnswer(checked, answered=True)


def _fit(processes: list[dict[str, Any]]) -> None:
    """Drop stacks, then activities, of the largest processes until everything fits into one frame."""
    sizes = {process["endpoint"]: len(frames.pack(process["activities"])) for process in processes}
    shorten: tuple[Callable[[dict[str, Any]], None], ...] = (_leave_out_stacks, _leave_out_activities)
    for leave_out in shorten:
        for process in sorted(processes, key=lambda each: -sizes[each["endpoint"]]):
            if sum(sizes.values()) <= _MAX_TOLD_BYTES:
                return
            leave_out(process)
            sizes[process["endpoint"]] = len(frames.pack(process["activities"]))


def _leave_out_stacks(process: dict[str, Any]) -> None:
    for activity in process["activities"]:
        activity["stack"] = []


def _leave_out_activities(process: dict[str, Any]) -> None:
    count = len(process["activities"])
    process |= {"activities": [], "answered": False, "trouble": f"has {count} tasks and threads, too many to tell"}

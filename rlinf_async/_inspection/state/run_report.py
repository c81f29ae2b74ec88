"""Reports about a run: its processes with their activities and waits, and its queues, as plain data.

Facts are collected at their source: activities by each process (``own_activities.py``), everything else by each node's
daemon (``launcher/daemon/inspection.py``). ``to_data`` and ``from_data`` convert reports for a frame::

    RunReport
      processes  ProcessReport       driver, rank or subprocess, as known to its daemon and kernel
        children   ChildProcess        process that it started and that daemons do not know
        calls      OpenCall            calls that it has not answered, oldest first
        activities Activity            its tasks and threads, as reported by itself
          wait       Wait                awaited event
            targets    Target              an action that would end the wait
          stack      Frame               outermost first
      queues     QueueReport         the queue of one channel on one node
      left       LeftDriver          driver that has closed its cluster

Endpoints are as in ``_core/frames.py``; seconds are ages at the time of the report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints


class ActivityState(StrEnum):
    # Code runs, or waits for something outside the run (a socket, a file, a subprocess).
    RUNNING = "running"
    SLEEPING = "sleeping"  # the activity continues by itself at a known time
    WAITING = "waiting"  # ``Activity.wait`` or ``Activity.awaits`` says for what
    IDLE = "idle"  # the activity waits for work; no user code is waiting


class TargetKind(StrEnum):
    """The kind of action that ends a wait."""

    CALL = "call"  # ``endpoint`` answers the waiting process's call with this ``number``
    MESSAGE = "message"  # ``endpoint`` sends or receives the message
    # A process puts into or gets from the channel with this ``number`` and this ``name``.
    QUEUE = "queue"
    COLLECTIVE = "collective"  # ``endpoint`` enters the collective operation ``name``
    NAME = "name"  # a process creates a group or channel called ``name``
    LOCK = "lock"  # ``endpoint`` releases the lock ``name``
    WEIGHTS = "weights"  # a process publishes a version of the model ``name``, or ``endpoint`` applies it
    RESTART = "restart"  # the owner of the group ``name`` restarts its dead ranks, and runs ``on_restart``
    DAEMON = "daemon"  # the framework itself completes the operation ``name``
    LOCAL = "local"  # another task or thread of this process, called ``name`` if known, ends the wait


@dataclass(frozen=True)
class Frame:
    """One frame of a stack; ``users`` is False in the framework, the standard library and installed packages."""

    file: str
    line: int
    function: str
    users: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}()"


@dataclass(frozen=True)
class Target:
    """The action, and the process, that would end a wait; unknown parts are 0 or empty."""

    kind: TargetKind
    endpoint: int = 0
    number: int = 0
    name: str = ""


@dataclass(frozen=True)
class Wait:
    """The wait of an activity; ``every`` is True if all ``targets`` must act, False if one suffices.

    Attributes:
        kind: the kind in the table of waits (``call``, ``recv``, ``get``), or the name of a collective
            (``all_reduce``).
        age: age of the wait in seconds.
        left: seconds left until its deadline; None if it has none.
    """

    kind: str
    what: str
    age: float
    targets: list[Target]
    every: bool = True
    left: float | None = None


@dataclass(frozen=True)
class Activity:
    """A task or thread of a process.

    Attributes:
        name: name that is unique in its process: ``thread MainThread``, ``task Task-7``.
        age: seconds since it entered its state; None if unknown.
        method: method of the call that it serves; empty if it serves none.
        source, number: the caller's endpoint, and the call's number at the caller.
        wait: its wait, if it waits for something outside the process.
        awaits: names of activities of the same process, all of which it waits for.
        line: innermost line of user code, ``train.py:12 in main()`` with the full path; None if there is none.
        blocks: True if it blocks the event loop of its thread.
    """

    name: str
    state: ActivityState
    age: float | None = None
    method: str = ""
    source: int = 0
    number: int = 0
    wait: Wait | None = None
    awaits: list[str] = dataclasses.field(default_factory=list)
    line: str | None = None
    stack: list[Frame] = dataclasses.field(default_factory=list)
    blocks: bool = False


@dataclass(frozen=True)
class OpenCall:
    """A call that a process must answer."""

    source: int
    number: int
    method: str
    age: float


IN_DEBUGGER: Final = "in the debugger"  # start of ``trouble`` for a rank at a pdb prompt

# A driver whose loop is blocked handles no frames and runs no tasks.
LOOP_BLOCKED: Final = "does not run its event loop"


@dataclass(frozen=True)
class ChildProcess:
    """A child of one of the run's processes, unknown to daemons; it may join, put or send. Times are in seconds."""

    pid: int
    age: float
    cpu: float


@dataclass(frozen=True)
class ProcessReport:
    """A process of the run.

    Attributes:
        role: ``driver``, ``worker`` or ``subprocess`` (of a worker).
        name: ``rollout:3``, or ``driver``; unique with ``pid``.
        group, rank: group and rank; empty and -1 for a driver.
        trouble: the reason why it does not report itself: ``stopped (T)``, ``does not answer``, ``ended: exit code 1``;
            otherwise empty. ``LOOP_BLOCKED`` if another thread reports in place of its blocked loop.
        answered: True if it has reported its own activities; otherwise they come from its stacks, or are missing.
        cpu: CPU seconds used by all its threads; 0 if unknown.
        children: its live descendants that do not report themselves.
        owed: number of open calls; ``calls`` may contain only the oldest of them.
    """

    endpoint: int
    role: str
    name: str
    group: str
    rank: int
    node: int
    node_name: str
    pid: int
    trouble: str = ""
    answered: bool = True
    calls: list[OpenCall] = dataclasses.field(default_factory=list)
    activities: list[Activity] = dataclasses.field(default_factory=list)
    cpu: float = 0.0
    children: list[ChildProcess] = dataclasses.field(default_factory=list)
    owed: int = 0


@dataclass(frozen=True)
class LeftDriver:
    """A driver that closed its cluster ``age`` seconds ago, but whose process still runs."""

    pid: int
    node_name: str
    age: float


@dataclass(frozen=True)
class QueueReport:
    """The queue of a channel on one node.

    Attributes:
        items, nbytes: number of items over all keys, and their total size.
        full: True if a put waits for room.
        producers, consumers: endpoints that have put items; endpoints that have received items or wait for one.
        clients: endpoints of all processes that use the queue.
        gone: maps each group to its ranks that have ended after putting items.
        ledger: for an experience, the numbers of samples put, taken, present, leased and dropped.
    """

    number: int
    name: str
    node: int
    items: int
    nbytes: int
    maxsize: int
    full: bool
    producers: list[int]
    consumers: list[int]
    clients: list[int]
    gone: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    ledger: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class RunReport:
    """The state of a run at one moment.

    Attributes:
        missing: maps each node that did not answer to the reason.
        ended: maps each ended endpoint to a description of how it ended.
        left: drivers that have closed their cluster but still run, most recent first.
    """

    run: str
    processes: list[ProcessReport]
    queues: list[QueueReport] = dataclasses.field(default_factory=list)
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    ended: dict[int, str] = dataclasses.field(default_factory=dict)
    left: list[LeftDriver] = dataclasses.field(default_factory=list)

    def process(self, endpoint: int) -> ProcessReport | None:
        return next((each for each in self.processes if each.endpoint == endpoint), None)


R = TypeVar("R")


def merged(run: str, answers: Iterable[dict[str, Any]], missing: dict[str, str]) -> RunReport:
    answers = list(answers)
    return RunReport(
        run=run,
        processes=[from_data(ProcessReport, each) for answer in answers for each in answer["processes"]],
        queues=[from_data(QueueReport, each) for answer in answers for each in answer["queues"]],
        missing=missing,
        ended={int(each): str(text) for answer in answers for each, text in answer["ended"].items()},
        left=sorted(
            (from_data(LeftDriver, each) for answer in answers for each in answer["left"]), key=attrgetter("age")
        ),
    )


def to_data(report: Any) -> Any:
    """Return a report as maps and lists of plain values, for JSON and msgpack."""
    return dataclasses.asdict(report)


def from_data(kind: type[R], data: Any) -> R:
    """Return a report from ``to_data``. Raise TypeError, KeyError or ValueError for another version's data."""
    found: R = _read(kind, data)
    return found


def _read(kind: Any, data: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind(**{name: _read(type_, data[name]) for name, type_ in _fields(kind).items() if name in data})
    if origin is list:
        return [_read(inner[0], each) for each in data]
    if origin is dict:
        return {_read(inner[0], key): _read(inner[1], value) for key, value in data.items()}
    if type(None) in inner:
        return None if data is None else _read(next(each for each in inner if each is not type(None)), data)
    return kind(data) if isinstance(kind, type) else data


@cache
def _fields(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}

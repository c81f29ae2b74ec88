"""Reports of a run that stands still or goes on: processes, their activities, waits and queues, as plain data.

A report is made where the facts are: activities by each process of itself (``own_process.py``), the rest by its node's
daemon (``launcher/daemon/inspection.py``).  ``to_data`` and ``from_data`` bring them through a frame::

    RunReport
      processes  ProcessReport       driver, rank or subprocess, as its daemon and the kernel know it
        children   ChildProcess        that it has started and no daemon knows
        calls      OpenCall            that it was asked for and has not answered, the oldest first
        activities Activity            its tasks and threads, as it tells itself
          wait       Wait                what the activity waits for
            targets    Target              who has to do what
          stack      Frame               the outermost first
      queues     QueueReport         one channel's queue on one node
      left       LeftDriver          that has closed its cluster

Endpoints are as in ``_core/frames.py``; seconds are ages, at the moment of the report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints


class State(StrEnum):
    """What an activity does."""

    RUNNING = "running"
    """Its code runs, or waits for something that only the outside knows (a socket, a file, a subprocess)."""
    SLEEPING = "sleeping"
    """It goes on by itself, at a time that is set."""
    WAITING = "waiting"
    """``Activity.wait`` says what for, or ``Activity.awaits``."""
    IDLE = "idle"
    """It waits for work that somebody gives it; no code of the user's waits there."""


class TargetKind(StrEnum):
    """What has to happen for a wait to end."""

    CALL = "call"
    """``endpoint`` answers the call with that ``number`` of the process that waits."""
    MESSAGE = "message"
    """``endpoint`` sends what is waited for, or takes what was sent."""
    QUEUE = "queue"
    """Somebody puts into the channel with that ``number``, or gets from there; ``name`` is the channel's."""
    COLLECTIVE = "collective"
    """``endpoint`` arrives in the collective operation ``name`` as well."""
    NAME = "name"
    """Somebody makes a group or channel called ``name``."""
    LOCK = "lock"
    """``endpoint`` releases the lock ``name``."""
    WEIGHTS = "weights"
    """Somebody publishes a version of the model ``name``; or ``endpoint`` applies it."""
    RESTART = "restart"
    """The owner of the group ``name`` brings back the ranks that are away, and has ``on_restart`` run."""
    DAEMON = "daemon"
    """The framework answers ``name``: it works on it."""
    LOCAL = "local"
    """Another task or thread of this process, known by ``name`` if at all, releases it."""


@dataclass(frozen=True)
class Frame:
    """One frame of a stack.

    Attributes:
        users: it runs code of the user's, and not of the framework, the standard library or an installed package.
    """

    file: str
    line: int
    function: str
    users: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}()"


@dataclass(frozen=True)
class Target:
    """Who has to do what; 0 and empty where that is not known."""

    kind: TargetKind
    endpoint: int = 0
    number: int = 0
    name: str = ""


@dataclass(frozen=True)
class Wait:
    """What an activity waits for.

    Attributes:
        kind: as the table of waits has it, ``call``, ``recv``, ``get``, or of a collective its name: ``all_reduce``.
        what: in words.
        age: seconds.
        targets: who has to act.
        every: all targets have to; False: one of them is enough.
        left: seconds to its deadline; None without.
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
        name: unique in its process: ``thread MainThread``, ``task Task-7``.
        state: what it does.
        age: seconds for which it has; None where that is not known.
        method: of the call that it serves; empty where it serves none.
        source: the endpoint that has made that call.
        number: of that call, at its source.
        wait: what it waits for, where that is not in this process.
        awaits: names of activities of this process that it waits for, all of them.
        line: the innermost line of the user's code, ``train.py:12 in main()`` with the full path; None without.
        stack: of its frames, the outermost first.
        blocks: its thread runs an event loop, which stands still meanwhile.
    """

    name: str
    state: State
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
    """A call that a process owes an answer to."""

    source: int
    number: int
    method: str
    age: float


IN_DEBUGGER: Final = "in the debugger"
"""Begins the trouble of a rank that stands at a prompt of pdb."""

LOOP_BLOCKED: Final = "does not run its event loop"
"""Trouble of a driver whose loop stands still: frames that come to it are not handled, and no task goes on."""


@dataclass(frozen=True)
class ChildProcess:
    """A process that one of the run has started, and that no daemon knows: it may join, put or send.

    Attributes:
        age: seconds since its start.
        cpu: seconds of processors that it has had.
    """

    pid: int
    age: float
    cpu: float


@dataclass(frozen=True)
class ProcessReport:
    """A process of the run.

    Attributes:
        role: ``driver``, ``worker`` or ``subprocess`` (of a worker).
        name: ``rollout:3``, or ``driver``; unique with ``pid``.
        group: empty for a driver.
        rank: -1 for a driver.
        trouble: why it says nothing of itself: ``stopped (T)``, ``does not answer``, ``ended: exit code 1``; empty if
            it does.  Or ``LOOP_BLOCKED``: it does, though its loop did not.
        answered: it has told of its activities itself; else they are what its stacks show, or none.
        cpu: seconds of processors that it has had, with all its threads; 0 where that is not known.
        children: its living child processes, and theirs, that are not in the report themselves.
        owed: how many calls are open, of which a report may have the oldest only.
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
    """A driver that has closed its cluster, and whose process lives on.

    Attributes:
        age: seconds since it has left the run.
    """

    pid: int
    node_name: str
    age: float


@dataclass(frozen=True)
class QueueReport:
    """The queue of a channel on one node.

    Attributes:
        number: of the channel.
        items: in it, over all keys.
        nbytes: of these.
        full: a put waits for room.
        producers: endpoints that have put there.
        consumers: endpoints that have got from there, or wait to.
        clients: all endpoints that use it.
        gone: by group, the ranks that have put there and have ended since.
        ledger: of an experience, how many samples were put, taken, are present, leased, and were dropped.
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
    """All that is known of a run at one moment.

    Attributes:
        missing: nodes that did not answer, each with the reason.
        ended: endpoints of the run that are no more, each with how it ended.
        left: drivers whose processes live on, the last one first.
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
    """The report of a run, of what its daemons have answered to ``Inspect``."""
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
    """Maps and lists of plain values, as JSON and msgpack take them."""
    return dataclasses.asdict(report)


def from_data(kind: type[R], data: Any) -> R:
    """A report of that kind, as ``to_data`` gave it.

    Raises:
        TypeError, KeyError, ValueError: it is none; of another version perhaps.
    """
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

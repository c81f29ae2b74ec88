"""The steps of a program.

A program is plain data whose ``repr`` is Python: what a failing run prints can be played again (``play.py``).
``"a"`` and ``"b"`` are the two workers; ``"driver"`` is the test's own process, ``"thread"`` one of its other threads.
"""

from __future__ import annotations

from dataclasses import dataclass

SIZES = (100, 200 * 1024, 2 * 1024 * 1024)
"""Bytes: inside the frame, as sealed memory, and large."""


@dataclass(frozen=True)
class Call:
    """Calls of the driver on a worker; ``kind`` is one of ``CALLS``, a ``deadline`` in seconds or None."""

    to: str
    kind: str
    size: int
    times: int = 1
    deadline: float | None = None


CALLS = ("def", "async", "stream", "peer", "thread")
"""A ``def``, an ``async def``, an async generator, a call that makes one on the other worker, one from a thread."""


@dataclass(frozen=True)
class Send:
    """Messages from one worker to the other, which receives as many; blocking in ``def`` methods, or in coroutines."""

    source: str
    size: int
    times: int = 1
    blocking: bool = False
    deadline: float | None = None


@dataclass(frozen=True)
class Open:
    """A channel is made under a name, after the one that had it was closed; workers may have it from the start."""

    channel: str
    maxsize: int = 0
    handed: bool = False


@dataclass(frozen=True)
class Close:
    """A channel is closed; ``age`` 1 is the one that had the name before."""

    channel: str
    age: int = 0
    discard: bool = False


@dataclass(frozen=True)
class Put:
    """Items put into a channel by a worker, the driver, or a thread of the driver."""

    who: str
    channel: str
    age: int = 0
    size: int = 100
    times: int = 1
    deadline: float | None = None


@dataclass(frozen=True)
class Get:
    """Items taken from a channel, likewise."""

    who: str
    channel: str
    age: int = 0
    times: int = 1
    deadline: float | None = None


@dataclass(frozen=True)
class Cancel:
    """The task of an open wait is cancelled: the ``index``-th of them, counted from the youngest."""

    index: int


@dataclass(frozen=True)
class Fork:
    """A process forks, and its child ends after so many seconds without an exec."""

    where: str
    seconds: float = 0.05


@dataclass(frozen=True)
class Starve:
    """A worker has so many descriptors to spare, for so many seconds."""

    worker: str
    seconds: float = 0.2
    spare: int = 0


@dataclass(frozen=True)
class Sever:
    """A socket of a worker to another process is shut down, closed under its owner, or gets garbage; -1 is all."""

    worker: str
    how: str
    which: int = -1


SEVERED = ("shutdown", "close", "garbage")


@dataclass(frozen=True)
class Stop:
    """SIGSTOP, and SIGCONT after so many seconds."""

    worker: str
    seconds: float = 0.2


@dataclass(frozen=True)
class Kill:
    """SIGKILL; a new worker takes the place."""

    worker: str


@dataclass(frozen=True)
class Exec:
    """A worker becomes ``sleep``; it is killed at the end of the program."""

    worker: str


@dataclass(frozen=True)
class Pause:
    """Time for what has been started."""

    seconds: float


@dataclass(frozen=True)
class Settle:
    """Everything that is not meant to wait has ended."""


@dataclass(frozen=True)
class KillDaemon:
    """SIGKILL for the daemon while so many threads make calls; the last step of a program."""

    threads: int = 0


Step = (
    Call | Send | Open | Close | Put | Get | Cancel | Fork | Starve | Sever | Stop | Kill | Exec | Pause | Settle
    | KillDaemon
)  # fmt: skip
Program = tuple[Step, ...]

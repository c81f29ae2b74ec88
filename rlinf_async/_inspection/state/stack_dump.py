"""Stacks of a process that does not answer, as written by faulthandler: the signal that requests them, and a parser.

A process writes them inside a signal handler, whatever locks its threads hold, without its loop or the GIL. Only files,
lines and function names are therefore known, not values or tasks::

    Thread 0x00007f18cd7286c0 (most recent call first):
      File "/usr/lib/python3.11/threading.py", line 331 in wait
      File "/home/me/train.py", line 6 in collect
    Current thread 0x00007f18ce492b80 (most recent call first):
      ...
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Final

from rlinf_async._core.framework_files import is_framework
from rlinf_async._inspection.state.collectives import collective_of
from rlinf_async._inspection.state.run_report import Activity, ActivityState, Frame, Target, TargetKind, Wait

SIGNAL: Final = signal.SIGRTMAX - 3
"""Signal on which a process writes the stacks of all its threads into its pipe.

A process without a handler is killed by the signal, so first check ``SigCgt`` in ``/proc/PID/status``.
"""

_THREAD: Final = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]{1,16})(?: \[(.*)\])? \(most recent call first\):")
_FRAME: Final = re.compile(r'  File (?:"(.*)"|\?\?\?), line (\d{1,9}|\?\?\?) in (.*)')
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_MORE_THREADS: Final = "..."

_NOT_USERS: Final = re.compile(r"<frozen |.*/lib\d*/python\d[^/]*/|.*/(?:site|dist)-packages/")

# Maps each blocking function of ``threading.py`` to the kind of its wait.
_BLOCKING: Final = {"wait": "lock", "acquire": "lock", "join": "thread", "_wait_for_tstate_lock": "thread"}


@dataclass(frozen=True)
class DumpedThread:
    """A thread in a dump. The name is ``MainThread``, the system's name or the id; frames are outermost first."""

    ident: int
    name: str
    frames: list[Frame]


def parse(text: str) -> list[DumpedThread]:
    """Return the threads of a dump, with the main thread last.

    Other lines are skipped, because a full pipe may cut off the text anywhere. If the text contains several dumps, the
    latest stack of each thread counts.
    """
    names: dict[int, str] = {}
    stacks: dict[int, list[Frame]] = {}
    frames: list[Frame] = []
    has_all = True
    for line in text.splitlines():
        if (thread := _THREAD.fullmatch(line)) is not None:
            ident = int(thread[1], 16)
            names[ident] = _unescaped(thread[2] or f"{ident:#x}")
            # Reinsert the thread at the end, to keep the order of the last dump.
            stacks.pop(ident, None)
            frames = stacks[ident] = []
            has_all = True
        elif (frame := _FRAME.fullmatch(line)) is not None:
            file, number, function = frame.groups()
            path = _unescaped(file or "???")
            known = int(number) if number.isdecimal() else 0
            frames.append(Frame(path, known, _unescaped(function), users=is_users(path)))
        elif line == _MORE_THREADS:
            has_all = False
    # The interpreter lists its newest thread first, and the main thread is the oldest.
    if stacks and has_all:
        names[list(stacks)[-1]] = "MainThread"
    return [DumpedThread(ident, names[ident], frames[::-1]) for ident, frames in stacks.items()]


def is_users(file: str) -> bool:
    return _NOT_USERS.match(file) is None and not is_framework(file)


def activities(text: str, silent: float) -> list[Activity]:
    """Return a dump's threads in user code, or else its main thread, as waiting for at least ``silent`` seconds."""
    threads = parse(text)
    chosen = [thread for thread in threads if any(frame.users for frame in thread.frames)]
    return [_activity(thread, silent) for thread in chosen or threads[-1:]]


def _activity(thread: DumpedThread, silent: float) -> Activity:
    users = [frame for frame in thread.frames if frame.users]
    wait = _wait(thread.frames, silent)
    return Activity(
        f"thread {thread.name}",
        ActivityState.RUNNING if wait is None else ActivityState.WAITING,
        wait=wait,
        line=str(users[-1]) if users else None,
        stack=thread.frames,
    )


def _wait(frames: list[Frame], silent: float) -> Wait | None:
    collective = collective_of(frames)
    if collective is not None:
        return Wait(collective, f"{collective} of a process group that is not known", silent, [])
    if frames and frames[-1].file.endswith("/threading.py") and frames[-1].function in _BLOCKING:
        kind = _BLOCKING[frames[-1].function]
        return Wait(kind, f"a {kind} of this process", silent, [Target(TargetKind.LOCAL)])
    return None


def _unescaped(text: str) -> str:
    """Decode faulthandler's escapes for non-ASCII characters."""
    return _ESCAPE.sub(_character, text)


def _character(escape: re.Match[str]) -> str:
    number = int(next(filter(None, escape.groups())), 16)
    is_surrogate = 0xD800 <= number <= 0xDFFF  # from a name that is not UTF-8; frames cannot carry it
    return escape[0] if is_surrogate or number > 0x10FFFF else chr(number)

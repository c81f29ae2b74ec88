"""Threads that run event loops: finds the boundary on a stack between the frames that run the loop and the frames that
the loop runs."""

from __future__ import annotations

import asyncio
from asyncio import base_events, runners
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from rlinf_async._inspection.code_frames import Code, called_by, code_of
from rlinf_async._inspection.own_tasks import is_inherited
from rlinf_async._waits import slow_waits

_EVENTS: Final = str(base_events.__file__)
_RUNNERS: Final = str(runners.__file__)

_RUN: Final = ("run_until_complete", "run_forever")  # methods of loops; uvloop's have no Python frames


@dataclass(frozen=True)
class Occupied:
    """A thread and the event loop that it runs, if any.

    Attributes:
        main: task whose end stops the loop, if known.
        task: the loop's running task, if any.
        outer, inner: frames that run the loop, and frames that the loop runs, outermost first. If there is no loop, all
            frames are ``inner``.
    """

    ident: int
    loop: asyncio.AbstractEventLoop | None
    main: asyncio.Task[Any] | None
    task: asyncio.Task[Any] | None
    outer: Sequence[FrameType]
    inner: Sequence[FrameType]


def occupied_by(ident: int, frames: Sequence[FrameType]) -> Occupied:
    loop: asyncio.AbstractEventLoop | None = None
    main, cut = None, 0
    for place, frame in enumerate(frames):
        code = frame.f_code
        if code.co_filename == _EVENTS and code.co_name in (*_RUN, "_run_once"):
            loop = frame.f_locals["self"]
            main = frame.f_locals.get("future", main)
            cut = place + 1
        elif code.co_filename == _RUNNERS and code.co_name == "run" and "task" in frame.f_locals:
            loop, main = frame.f_locals["self"].get_loop(), frame.f_locals["task"]
            cut = place + 1
        elif _calls_loop(frame) and (known := _loop_of(ident)) is not None:
            loop, main, cut = known, None, place + 1
    if loop is None:
        return Occupied(ident, None, None, None, [], frames)
    current = asyncio.current_task(loop)
    if current is not None:
        root = getattr(current.get_coro(), "cr_frame", None)
        cut = next((place for place, frame in enumerate(frames) if frame is root), cut)
        # The fork happened during a step of the task, so the code called in that step continues, but the loop does not.
        if is_inherited(current):
            return Occupied(ident, None, None, None, [], frames[cut:])
    return Occupied(ident, loop, main if isinstance(main, asyncio.Task) else None, current, frames[:cut], frames[cut:])


def turn_age(where: Occupied) -> float | None:
    """Return the seconds since the loop's current turn began; None if frames do not show this, as with uvloop."""
    turn = next((frame for frame in where.outer if frame.f_code.co_name == "_run_once"), None)
    # ``end_time`` is the loop's time just before it runs the ready callbacks.
    began = None if turn is None else turn.f_locals.get("end_time")
    return max(0.0, where.loop.time() - began) if where.loop is not None and isinstance(began, float) else None


def _calls_loop(frame: FrameType) -> bool:
    code = frame.f_code
    is_users = code_of(code.co_filename) is Code.USERS
    return is_users and any(name in code.co_names for name in _RUN) and called_by(frame) in _RUN


def _loop_of(ident: int) -> asyncio.AbstractEventLoop | None:
    return next((loop for loop, thread in slow_waits.loops() if thread == ident and loop.is_running()), None)

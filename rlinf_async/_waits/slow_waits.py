"""Tables of the waits of tasks and threads, with ``snapshot``, the blocking ``wait_on``, and warnings about slow waits.

There are two kinds of tables: tasks register in their loop's table (``LoopWaits``, with one timer), threads in a common
table, after a short delay. A row has the awaited object and the start of the wait, and costs two dict operations;
waiter, line and the peer's activity are computed on request::

    waits.snapshot()        # [WaitRecord(kind="call", what="rollout.step() on 4 ranks", line="t.py:12 in main()")]

A long wait is logged as a warning at each of three times (``settings.WAIT_WARNING_S`` and the two after it).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rlinf_async import settings
from rlinf_async._core import clock
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.wait_table import FOREVER, WaitTable
from rlinf_async._inspection.state.run_report import Target
from rlinf_async._recorder import recording
from rlinf_async._recorder.state.event_ring import EventKind
from rlinf_async._waits import loop_watch, unobserved_errors
from rlinf_async._waits.thread_gate import Gate
from rlinf_async._waits.user_code import Waiter, waiter_for, waiter_in_thread

logger = own_logger(__name__)

# Seconds after which a waiting thread registers in the table, so that calls answered earlier cost nothing.
REGISTER_AFTER_S: Final = 0.25


# Fraction of the first warning time by which warnings are delayed, so that one warning covers waits that began at about
# the same time.
_MARK_SLACK_FRACTION: Final = 0.02


Needs = tuple[list[Target], bool]  # actions that end a wait; True if all are needed, False if one suffices


class Waitable(Protocol):
    """The part of an awaited ``Work`` that warnings about its waits need."""

    _kind: str

    def done(self) -> bool: ...

    def _describe(self) -> str: ...

    def _whom(self) -> str: ...

    def _peer_activity(self) -> PeerActivity | None: ...

    def _needs(self) -> Needs: ...

    def _time_left(self) -> float | None: ...

    def _user_loop(self) -> asyncio.AbstractEventLoop | None: ...


class PeerActivity(Protocol):
    """A ``Work`` that resolves to a description of the peer's activity, as reported by its daemons."""

    def done(self) -> bool: ...

    def _follow(self, callback: Callable[[], None]) -> None: ...

    def _result(self) -> Any: ...


@dataclass(frozen=True)
class WaitRecord:
    """A row of the tables, as plain data; ``since`` is in seconds of the monotonic clock.

    Attributes:
        kind: ``call``, ``send``, ``recv``, ``put``, ``get``, ``lock``, ``request``, ``task``, ...
        whom: processes that must act; empty if unknown.
        owner: the waiting task or thread.
        line: line of the user's code; None if only the framework waits.
    """

    kind: str
    what: str
    whom: str
    since: float
    owner: str
    line: str | None


def snapshot() -> list[WaitRecord]:
    """Return all waits of this process, oldest first. Any thread may call this."""
    rows = [row for loop in _all_loops() for row in loop.read()]
    for (ident, _), (work, since) in list(_threads.rows.copy().items()):  # type: ignore[misc]
        rows.append((work, since, waiter_in_thread(ident)))  # type: ignore[has-type]
    found = [
        WaitRecord(work._kind, work._describe(), work._whom(), since, waiter.name, waiter.line)
        for work, since, waiter in rows
    ]
    return sorted(found, key=lambda wait: wait.since)


@dataclass(frozen=True)
class Row:
    """A row in the tables; ``until`` is the monotonic time at which the wait times out, or ``FOREVER``."""

    work: Waitable
    since: float
    until: float = FOREVER


def row_of(future: asyncio.Future[Any]) -> Row | None:
    """Return the row of the task that awaits a future; None if there is no such row. Any thread may call this."""
    found = next((row for loop in _all_loops() if (row := loop.rows.get(future)) is not None), None)
    return None if found is None else Row(*found)


def rows_of_threads() -> dict[int, Row]:
    """Return a dict that maps each waiting thread's id to its row; for nested waits, to the innermost one."""
    found: dict[int, Row] = {}
    for key, (work, since) in list(_threads.rows.copy().items()):
        ident: int = key[0]  # type: ignore[index]
        found[ident] = Row(work, since, _until.get(key, FOREVER))
    return found


def loops() -> list[tuple[asyncio.AbstractEventLoop, int]]:
    return [(waits.loop, waits.thread) for waits in _all_loops()]


def marks() -> list[float]:
    return sorted(
        setting() for setting in (settings.WAIT_WARNING_S, settings.WAIT_WARNING_2_S, settings.WAIT_WARNING_3_S)
    )


class LoopWaits:
    """The table of the waits of one loop's tasks; all methods except ``read`` run on that loop.

    Attributes:
        thread: id of the thread that runs the loop.
        rows: maps the future for which a task waits to its work and the start of the wait.
        armed: true if the timer is set or not needed.
    """

    __slots__ = ("__weakref__", "_table", "armed", "loop", "rows", "thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = threading.get_ident()
        self._table = WaitTable()
        self.rows = self._table.rows
        self.armed = False
        with _lock:
            _loops.add(self)

    def __repr__(self) -> str:
        return f"<LoopWaits [{len(self.rows)} wait]>"

    def arm(self) -> None:
        self.armed = True
        self.loop.call_later(marks()[0] * (1 + _MARK_SLACK_FRACTION), self._look)

    def read(self) -> list[tuple[Any, float, Waiter]]:
        return [(work, since, waiter_for(future)) for future, (work, since) in list(self.rows.copy().items())]  # type: ignore[arg-type]

    def clear(self) -> None:
        self._table.clear()

    def _look(self) -> None:
        self.armed = False
        times = marks()
        now = clock.monotonic()
        due = self._table.due(now, times)
        try:
            rows = []
            for future, work, since, passed in due:
                waiter = waiter_for(future)  # type: ignore[arg-type]
                if self._table.count_warning(future, _place(work, waiter), passed, len(times)) and not waiter.internal:
                    rows.append((work, since, waiter))
            warn(rows, now)
        finally:
            if self.rows:
                # Wake up no later than the first warning about a wait that begins now, so that such a wait need not set
                # the timer.
                then = min(self._table.next_due(times), now + times[0])
                self.armed = True
                self.loop.call_later(max(0.0, then - clock.monotonic()) + times[0] * _MARK_SLACK_FRACTION, self._look)


def wait_on(work: Waitable, gate: Gate, timeout: float | None) -> bool:
    """Continue this thread's wait, which has lasted ``REGISTER_AFTER_S``. Return False once ``timeout`` has passed.

    Raises:
        LoopNotRunning: the wait needs a user's loop that is not running.
    """
    watch = loop_watch.watch(work, None) if loop_watch.is_needed else None
    since = clock.monotonic() - REGISTER_AFTER_S
    until = FOREVER if timeout is None else since + timeout
    ident = threading.get_ident()
    key = (ident, gate)
    passed, times = 0, marks()
    try:
        _until[key] = until
        _threads.rows[key] = (work, since)
        while True:
            warning_at = since + times[passed] if passed < len(times) else FOREVER
            left = min(until, warning_at, FOREVER if watch is None else watch.due) - clock.monotonic()
            if gate.wait(min(max(0.0, left), threading.TIMEOUT_MAX)):
                return True
            now = clock.monotonic()
            if now >= until:
                return False
            if watch is not None and now >= watch.due:
                watch.check()
            if now >= warning_at:
                passed = sum(now - since >= mark for mark in times)
                waiter = waiter_in_thread(ident)
                if _threads.count_warning(key, _place(work, waiter), passed, len(times)):
                    warn([(work, since, waiter)], now)
    finally:
        _threads.rows.pop(key, None)
        _until.pop(key, None)
        _threads.learn()


def _place(work: Waitable, waiter: Waiter) -> tuple[str, str] | None:
    """Return the line and the kind of a wait; waits that share both usually take about equally long."""
    return None if waiter.line is None else (waiter.line, work._kind)


def warn(rows: Iterable[tuple[Waitable, float, Waiter]], now: float) -> None:
    """Log one warning for all waits for the same event at the same line."""
    alike: dict[tuple[str, str], list[tuple[Waitable, float, Waiter]]] = {}
    for work, since, waiter in rows:
        alike.setdefault((work._describe(), waiter.line or waiter.name), []).append((work, since, waiter))
    for same in alike.values():
        try:
            _warn_once(same, now)
        except Exception:  # a failed warning must not end the user's wait
            logger.exception("no word could be said about %d waits", len(same))
    # The copy is atomic: a thread that adds a listener would end the loop, and with it the user's wait.
    for reference in _listeners.keyrefs() if alike else ():
        try:
            if (listener := reference()) is not None:
                listener._on_long_wait()
        except Exception:
            logger.exception("nothing more could be said about a wait")


class LongWaitListener(Protocol):
    def _on_long_wait(self) -> None:
        """React to logged warnings, on the thread that logs them. An exception is logged and does not end the wait."""


def add_listener(listener: LongWaitListener) -> None:
    _listeners[listener] = None


def duration_since(since: float, now: float) -> str:
    """Return ``61 s (since 14:02:11)`` for two readings of the monotonic clock."""
    clock = time.strftime("%H:%M:%S", time.localtime(time.time() - (now - since)))
    return f"{now - since:.0f} s (since {clock})"


def _warn_once(same: Sequence[tuple[Waitable, float, Waiter]], now: float) -> None:
    work, since, waiter = same[0]
    others = f", and so do {len(same) - 1} others there" if len(same) > 1 else ""
    place = f"{waiter.line or waiter.name}{others}"
    text = f"still waiting after {duration_since(since, now)} for {work._describe()}, at {place}"

    def log(words: str) -> None:
        if not all(work.done() for work, *_ in same):  # the waits may have ended in the meantime
            _log(text, words)

    with_peer_activity(work, log)


def with_peer_activity(work: Waitable, then: Callable[[str], None]) -> None:
    """Call ``then`` with the daemons' description of the peer, or with an empty text if none arrives."""
    peer_activity = work._peer_activity()
    if peer_activity is None:
        then("")
    else:
        peer_activity._follow(lambda: then(_text_of(peer_activity)))


def _text_of(peer_activity: PeerActivity) -> str:
    try:
        return str(peer_activity._result())
    except Exception as error:
        return f"the other side cannot be asked: {error}"


def _log(text: str, peer_activity: str) -> None:
    recording.point(EventKind.WORD, text)
    logger.warning("%s%s%s", text, f": {peer_activity}" if peer_activity else "", unobserved_errors.warning_suffix())


def work_on(future: asyncio.Future[Any]) -> Any:
    """Return the ``Work`` behind a future; None if there is none."""
    row = row_of(future)
    return None if row is None else row.work


def _all_loops() -> list[LoopWaits]:
    with _lock:
        return list(_loops)


def _forget() -> None:
    """Reset the tables in a forked child, because the waits and their threads belong to the parent."""
    # Replace the lock instead of taking it, because a thread of the parent, missing here, may have held it at the fork.
    global _lock
    _lock = threading.Lock()
    _threads.clear()
    _until.clear()
    for loop in list(_loops):
        loop.clear()


_lock = threading.Lock()
_listeners: weakref.WeakKeyDictionary[LongWaitListener, None] = weakref.WeakKeyDictionary()
_loops: weakref.WeakSet[LoopWaits] = weakref.WeakSet()
_threads = WaitTable()
_until: dict[Hashable, float] = {}  # maps the key of a thread's row to the time at which its wait times out
os.register_at_fork(after_in_child=_forget)

"""Tables of what tasks and threads wait for: ``snapshot``, blocking ``wait_on``, and warnings about slow waits.

Two tables for all: tasks wait in their loop's (``LoopWaits``, with one timer), threads in one of their own, in which
they enter themselves once they have waited for a moment.  A row is what waits and since when, and costs two operations
of a dict; who waits, at which line, for whom and what those do is found out when it is asked for::

    waits.snapshot()        # [Wait(kind="call", what="rollout.step() on 4 ranks, ...", line="train.py:12 in main()")]

A word is a warning in the log after each of three times (``settings.WAIT_WARNING_S`` and the two after it).
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

REGISTER_AFTER_S: Final = 0.25
"""Seconds for which a thread waits before it enters itself into the table: a call that is answered costs nothing."""


_MARK_SLACK_FRACTION: Final = 0.02
"""Part of the first mark by which words come later, so that what began to wait soon after another is told with it."""


Needs = tuple[list[Target], bool]
"""Who has to act for a wait to end, and whether all of them have to, or one is enough."""


class Waitable(Protocol):
    """What is waited for: a ``Work``."""

    _kind: str

    def done(self) -> bool: ...

    def _describe(self) -> str: ...

    def _whom(self) -> str: ...

    def _peer_activity(self) -> PeerActivity | None: ...

    def _needs(self) -> Needs: ...

    def _time_left(self) -> float | None: ...

    def _user_loop(self) -> asyncio.AbstractEventLoop | None: ...


class PeerActivity(Protocol):
    """What the other side does, as its daemons tell: a ``Work`` of words."""

    def done(self) -> bool: ...

    def _follow(self, callback: Callable[[], None]) -> None: ...

    def _result(self) -> Any: ...


@dataclass(frozen=True)
class Wait:
    """One row of the tables, as data.

    Attributes:
        kind: ``call``, ``send``, ``recv``, ``put``, ``get``, ``lock``, ``request``, ``task``, ...
        what: what is waited for, in words.
        whom: who has to do something; empty where that is not known.
        since: seconds of the monotonic clock.
        owner: the task or thread that waits.
        line: of the user's code; None where only the framework waits.
    """

    kind: str
    what: str
    whom: str
    since: float
    owner: str
    line: str | None


def snapshot() -> list[Wait]:
    """Everything that waits in this process, the oldest first.  From any thread."""
    rows = [row for loop in _all_loops() for row in loop.read()]
    for (ident, _), (work, since) in list(_threads.rows.copy().items()):  # type: ignore[misc]
        rows.append((work, since, waiter_in_thread(ident)))  # type: ignore[has-type]
    found = [
        Wait(work._kind, work._describe(), work._whom(), since, waiter.name, waiter.line)
        for work, since, waiter in rows
    ]
    return sorted(found, key=lambda wait: wait.since)


@dataclass(frozen=True)
class Row:
    """A row of the tables as it is.

    Attributes:
        until: when the wait itself gives up, by the monotonic clock; ``FOREVER`` if it does not.
    """

    work: Waitable
    since: float
    until: float = FOREVER


def row_of(future: asyncio.Future[Any]) -> Row | None:
    """The row of the task that awaits a future; None where that is no wait of the tables.  From any thread."""
    found = next((row for loop in _all_loops() if (row := loop.rows.get(future)) is not None), None)
    return None if found is None else Row(*found)


def rows_of_threads() -> dict[int, Row]:
    """The rows of threads, by their ids; one that waits inside of another wait has the innermost one."""
    found: dict[int, Row] = {}
    for key, (work, since) in list(_threads.rows.copy().items()):
        ident: int = key[0]  # type: ignore[index]
        found[ident] = Row(work, since, _until.get(key, FOREVER))
    return found


def loops() -> list[tuple[asyncio.AbstractEventLoop, int]]:
    """The loops on which anything has been waited for, with the thread in which that was."""
    return [(waits.loop, waits.thread) for waits in _all_loops()]


def marks() -> list[float]:
    """Seconds after which words are said, ascending."""
    return sorted(
        setting() for setting in (settings.WAIT_WARNING_S, settings.WAIT_WARNING_2_S, settings.WAIT_WARNING_3_S)
    )


class LoopWaits:
    """What the tasks of one loop wait for; all calls but ``read`` are made there.

    Attributes:
        loop: whose tasks they are.
        thread: the id of the one that runs it.
        rows: by the future on which a task waits: the work and since when.
        armed: the timer runs, or need not.
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
        """Something waits, and the timer does not run."""
        self.armed = True
        self.loop.call_later(marks()[0] * (1 + _MARK_SLACK_FRACTION), self._look)

    def read(self) -> list[tuple[Any, float, Waiter]]:
        """Each work, since when it is waited for, and who waits."""
        return [(work, since, waiter_for(future)) for future, (work, since) in list(self.rows.copy().items())]  # type: ignore[arg-type]

    def clear(self) -> None:
        self._table.clear()

    def _look(self) -> None:
        self.armed = False
        times = marks()
        now = clock.monotonic()
        due = self._table.due(now, times)
        try:
            words = []
            for future, work, since, passed in due:
                waiter = waiter_for(future)  # type: ignore[arg-type]
                if self._table.count_warning(future, _place(work, waiter), passed, len(times)) and not waiter.internal:
                    words.append((work, since, waiter))
            say(words, now)
        finally:
            if self.rows:
                # Not later than the first word on what begins right now: until then that need not set the timer.
                then = min(self._table.next_due(times), now + times[0])
                self.armed = True
                self.loop.call_later(max(0.0, then - clock.monotonic()) + times[0] * _MARK_SLACK_FRACTION, self._look)


def wait_on(work: Waitable, gate: Gate, timeout: float | None) -> bool:
    """Goes on waiting in this thread, after ``REGISTER_AFTER_S`` seconds; False once ``timeout`` has passed.

    Raises:
        LoopNotRunning: the user's loop that has to turn for it stands still.
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
            word_at = since + times[passed] if passed < len(times) else FOREVER
            left = min(until, word_at, FOREVER if watch is None else watch.due) - clock.monotonic()
            if gate.wait(min(max(0.0, left), threading.TIMEOUT_MAX)):
                return True
            now = clock.monotonic()
            if now >= until:
                return False
            if watch is not None and now >= watch.due:
                watch.check()
            if now >= word_at:
                passed = sum(now - since >= mark for mark in times)
                waiter = waiter_in_thread(ident)
                if _threads.count_warning(
                    key, _place(work, waiter), passed, len(times)
                ):  # whose, also if it runs our code only
                    say([(work, since, waiter)], now)
    finally:
        _threads.rows.pop(key, None)
        _until.pop(key, None)
        _threads.learn()


def _place(work: Waitable, waiter: Waiter) -> tuple[str, str] | None:
    """What waits have in common that usually take equally long."""
    return None if waiter.line is None else (waiter.line, work._kind)


def say(rows: Iterable[tuple[Waitable, float, Waiter]], now: float) -> None:
    """One word for all that wait for the same at the same line."""
    alike: dict[tuple[str, str], list[tuple[Waitable, float, Waiter]]] = {}
    for work, since, waiter in rows:
        alike.setdefault((work._describe(), waiter.line or waiter.name), []).append((work, since, waiter))
    for same in alike.values():
        try:
            _say_one(same, now)
        except Exception:  # the user's wait must not end of a word about it
            logger.exception("no word could be said about %d waits", len(same))
    for listener in list(_after_words) if alike else ():
        try:
            listener._on_word()
        except Exception:
            logger.exception("nothing more could be said about a wait")


class Listener(Protocol):
    """An object that acts on words about long waits."""

    def _on_word(self) -> None:
        """After words were said, in the thread that says them; what it raises is logged, and ends no wait."""


def after_words(listener: Listener) -> None:
    """Tells an object of words about long waits, as long as it lives."""
    _after_words.add(listener)


def told_since(since: float, now: float) -> str:
    """``61 s (since 14:02:11)``, of two readings of the monotonic clock."""
    clock = time.strftime("%H:%M:%S", time.localtime(time.time() - (now - since)))
    return f"{now - since:.0f} s (since {clock})"


def _say_one(same: Sequence[tuple[Waitable, float, Waiter]], now: float) -> None:
    work, since, waiter = same[0]
    others = f", and so do {len(same) - 1} others there" if len(same) > 1 else ""
    text = (
        f"still waiting after {told_since(since, now)} for {work._describe()}, at {waiter.line or waiter.name}{others}"
    )

    def log(words: str) -> None:
        if not all(work.done() for work, *_ in same):  # or it would be told of waits that are over
            _log(text, words)

    with_words(work, log)


def with_words(work: Waitable, then: Callable[[str], None]) -> None:
    """Call ``then`` once daemons have said what those do for whom a work waits; with no words where nobody can say."""
    peer_activity = work._peer_activity()
    if peer_activity is None:
        then("")
    else:
        peer_activity._follow(lambda: then(_words_of(peer_activity)))


def _words_of(peer_activity: PeerActivity) -> str:
    try:
        return str(peer_activity._result())
    except Exception as error:
        return f"the other side cannot be asked: {error}"


def _log(text: str, peer_activity: str) -> None:
    recording.point(EventKind.WORD, text)
    logger.warning("%s%s%s", text, f": {peer_activity}" if peer_activity else "", unobserved_errors.word())


def work_on(future: asyncio.Future[Any]) -> Any:
    """The work whose end a future is for; None where it is for something else."""
    row = row_of(future)
    return None if row is None else row.work


def _all_loops() -> list[LoopWaits]:
    with _lock:
        return list(_loops)


def _forget() -> None:
    """In a forked child: what waits is the parent's, and its threads are not there."""
    # The lock is made anew, not taken: another thread of the parent may have held it at the fork, and is not here to
    # release it.
    global _lock
    _lock = threading.Lock()
    _threads.clear()
    _until.clear()
    for loop in list(_loops):
        loop.clear()


_lock = threading.Lock()
_after_words: weakref.WeakSet[Listener] = weakref.WeakSet()
_loops: weakref.WeakSet[LoopWaits] = weakref.WeakSet()
_threads = WaitTable()
_until: dict[Hashable, float] = {}
"""By the key of a thread's row, when the wait gives up."""
os.register_at_fork(after_in_child=_forget)

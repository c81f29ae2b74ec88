"""The debugger of a worker: ``breakpoint()`` waits for an operator, and an operator may stop a running rank.

The standard library's pdb runs on the stopped thread; an operator's input reaches it through the daemons::

    rlinf-ctl ── DebugRank(line) ──► daemon ── "debug" ──► the thread that reads sockets ── queue ──► pdb
              ◄── "debug" ────────── daemon ◄── DebugSaid(text) ───────────────────────────────────── pdb

While the main thread waits at a prompt, the socket thread reads. So the main thread must not stop while it holds one of
the framework's locks: the signal enters pdb only in user code and in known waits, and is repeated otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pdb
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._client.client import NodeClient
from rlinf_async._core import operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async._inspection.code_frames import Code, code_of, frames_from, line_of
from rlinf_async._inspection.served_calls import ServedCall
from rlinf_async._waits.thread_gate import may_wait
from rlinf_async._waits.user_code import frames_of

logger = own_logger(__name__)

SIGNAL: Final = signal.SIGRTMAX - 4  # makes a worker's main thread check whether to stop

_SKIPPED: Final = (
    "rlinf_async*",
    "asyncio*",
    "selectors",
    "threading",
    "queue",
    "logging*",
    "contextlib",
    "concurrent.*",
)

# Modules of the standard library in which a waiting thread holds no lock that a reader needs.
_WAITS: Final = frozenset(
    ("threading", "queue", "selectors", "socket", "ssl", "subprocess", "concurrent.futures._base")
)

_GATES: Final = frozenset(
    (("rlinf_async._waits.thread_gate", "wait"), ("rlinf_async._wire.reading.idle_reader", "read_for"))
)

# Delay before the signal is resent to a main thread that has not stopped; doubled each time.
_AGAIN_S: Final = 0.02

_MOST_AGAIN_S: Final = 1.0

# Number of signals that may reach the main thread inside the framework; after that, it is stopped at its next line of
# user code.
_MOST_TRIES: Final = 20

# Seconds after which a thread that has not stopped is reported to be in a C call.
_C_CALL_S: Final = 1.0

_MAX_SHOWN_CHARS: Final = 1 << 18

# A rank that stops again within this time is being stepped, and is not reported as resumed.
_RESUMED_S: Final = 0.2


class Debugger:
    """The debugger of one worker process; ``loop`` is the main thread's loop."""

    def __init__(
        self,
        client: NodeClient,
        name: str,
        loop: asyncio.AbstractEventLoop,
        calls: Callable[[], Iterable[ServedCall]],
    ) -> None:
        self._client = client
        self._name = name
        self._loop = loop
        self._calls = calls
        self._main = threading.get_ident()
        self._pid = os.getpid()
        self._turn = threading.Lock()  # held by the thread at the prompt
        self._at_prompt = 0  # that thread
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._per_thread = threading.local()
        self._operator = 0
        self._is_ending = False
        self._stopped_at = ""
        self._last = ""
        self._reported = ""
        self._limit: float | None = None
        self._is_wanted = False
        self._tries = 0

    def __repr__(self) -> str:
        state = f"at {self._stopped_at}" if self._stopped_at else "running"
        return f"<Debugger of {self._name} [{state}, {'attached' if self._operator else 'not attached'}]>"

    @property
    def is_attached(self) -> bool:
        return self._operator != 0

    def install(self) -> None:
        """Let ``breakpoint()`` and operators stop this process. Call this on the main thread."""
        sys.breakpointhook = self._breakpoint
        signal.signal(SIGNAL, self._on_signal)
        self._client.events.on("debug", self._on_event)

    def end(self) -> None:
        """Release a thread that waits at the prompt, because this process will exit. Any thread may call this."""
        self._is_ending = True
        self._leave()

    # -- operators' requests, while handling frames ------------------------------------------------------------------

    def _on_event(self, facts: dict[str, Any]) -> None:
        source, what = facts["operator"], facts["what"]
        if what == "attach":
            if self._operator not in (0, source):
                self._send(source, "refused", f"{self._name} is being debugged by another operator\n")
                return
            self._operator = source
            if self._stopped_at:
                self._send(source, "stopped", self._last)
            else:
                self._is_wanted, self._tries = True, 0
                # Interrupt from another thread: the main thread may be running this handler.
                self._client.later(0, self._interrupt)
                self._client.later(_C_CALL_S, self._report_c_call)
        elif source == self._operator:
            if what == "line" and self._stopped_at:
                self._lines.put(facts["line"] + "\n")
            elif what == "detach":
                self._leave()

    def _leave(self) -> None:
        self._operator, self._is_wanted = 0, False
        if self._stopped_at:
            self._lines.put("")

    def _send(self, operator: int, state: str, text: str) -> None:
        if operator:
            self._client.request(operations.DebugSaid(operator, state, text))
            # Flush now, because a thread that waits at the prompt does not return to its loop.
            self._client.flush()

    # -- stopping ----------------------------------------------------------------------------------------------------

    def _breakpoint(self, *args: Any, **kwargs: Any) -> Any:
        if os.environ.get("PYTHONBREAKPOINT") or os.getpid() != self._pid:
            return sys.__breakpointhook__(*args, **kwargs)
        frame = sys._getframe(1)
        # A command at the prompt may call a function with a breakpoint, which would wait for this thread's own turn.
        if not self._is_ending and self._at_prompt != threading.get_ident():
            self._pdb().stop(frame, frame, waits=True)
        return None

    def post_mortem(self, error: BaseException) -> None:
        """Keep the frames of a method's error for ``POST_MORTEM_S`` seconds, so that an operator can inspect them."""
        seconds = settings.POST_MORTEM_S()
        traceback = error.__traceback__
        while traceback is not None and not _is_users(traceback.tb_frame):
            traceback = traceback.tb_next
        if not seconds or traceback is None or self._is_ending or isinstance(error, asyncio.CancelledError):
            return
        try:
            self._pdb().look_at(traceback, f"{type(error).__name__}: {error}".partition("\n")[0], seconds)
        # A command, or the error's ``str()``, may fail, but the caller still waits for the answer.
        except Exception:
            logger.exception("the debugger of %s has failed", self._name)

    def _interrupt(self, again: float = _AGAIN_S) -> None:
        """Send signals until the main thread stops; runs on the socket thread."""
        # Repeat the signal: a signal that arrives just before a system call does not interrupt that call, so the thread
        # might wait forever. tests/test_debugging.py::test_every_rank_of_a_deadlock_stops
        if self._is_wanted:
            signal.pthread_kill(self._main, SIGNAL)
            self._client.later(again, lambda: self._interrupt(min(2 * again, _MOST_AGAIN_S)))

    def _report_c_call(self) -> None:
        frame = sys._current_frames().get(self._main)
        if self._is_wanted:
            where = line_of(frames_from(frame)) or "a line that is not known"
            self._send(
                self._operator, "waiting", f"{self._name} is inside a C call at {where}: it enters when it returns\n"
            )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._is_wanted or self._is_ending or frame is None:
            return
        users = _users_frame(frame)
        if users is None:
            self._loop.call_soon_threadsafe(self._enter_between)
        elif _may_stop(frame, users):
            self._pdb().stop(frame, users)
        elif _is_in_framework(frame, users) and self._tries < _MOST_TRIES:
            self._tries += 1
        else:
            self._arm(frame)

    def _enter_between(self) -> None:
        """Stop in a suspended coroutine of a call, or at the first line of the next call. Runs on the main loop."""
        if not self._is_wanted:
            return
        for call in self._calls():
            if call.task is not None and not call.task.done() and (frames := list(frames_of(call.task))):
                users = [frame for frame in frames if code_of(frame.f_code.co_filename) is Code.USERS]
                if users:
                    self._pdb().stop(sys._getframe(), users[-1], users)
                    return
        self._arm(sys._getframe())
        self._send(self._operator, "waiting", f"{self._name} is idle: it stops at the first line of its next call\n")

    def _arm(self, frame: FrameType) -> None:
        self._is_wanted = False
        self._pdb().arm(frame)

    def _pdb(self) -> _Pdb:
        found: _Pdb | None = getattr(self._per_thread, "pdb", None)
        if found is None:
            found = self._per_thread.pdb = _Pdb(self)
        return found

    # -- at the prompt, on the stopped thread -------------------------------------------------------------------------

    def stopped(
        self, frame: FrameType, line: int, why: str, limit: float | None, talk: Callable[[], None], *, waits: bool
    ) -> None:
        """Run a pdb session; other threads that stop during the session wait for its lock."""
        with self._in_turn():
            if self._is_ending:
                return
            self._limit = limit
            while not self._lines.empty():
                self._lines.get()
            self._stopped_at = f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}(){why}"
            self._is_wanted = False
            # The operator may have left before ``_leave`` could see this stop. Only ``breakpoint()`` and a post mortem
            # wait for one to come.
            if waits or self.is_attached:
                self._report_stop(self._stopped_at)
                talk()

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        try:
            with self._turn:
                self._at_prompt = threading.get_ident()
                try:
                    yield
                finally:
                    self._stopped_at, self._at_prompt = "", 0
        finally:  # every turn is followed by a report, which a turn that has begun meanwhile leaves to its own end
            self._client.later(_RESUMED_S, self._report_resumed)

    def read_line(self, text: str) -> str:
        """Send pdb's output, and return the operator's next line, which is empty once the operator has left."""
        self._last = text
        self._send(self._operator, "stopped", text)
        while not self._is_ending:
            with contextlib.suppress(queue.Empty):
                return self._lines.get(timeout=self._limit)
            if not self._operator:
                logger.warning("no debugger has come within %g s, and the error is told", self._limit)
                break
        return ""

    def _report_resumed(self) -> None:
        # Only in a turn: a thread that stops at this moment would be reported first, and then as resumed.
        if self._reported and self._turn.acquire(blocking=False):
            try:
                self._report_stop("")
            finally:
                self._turn.release()

    def _report_stop(self, where: str) -> None:
        self._reported = where
        self._client.request(operations.RankStopped(self._client.endpoint, self._name, where, self.is_attached))
        self._client.flush()


class _PromptStreams:
    encoding = "utf-8"

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._text: list[str] = []

    def write(self, text: str) -> int:
        self._text.append(text)
        return len(text)

    def flush(self) -> None:
        pass

    def readline(self) -> str:
        text, self._text = "".join(self._text).removesuffix(_Pdb.prompt), []
        if (left_out := len(text) - _MAX_SHOWN_CHARS) > 0:  # a frame holds 8 MiB
            text = f"{text[:_MAX_SHOWN_CHARS]}\n… {left_out} characters are left out\n"
        return self._debugger.read_line(text)


class _Pdb(pdb.Pdb):
    prompt = "(Pdb) "

    def __init__(self, debugger: Debugger) -> None:
        wire: Any = _PromptStreams(debugger)
        super().__init__(stdin=wire, stdout=wire, nosigint=True, readrc=False, skip=_SKIPPED)
        self.prompt = _Pdb.prompt
        self._debugger = debugger
        self._suspended: Sequence[FrameType] = ()
        self._error = ""
        self._limit: float | None = None
        self._waits = False
        self.is_armed = False

    def stop(
        self, innermost: FrameType, users: FrameType, suspended: Sequence[FrameType] = (), *, waits: bool = False
    ) -> None:
        """Open the prompt at a user's frame.

        Args:
            innermost: innermost frame of this thread; this frame and its callers will be traced.
            suspended: frames of a suspended coroutine, outermost first, to be shown at the prompt instead.
        """
        # Stop tracing first: pdb would open a prompt in its own code.
        sys.settrace(None)
        self._mark(innermost)
        self._suspended, self._waits = suspended, waits
        self.interaction(users, None)
        # The user has set a breakpoint or is stepping.
        if self.breaks or self.stopframe is not self.botframe or self.stoplineno != -1:
            sys.settrace(self.trace_dispatch)

    def look_at(self, traceback: TracebackType, error: str, limit: float) -> None:
        """Open a post-mortem prompt, which waits ``limit`` seconds for an operator."""
        self.reset()
        self._error, self._limit = error, limit
        self.message(error)
        try:
            self.interaction(None, traceback)
        finally:
            self._error, self._limit = "", None

    def arm(self, innermost: FrameType) -> None:
        self.is_armed = True
        self._mark(innermost)
        self.set_step()
        sys.settrace(self.trace_dispatch)

    def _mark(self, innermost: FrameType) -> None:
        self.reset()
        for frame in frames_from(innermost):
            frame.f_trace = self.trace_dispatch
        self.botframe = frames_from(innermost)[0]

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not self._debugger.is_attached:  # the operator has left
            self.is_armed = False
            self._go_on()
            return None
        return super().trace_dispatch(frame, event, arg)

    def stop_here(self, frame: FrameType) -> bool:
        if self.is_armed and code_of(frame.f_code.co_filename) is not Code.USERS:
            return False
        return bool(super().stop_here(frame))

    def interaction(self, frame: FrameType | None, traceback: Any) -> None:
        self.is_armed = False
        if frame is not None:
            where, line = frame, frame.f_lineno
        else:
            last = traceback
            while last.tb_next is not None:
                last = last.tb_next
            where, line = last.tb_frame, last.tb_lineno
        why = f" ({self._error})" if self._error else ""
        talk = functools.partial(super().interaction, frame, traceback)
        waits, self._waits = self._waits or traceback is not None, False
        self._debugger.stopped(where, line, why, self._limit, talk, waits=waits)
        self._suspended = ()

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        if self._suspended:
            return [(frame, frame.f_lineno) for frame in self._suspended], len(self._suspended) - 1
        stack, index = super().get_stack(f, t)
        # Hide the framework's frames below the user's.
        first = next((at for at, (frame, _) in enumerate(stack) if _is_users(frame)), 0)
        return stack[first:], index - first

    def set_quit(self) -> None:
        self._go_on()

    def do_quit(self, arg: str) -> bool:
        self._go_on()
        return True

    do_q = do_exit = do_EOF = do_quit  # noqa: N815  # pdb's own name

    def do_interact(self, arg: str) -> None:
        """Refuse the command, because a Python prompt would read from this process's own stdin."""
        self.error("`interact` is not there: its prompt would read from the rank's stdin, which is /dev/null")

    def do_run(self, arg: str) -> None:
        """Refuse the command, because only the group can start a rank."""
        self.error("a rank is not run anew from here: `rlinf-ctl restart` starts it again")

    do_restart = do_run

    def _go_on(self) -> None:
        self.clear_all_breaks()
        self.set_continue()


def _is_users(frame: FrameType) -> bool:
    return code_of(frame.f_code.co_filename) is Code.USERS


def _users_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not _is_users(frame):
        frame = frame.f_back
    return frame


def _may_stop(frame: FrameType, users: FrameType) -> bool:
    """True if a thread may stop at this frame: in the user's code, or in a wait started by user code."""
    module = frame.f_globals.get("__name__", "")
    if _is_in_framework(frame, users):
        return (module, frame.f_code.co_name) in _GATES and may_wait()
    return frame is users or module in _WAITS


def _is_in_framework(frame: FrameType, users: FrameType) -> bool:
    """True if the user's code has called the framework, which may hold a lock or be handling a frame."""
    calls = frames_from(frame)
    return any(each.f_globals.get("__name__", "").startswith("rlinf_async.") for each in calls[calls.index(users) :])

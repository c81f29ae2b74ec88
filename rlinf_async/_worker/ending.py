"""The orderly shutdown of a worker: open calls, ``on_close``, the worker object, exit functions. A watchdog limits its
time.

    daemon   STOP: grace ──► calls are cancelled ─ on_close() ─ the worker object is dropped ─ threads, exit functions
                             └ seconds_for_calls ┘              ─ __main__ is dropped ─ files are flushed ─ exit
                             └ grace: unfinished steps are logged with their stacks, and cut off ┘

The order is that of an interpreter's own shutdown, except that the last part is omitted: the teardown of modules, which
takes 0.2 s of CPU time with torch.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import faulthandler
import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Final

from rlinf_async._core.closing import seconds_for_calls, seconds_until_kill
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.process import flush_files
from rlinf_async._worker.concurrent_calls import ConcurrentCalls, all_ended
from rlinf_async._worker.methods import Methods

logger = own_logger(__name__)

_FRAMES: Final = 12

_STDERR: Final = 2


class Ending:
    """The shutdown of one worker, which begins with its daemon's STOP.

    Attributes:
        has_begun: true once the main thread has left the last ``def`` method.
        watch: callback that starts the watchdog with the grace period in seconds; a no-op in a simulation.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, methods: Methods, concurrent: ConcurrentCalls) -> None:
        self._loop = loop
        self._methods = methods
        self._concurrent = concurrent
        self._grace = 0.0
        self.has_begun = False
        self.watch: Callable[[float], None] = lambda grace: None

    def announce(self, grace: float) -> None:
        self._grace = grace
        self._concurrent.end()
        self.watch(grace)

    def run(self) -> None:
        """Cancel open calls, await their cleanup, call ``on_close``; runs on the main thread with its loop stopped."""
        self.has_begun = True
        self._complete(self._wind_down())
        if self._methods.worker is None:
            return
        try:
            result = self._methods.worker.on_close()
            if isinstance(result, Coroutine):
                self._complete(result)
        except BaseException:
            logger.exception("on_close() of %s failed", type(self._methods.worker).__name__)

    async def _wind_down(self) -> None:
        current = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not current]
        for task in tasks:
            # A second cancellation must not interrupt the cleanup started by a caller's cancellation.
            # tests/simulation/test_sim_cleanups.py
            if not task.cancelling():
                task.cancel()
        beside = [] if self._concurrent.ended is None else [asyncio.wrap_future(self._concurrent.ended)]
        await all_ended([*tasks, *beside], seconds_for_calls(self._grace))

    def _complete(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine to its end, even if other code stops the loop or raises an exception in it."""
        task = self._loop.create_task(coroutine)
        task.add_done_callback(lambda task: self._loop.stop())
        while not task.done():
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                logger.warning("%s in a background task of the worker is ignored", type(error).__name__)
        task.result()


def finish(methods: Methods) -> None:
    """Shut down as an interpreter does: close objects and files, join threads, run exit functions."""
    # Flush files even before their owners are dropped: in a reference cycle, the collector may close a file's lower
    # layer first, which would lose its buffer. Flush before the exit functions as well, because they may exceed the
    # grace. tests/test_ends.py::test_a_worker_ends_as_a_program_does
    for step in (
        flush_files,
        lambda: _drop_worker(methods),
        threading._shutdown,  # type: ignore[attr-defined]  # not public, and multiprocessing's children call it too
        atexit._run_exitfuncs,
        flush_files,
        _drop_main,
    ):
        try:
            step()
        except BaseException:
            traceback.print_exc()


def _drop_worker(methods: Methods) -> None:
    for ancestor in type(methods.drop()).__mro__:
        if "current_worker" in vars(ancestor):
            ancestor.current_worker = None  # type: ignore[attr-defined]
    gc.collect()


def _drop_main() -> None:
    for name in ("__main__", "__mp_main__"):
        sys.modules.pop(name, None)
    gc.collect()


class EndWatch:
    """A watchdog on the socket loop: logs the stacks and ends this process if an orderly shutdown takes too long."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ending: Ending, name: str) -> None:
        self._loop = loop
        self._ending = ending
        self._name = name

    def begin(self, grace: float) -> None:
        """Start the timers. Any thread may call this."""
        if grace:
            # The C timer of faulthandler also fires while another thread holds the GIL without running Python.
            faulthandler.dump_traceback_later((grace + seconds_until_kill(grace)) / 2, file=_STDERR)
            self._loop.call_soon_threadsafe(self._count, grace)

    def _count(self, grace: float) -> None:
        calls = seconds_for_calls(grace)
        self._loop.call_later(calls, self._cut_call, calls, grace)
        self._loop.call_later(grace, self._cut, grace, grace)

    def _cut_call(self, seconds: float, grace: float) -> None:
        if not self._ending.has_begun:
            self._cut(seconds, grace)

    def _cut(self, seconds: float, grace: float) -> None:
        frames = sys._current_frames()
        stacks = [
            f"  {thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident], _FRAMES))}"
            for thread in threading.enumerate()
            if thread.ident in frames and not thread.daemon
        ]
        text = (
            f"worker {self._name} is cut off at its end: {seconds:g} s after the close of its group it is at\n"
            f"{''.join(stacks)}  fix: launch(close_grace=) or RLINF_CLOSE_GRACE_S, which is {grace:g} s; "
            "a fifth of it is for open calls\n"
        )
        with contextlib.suppress(OSError):  # a method may have closed the file
            os.write(_STDERR, text.encode(errors="replace"))
        flush_files()
        os._exit(1)

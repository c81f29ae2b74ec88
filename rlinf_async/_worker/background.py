"""``BackgroundTasks``: runs a worker's background coroutines; the first one to fail ends the process.

any thread    begin(coroutine) ── on the main loop ──► a task
main loop     the task raises ──► its traceback on stderr ── the loop stops, exit functions run
daemon        ◄── KillStuck: the task, its error, and where it was started: the verdict on this death
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import traceback
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._client.client import NodeClient
from rlinf_async._core import failures, operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async.errors import ClosedError

logger = own_logger(__name__)

_KILL_TIMEOUT_S: Final = 5.0  # seconds for the daemon to kill this process before it exits by itself

_MAX_TEXT: Final = 300


class BackgroundTask:
    """A background coroutine of a worker, as returned by ``Worker.background``."""

    def __init__(self, name: str, origin: str, on_main: Callable[..., None]) -> None:
        """Internal; use ``Worker.background`` to create a task."""
        self._name = name
        self._origin = origin
        self._on_main = on_main
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False
        self._has_ended = False

    def __repr__(self) -> str:
        state = "done" if self._has_ended else "cancelled" if self._is_cancelled else "running"
        return f"<BackgroundTask {self._name} [{state}], started at {self._origin}>"

    def cancel(self) -> None:
        """Cancel the task with ``CancelledError``. Idempotent; any thread may call this."""
        self._is_cancelled = True
        self._on_main(self._cancel)

    def done(self) -> bool:
        """True once the task has ended."""
        return self._has_ended

    def _cancel(self) -> None:
        if self._task is not None and not self._task.cancelling():
            self._task.cancel()


class BackgroundTasks:
    """The background tasks of one worker.

    Args:
        loop: main thread's loop, which runs the tasks.
        on_main: schedules a callback on that loop; may be called from any thread.

    Attributes:
        post_mortem: called with a task's error before it ends the worker.
        verdict: reason for this worker's exit once a task has failed; empty until then.
        is_closed: true once new tasks are rejected; from then on failures are only logged.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_main: Callable[..., None]) -> None:
        self._loop = loop
        self._on_main = on_main
        self.post_mortem: Callable[[BaseException], None] = lambda error: None
        # Keep strong references: a loop refers to its tasks weakly, so a task in a reference cycle could be collected.
        self._running: set[asyncio.Task[None]] = set()
        self.verdict = ""
        self.is_closed = False

    def begin(self, coroutine: Any, caller: FrameType | None) -> BackgroundTask:
        """Run a coroutine as a task, from any thread. Raise TypeError for other values, ClosedError during shutdown."""
        if not isinstance(coroutine, Coroutine):
            hint = "" if not callable(coroutine) else "; call it: self.background(self.refresh())"
            raise TypeError(f"background() takes a coroutine, such as that of an async def, got {coroutine!r}{hint}")
        name = getattr(coroutine, "__qualname__", type(coroutine).__name__).replace("<locals>.", "")
        if self.is_closed or self.verdict:
            coroutine.close()
            raise ClosedError(f"background task {name}() cannot be started any more: this worker is ending")
        origin = "?"
        if caller is not None:
            origin = f"{caller.f_code.co_filename}:{caller.f_lineno} in {caller.f_code.co_qualname}()"
        task = BackgroundTask(name, origin, self._on_main)
        self._on_main(self._start, task, coroutine)
        return task

    def _start(self, task: BackgroundTask, coroutine: Coroutine[Any, Any, Any]) -> None:
        if task._is_cancelled or self.is_closed:
            coroutine.close()
            task._has_ended = True
            return

        def end(running: asyncio.Task[None]) -> None:
            # A task that is cancelled before its first step never starts its coroutine: without close() Python would
            # warn that it was never awaited.
            coroutine.close()
            task._has_ended = True
            self._running.discard(running)

        task._task = self._loop.create_task(self._run(task, coroutine), name=f"background task {task._name}()")
        self._running.add(task._task)
        task._task.add_done_callback(end)

    async def _run(self, task: BackgroundTask, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            await coroutine
        except GeneratorExit:
            raise
        except BaseException as error:
            # An eager task may fail before ``_start`` has it.
            is_cancelled = task._task is not None and task._task.cancelling() > 0
            if not (is_cancelled and isinstance(error, asyncio.CancelledError)):
                self._fail(task, error)

    def _fail(self, task: BackgroundTask, error: BaseException) -> None:
        kind = failures.type_name_of(type(error))
        text = f"{kind}: {failures.text_of(error)}".partition("\n")[0][:_MAX_TEXT]
        told = f"its background task {task._name}(), started at {task._origin}, failed ({text})"
        if self.is_closed or self.verdict:
            logger.error("%s, while this worker was ending", told, exc_info=error)
            return
        self.post_mortem(error)
        self.verdict = f"ended because {told}"
        with contextlib.suppress(Exception):  # user code may have closed stderr
            sys.stderr.write(f"{''.join(traceback.format_exception(error))}this worker {self.verdict}\n")
        self._loop.stop()

    def limit_end(self, client: NodeClient) -> None:
        """Ask the daemon to kill this process after the close grace, in case exit functions or threads never end."""

        def cut_off() -> None:
            client.request(operations.KillStuck(self.verdict))

        client.later(settings.CLOSE_GRACE_S(), cut_off)

    def end_process(self, client: NodeClient) -> None:
        """Have the daemon kill this process if a task has failed; called by the main thread with its loop stopped."""
        if self.verdict:
            # An exit status carries no reason, whereas the reason for a kill by the daemon reaches the group's owner.
            # If the daemon has exited or does not answer, this process exits by itself.
            with contextlib.suppress(Exception):
                client.request(operations.KillStuck(self.verdict)).wait(_KILL_TIMEOUT_S)

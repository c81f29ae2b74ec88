"""Executes a worker's calls: queues them in a FIFO, runs user code on the main thread, reads sockets on another.

All calls wait in one FIFO. An ``async def`` method becomes a task on the main thread's loop. For a ``def`` method, the
loop stops, the method runs with no loop running, and then the loop continues::

    socket thread   on_frame: queue.append(call) ── on_batch: wake the main loop
    main thread     run_forever ── _pump: start tasks until a def is at the head ── stop
                    ── _run_blocking: def after def, a turn of the loop every few ms ── run_forever

So two threads never run user code at the same time, and the socket thread answers within a GIL switch interval even
while user code computes. Methods marked with ``@concurrent`` are the exception: their calls do not enter the FIFO, and
run on a loop in a third thread (``concurrent_calls.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import types
from asyncio import _get_running_loop as running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final

from rlinf_async._client.client import NodeClient
from rlinf_async._client.direct_calls import REPORT_DELAY_S
from rlinf_async._core import clock, codec, dialect, failures, frames, main_module, process
from rlinf_async._core.encoded import Encoded
from rlinf_async._core.frames import Status
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.payload import open_body, pack_body
from rlinf_async._core.segment import close_fds
from rlinf_async._core.unpicklable import ATOMS
from rlinf_async._inspection.served_calls import ServedCall
from rlinf_async._recorder import recording
from rlinf_async._recorder.state.event_ring import EventKind
from rlinf_async._transports import process_groups
from rlinf_async._waits.thread_gate import EndableWaits
from rlinf_async._wire.unix import Connection
from rlinf_async._worker import context
from rlinf_async._worker.background import BackgroundTasks
from rlinf_async._worker.broken_loop import EXIT_CODE
from rlinf_async._worker.collective_watch import CollectiveWatch, advice
from rlinf_async._worker.concurrent_calls import ConcurrentCalls
from rlinf_async._worker.direct_callers import DirectCallers
from rlinf_async._worker.ending import Ending, finish
from rlinf_async._worker.failure_log import FailureLog
from rlinf_async._worker.methods import CONSTRUCT, ON_RESTART, MethodKind, Methods, concurrent_names
from rlinf_async._worker.rendezvous_store import MasterStore
from rlinf_async._worker.running_call import ENDED, QUEUED, RUNNING, Call
from rlinf_async.errors import PeerLost

logger = own_logger(__name__)

# Module-level names for enum members that every call needs, because looking up a member takes as long as a function
# call.
_SERVE: Final = EventKind.SERVE
_DEF, _STREAM, _CONCURRENT = MethodKind.DEF, MethodKind.STREAM, MethodKind.CONCURRENT
_OK, _ERROR, _ITEM = int(Status.OK), int(Status.ERROR), int(Status.ITEM)
_CANCELLED, _END = int(Status.CANCELLED), int(Status.END)
_CALL: Final = frames.CALL

_TURN_S: Final = 0.005  # run time of ``def`` methods before the loop gets a turn

_MAX_CONCURRENCY: Final = 1000


# This class is not split, although it has 40 methods: the socket thread, the main loop and the ``def`` path share one
# queue and one table of open calls.
class Runtime:
    """The runtime of one worker, which takes calls from its client and runs them on the main thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, identity: context.Identity, max_concurrency: int | None
    ) -> None:
        self._pid = process.pid
        self._loop = loop
        self._identity = identity
        self._max_concurrency = max_concurrency or _MAX_CONCURRENCY
        self._constructor_error: bytes | None = None
        self._failures = FailureLog()
        self._methods = Methods(self._construct)
        self._concurrent = ConcurrentCalls(self._start_concurrent)
        self.ending = Ending(loop, self._methods, self._concurrent)
        self.background = BackgroundTasks(loop, self._on_main)
        self._queue: deque[Call] = deque()
        # Calls that arrived before the constructor's call; None once the constructor's call has arrived.
        self._early: list[Call] | None = []
        self._open: dict[tuple[int, int], Call] = {}
        self._state_lock = threading.Lock()
        self._awake = False
        self._running = 0
        # True while a callback other than a call, such as a cancel, waits for the main loop.
        self._turn_wanted = False
        self._stopping = False
        # Wakes the main loop with one system call on each side; call_soon_threadsafe takes three.
        self._alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        loop.add_reader(self._alarm, self._woken)
        self.client: NodeClient
        self.direct_callers: DirectCallers
        self.store: MasterStore | None = None
        self._collectives: CollectiveWatch | None = None
        # Called with a method's error before the caller receives it.
        self.post_mortem: Callable[[BaseException], None] = lambda error: None

    # -- on the socket thread --------------------------------------------------------------------------------------

    def on_frame(self, frame: list[Any], fds: list[int]) -> None:
        kind = frame[0]
        if kind == _CALL:
            self.direct_callers.read_available(frame[2])
            self._take(frame, fds, self.direct_callers.to(frame[2]), None)
        elif kind == frames.CANCEL:
            self._cancel(frame[2], frame[4])
        elif kind == frames.CREDIT:
            self._credit(frame[2], frame[4], frame[5])
        elif kind == frames.FAILED:
            self._on_failed_elsewhere(frame[2], frame[4], frame[5])
        elif kind == frames.STOP:
            self.direct_callers.read_all_available()
            self.ending.announce(float(frame[3]))
            self._on_main(self._stop)

    def _enqueue(self, call: Call) -> None:
        # Run no call before the constructor: a process that found the group by name may send a call before the owner
        # does.
        if call.method in self._methods.concurrent:
            self._submit_concurrent(call)
        elif self._early is None:
            self._queue.append(call)
        elif call.method != CONSTRUCT:
            self._early.append(call)
        else:
            self._queue.extend((call, *self._early))
            self._early = None

    def on_direct(self, source: int, way: Connection, frame: list[Any], fds: list[int]) -> None:
        kind = frame[0]
        frame[2] = source
        if kind == _CALL and frames.is_call_sound(frame):
            self._take(frame, fds, way, clock.monotonic())
        elif kind == frames.CANCEL:
            self._cancel(source, frame[4])
        elif kind == frames.CREDIT:
            self._credit(source, frame[4], frame[5])
        elif kind == frames.FAILED:
            self._on_failed_elsewhere(source, frame[4], frame[5])
        else:
            close_fds(fds)
            raise frames.FrameError(f"a frame of kind {kind} has no business here")

    def _take(self, frame: list[Any], fds: list[int], way: Connection | None, came_at: float | None) -> None:
        _, _, source, slot, number, method, credit, body = frame
        call = Call(source, slot, number, method, credit, way, came_at)
        try:
            call.body = body if type(body) is bytes and not fds else open_body(body, fds)
            self._open[source, number] = call
        except Exception as error:  # the body cannot be mapped: no memory, no descriptors
            self._answer_error(call, error)
        # Enqueue even a failed constructor call, because calls that arrived earlier wait for it.
        self._enqueue(call)

    def on_caller_gone(self, source: int, way: Connection) -> None:
        """Cancel the direct calls of a caller that has exited; the daemon handles the relayed ones."""
        for call in list(self._open.copy().values()):  # a copy, because other threads answer calls
            if call.direct is way and call.came_at is not None:
                self._cancel(source, call.call)

    def _credit(self, source: int, number: int, count: int) -> None:
        call = self._open.get((source, number))
        if call is not None:
            self._on_main(self._grant, call, count)

    def _on_failed_elsewhere(self, source: int, number: int, facts: Any) -> None:
        call = self._open.get((source, number))
        if call is not None:
            if facts.get("ends"):
                call.void = PeerLost(facts["text"])
                call.void.returns = True
                if call.waits is not None:
                    call.waits.end(call.void)
            if self._collectives is None:
                self._collectives = CollectiveWatch(self.client, self._open, self._identity.world_size)
            self._collectives.failed(call, facts)

    def on_batch(self) -> None:
        if self._queue and not self._awake:
            self._awake = True
            if running_loop() is self._loop:
                self._pump()
            else:
                os.eventfd_write(self._alarm, 1)

    def _on_main(self, callback: Callable[..., None], *args: Any) -> None:
        if running_loop() is self._loop:
            callback(*args)
            return
        self._turn_wanted = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is exiting
            self._loop.call_soon_threadsafe(callback, *args)

    def _cancel(self, source: int, number: int) -> None:
        call = self._open.get((source, number))
        if call is None or call.cancelled:
            # A second cancellation must not interrupt the cleanup started by the first one.
            return
        if call.method == CONSTRUCT:
            # If a rank dies during the launch, the caller cancels the other ranks' constructors. A rank with a
            # cancelled constructor would refuse all later calls from any caller, while the other ranks continue.
            # tests/_worker/test_runtime.py::test_a_constructor_is_not_cancelled
            return
        with self._state_lock:
            call.cancelled = True
            waiting = call.state is QUEUED
            if waiting:
                call.state = ENDED
        if waiting:
            self._answer(call, _CANCELLED, b"")
        elif call.method in self._methods.concurrent:
            self._concurrent.cancel(call)
        else:
            self._on_main(self._cancel_running, call)

    def _submit_concurrent(self, call: Call) -> None:
        try:
            self._concurrent.submit(call)
        except (OSError, RuntimeError) as error:
            if self._begin(call):
                self._answer_error(call, error)

    def _let_overtake(self) -> None:
        # This must run on the socket thread, so that no append to the queue is in progress. If the main thread ran it
        # as soon as the methods' names were known, the socket thread might be about to queue a concurrent call as an
        # ordinary one. tests/test_concurrent.py::test_a_call_that_comes_during_the_constructor_overtakes_too
        for call in list(self._open.copy().values()):
            if call.state is QUEUED and call.method in self._methods.concurrent:
                self._submit_concurrent(call)

    # -- the main thread ----------------------------------------------------------------------------------------

    def serve(self) -> int:
        """Run calls until the daemon sends STOP or a background task fails, then shut down. Return the exit code."""
        while not (self._stopping or self.background.verdict):
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # A task left behind by a method raised the error; the worker runs on until its group is closed.
                logger.warning("%s in a background task of the worker is ignored", type(error).__name__)
                self._loop.call_soon(self._pump)
                continue
            if not (self._stopping or self.background.verdict):
                self._run_blocking()
        if self.background.verdict:
            self.background.limit_end(self.client)
            return EXIT_CODE
        self.ending.run()
        return 0

    def finish(self) -> None:
        self._open.clear()
        finish(self._methods)

    def _begin(self, call: Call) -> bool:
        with self._state_lock:
            if call.state is not QUEUED:
                return False
            call.state = RUNNING
        call.place = recording.start_call(call.source, call.call)
        return True

    def _woken(self) -> None:
        os.eventfd_read(self._alarm)
        self._pump()

    def _pump(self) -> None:
        """Start coroutines until a ``def`` method is at the head of the queue; runs on the loop."""
        queue = self._queue
        while not self._stopping:
            while queue:
                call = queue[0]
                if call.state is not QUEUED:
                    queue.popleft()
                    continue
                kind, function = self._methods.find(call.method)
                if kind is _DEF:
                    # Give a turn to calls and cancels that arrived earlier.
                    if self._running:
                        self._loop.call_soon(self._loop.stop)
                    else:
                        self._loop.stop()
                    return
                if self._running >= self._max_concurrency:
                    self._awake = True
                    return
                queue.popleft()
                if kind is _CONCURRENT:
                    self._submit_concurrent(call)
                elif self._begin(call):
                    is_stream = kind is _STREAM
                    self._start(call, self._stream(call, function) if is_stream else self._coroutine(call, function))
            self._awake = False
            if not queue:
                return
            self._awake = True

    def _run_blocking(self) -> None:
        """Run ``def`` methods, one at a time, with the loop stopped."""
        for send in list(self.client.unsent):
            send()
        queue = self._queue
        until = clock.monotonic() + _TURN_S
        while queue and not self._stopping:
            call = queue[0]
            if call.state is not QUEUED:
                queue.popleft()
                continue
            kind, function = self._methods.find(call.method)
            if kind is not _DEF:
                break
            queue.popleft()
            if self._begin(call):
                if recording.admits():
                    call._event = recording.begin(_SERVE, call.method, 0.0, call)
                self._run(call, function)
            if self._turn_wanted or clock.monotonic() > until:
                break
        self._turn_wanted = False
        self._awake = False
        if queue:
            self._awake = True
            self._loop.call_soon(self._pump)

    def _construct(self, worker_cls: type, *args: Any, **kwargs: Any) -> None:
        main_module.pin()
        context.identity = self._identity
        self._methods.worker = worker_cls(*args, **kwargs)
        if names := concurrent_names(worker_cls):
            self._methods.concurrent = names
            self.client.later(0, self._let_overtake)

    def _run(self, call: Call, function: Callable[..., Any]) -> None:
        try:
            if self._constructor_error is not None:
                self._answer(call, _ERROR, self._constructor_error)
                return
            args, kwargs = _arguments(call)
            value = self._run_hook(call, function, *args) if call.method == ON_RESTART else function(*args, **kwargs)
            if type(value) not in ATOMS and isinstance(value, Generator) and not isinstance(value, Coroutine):
                value.close()  # runs user code, which may raise
                text = f"{call.method}() is a plain generator: make it `async def`, and its items are streamed"
                raise TypeError(text)
        except BaseException as error:
            self._answer_error(call, error)
        else:
            self._answer_blocking(call, value)
        # An asyncio.run() in the method may have unset the loop.
        asyncio.set_event_loop(self._loop)

    def _run_hook(self, call: Call, function: Callable[..., Any], *args: Any) -> Any:
        with self._endable(call):
            return function(*args)

    def _endable(self, call: Call) -> EndableWaits:
        call.waits = waits = EndableWaits()
        if call.void is not None:  # a rank died before the waits were registered
            waits.end(call.void)
        return waits

    def _answer_blocking(self, call: Call, value: Any) -> None:
        if type(value) in ATOMS:
            self._answer_value(call, value)
            return
        if isinstance(value, Coroutine) and not call.credit:
            # A plain function has returned a coroutine, perhaps because its decorator lacks functools.wraps.
            self._start(call, self._finish(call, value))
            return
        self._answer_value(call, value)

    def _start(self, call: Call, coroutine: Coroutine[Any, Any, None]) -> None:
        self._running += 1
        coroutine.send(None)  # runs the coroutine up to its ``_first_step``
        call.task = task = self._loop.create_task(coroutine)
        self._record(call)
        if call.cancelled:  # a cancel may have arrived during the call's ``def`` part
            task.cancel()

    def _record(self, call: Call) -> None:
        # An eager task may already have ended the call.
        if not call._event and call.state is not ENDED and recording.admits():
            call._event = recording.begin(_SERVE, call.method, 0.0, call)

    def _start_concurrent(self, call: Call, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
        """Start a call on the concurrent calls' thread. Return None if an earlier submission has already started it."""
        if not self._begin(call):
            return None
        _, function = self._methods.find(call.method)
        coroutine = self._coroutine(call, function)
        coroutine.send(None)
        task = call.task = loop.create_task(coroutine)
        self._record(call)
        return task

    # Each of these coroutines answers its call, however it ends; a done callback would cost an additional turn of the
    # loop. A task cancelled before its first step never enters its coroutine, and the caller would wait forever. So a
    # coroutine runs up to ``_first_step`` before it becomes a task, and receives the cancellation at that point.
    # tests/_worker/test_runtime.py::test_a_call_that_is_cancelled_before_its_first_step_is_answered

    async def _coroutine(self, call: Call, function: Callable[..., Any]) -> None:
        try:
            await _first_step()
            args, kwargs = _arguments(call)
            if dialect.is_rlinf and call.method == ON_RESTART:
                value = await self._endable(call).carry(function(*args, **kwargs))
            else:
                value = await function(*args, **kwargs)
        except BaseException as error:
            self._answer_error(call, error)
        else:
            self._answer_value(call, value)
        finally:
            self._leave(call)

    async def _finish(self, call: Call, awaitable: Any) -> None:
        try:
            await _first_step()
            value = await awaitable
        except BaseException as error:
            # Close only a coroutine, which has no other user. A Work may have other waiters, whose waits close() would
            # end.
            if type(error) is _CancelledAtFirst and type(awaitable) is types.CoroutineType:
                awaitable.close()
            self._answer_error(call, error)
        else:
            self._answer_value(call, value)
        finally:
            self._leave(call)

    async def _stream(self, call: Call, function: Callable[..., Any]) -> None:
        try:
            await _first_step()
            if not call.credit:
                raise TypeError(f"{call.method}() is an async generator: iterate over it with `async for`")
            args, kwargs = _arguments(call)
            generator = function(*args, **kwargs)
            async with contextlib.aclosing(generator):
                async for item in generator:
                    while call.credit <= 0:
                        call.granted = self._loop.create_future()
                        await call.granted
                    call.credit -= 1
                    body, fds = pack_body(codec.encode(item, describe=f"an item of {call.method}()", root="item"))
                    self._send(call, _ITEM, body, fds)
        except BaseException as error:
            self._answer_error(call, error)
        else:
            self._answer(call, _END, b"")
        finally:
            self._leave(call)

    def _leave(self, call: Call) -> None:
        if call.state is not ENDED:  # the answer could not be built
            self._answer(call, _CANCELLED, b"")
        if call.method not in self._methods.concurrent:
            self._running -= 1
            if self._queue and self._running == self._max_concurrency - 1:
                self._loop.call_soon(self._pump)

    def _grant(self, call: Call, count: int) -> None:
        call.credit += count
        if call.granted is not None and not call.granted.done():
            call.granted.set_result(None)

    def _cancel_running(self, call: Call) -> None:
        # While this worker shuts down, ``Ending`` cancels all tasks, but cancellations from exiting callers may still
        # arrive.
        if call.task is not None and not (self._stopping and call.task.cancelling()):
            call.task.cancel()

    def running_calls(self) -> list[ServedCall]:
        """Return the running calls, for reports. Any thread may call this."""
        running = [call for call in list(self._open.copy().values()) if call.state is RUNNING]
        return [
            ServedCall(call.source, call.call, call.method, call.task, is_paused=_is_paused(call)) for call in running
        ]

    # -- answers ------------------------------------------------------------------------------------------------

    def _capture(self, error: BaseException) -> failures.Failure:
        info = self._identity.info
        where = {
            "group": self._identity.group_name,
            "rank": info.rank,
            "node": info.node_name,
            "pid": os.getpid(),
        }
        return failures.capture(error, where)

    def _answer_value(self, call: Call, value: Any) -> None:
        try:
            encoded: Encoded | bytes | None = codec.encode_plain(value)
            if encoded is None:
                encoded = codec.encode(value, describe=f"the result of {call.method}()", root="result")
            body, fds = pack_body(encoded)
        except BaseException as error:
            self._answer_error(call, error)
            return
        self._answer(call, _OK, body, fds)

    def _answer_error(self, call: Call, error: BaseException) -> None:
        if self._pid != process.pid:
            process.leave(error)
        if isinstance(error, asyncio.CancelledError) and (
            call.cancelled or self._stopping or type(error) is _CancelledAtFirst
        ):
            self._answer(call, _CANCELLED, b"")
            return
        if call.void is not None:
            logger.info("%s() has ended with %r, and is called again: %s", call.method, error, call.void)
            self._answer(call, _CANCELLED, b"")
            return
        if call.failure is not None and isinstance(error, RuntimeError):  # torch raises it for an aborted process group
            failures.add_note(error, advice(call.failure))
            process_groups.forget_half_made()
        self.post_mortem(error)
        failure = self._capture(error)
        self._failures.add(call.method, error, failure)
        packed = failures.pack(failure)
        if call.method == CONSTRUCT:
            self._constructor_error = packed
        self._answer(call, _ERROR, packed)

    def _answer(self, call: Call, status: int, body: Any, fds: Any = ()) -> None:
        if self._pid != process.pid:  # a forked child returned from the method: it must not answer
            process.leave(None)
        recording.finish_call(call.place)
        self._open.pop((call.source, call.call), None)
        call.state = ENDED
        call.body = None
        if call.failure is not None and self._collectives is not None:
            self._collectives.ended()
        if call._event:
            recording.end(call._event, status == _ERROR)
        self._send(call, status, body, fds)

    def _send(self, call: Call, status: int, body: Any, fds: Any, *, was_held: bool = False) -> None:
        # The items that this call returns to channels must be in their queues before the answer is sent, because once
        # the caller has the answer, it may have another rank get them. tests/simulation/test_sim_channels.py::
        # test_items_that_a_call_gives_back_are_at_their_places_before_its_answer
        client = self.client
        if ((giving_back := client.giving_back).open or giving_back.held) and not was_held:
            giving_back.enqueue(partial(self._send, call, status, body, fds, was_held=True))
            return
        frame = (frames.REPLY, len(fds), client.endpoint, call.source, call.call, call.slot, status, body)
        direct = call.direct
        if direct is None:
            client.send(frame, fds, later=bool(self._queue))
            return
        direct.send(frame, fds, later=bool(self._queue))
        # A caller that has reported its direct call may block or be stopped before it reports the answer. Therefore the
        # worker reports the answer, too. It does so after DirectCallers' delay, which is longer than the caller's, so
        # that the daemon learns about the call first.
        if status != _ITEM and (call.came_at is None or clock.monotonic() - call.came_at >= REPORT_DELAY_S):
            self.direct_callers.answered(call)

    # -- close ------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._stopping = self.background.is_closed = True
        self._loop.stop()


class _CancelledAtFirst(asyncio.CancelledError):
    """Raised when a call is cancelled before its task's first step."""


@types.coroutine
def _first_step() -> Generator[None, None, None]:
    """Suspend a call's coroutine until its task begins."""
    try:
        yield
    except asyncio.CancelledError as error:
        raise _CancelledAtFirst from error


def _arguments(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    body, call.body = call.body, None  # drop the reference early: the body may be large
    return codec.decode_arguments(body if body is not None else b"")


def _is_paused(call: Call) -> bool:
    return call.granted is not None and not call.granted.done()

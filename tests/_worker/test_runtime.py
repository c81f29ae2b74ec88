"""Order of calls within a worker."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlinf_async._core import codec, dialect, frames
from rlinf_async._core.frames import Status
from rlinf_async._core.giving_back import GivingBack
from rlinf_async._recorder import recording
from rlinf_async._worker.context import Identity
from rlinf_async._worker.methods import CONSTRUCT, Methods
from rlinf_async._worker.running_call import Call
from rlinf_async._worker.runtime import Runtime
from rlinf_async.address import WorkerAddress, WorkerInfo
from rlinf_async.work import Work


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    info = WorkerInfo(WorkerAddress("group", 0), 0, 1, 0, "NO_ACCEL", "", -1, "127.0.0.1", 0)
    loop = asyncio.new_event_loop()
    runtime = Runtime(loop, Identity(info, 1, "group"), None)
    runtime.direct_callers = cast(Any, SimpleNamespace(to=lambda source: None, read_available=lambda source: None))
    yield runtime
    loop.remove_reader(runtime._alarm)
    os.close(runtime._alarm)
    loop.close()


def test_calls_that_come_before_the_constructor_wait_for_it_in_their_order(runtime: Runtime) -> None:
    for number, method in enumerate(["early", "next", CONSTRUCT, "late"]):
        runtime.on_frame([frames.CALL, 0, 7, 0, number, method, 0, b""], [])
        if method == "next":
            assert not runtime._queue
    assert [call.method for call in runtime._queue] == [CONSTRUCT, "early", "next", "late"]


def test_a_constructor_is_not_cancelled(runtime: Runtime) -> None:
    runtime.on_frame([frames.CALL, 0, 7, 0, 1, CONSTRUCT, 0, b""], [])
    runtime.on_frame([frames.CANCEL, 0, 7, 0, 1], [])
    assert runtime._begin(runtime._queue[0])


def a_client(sent: list[Any]) -> SimpleNamespace:
    def send(frame: Any, fds: Any, later: bool) -> None:
        sent.append(frame)

    return SimpleNamespace(endpoint=9, unsent=(), send=send, giving_back=GivingBack())


def test_calls_do_not_wait_for_a_constructor_whose_arguments_cannot_be_had(runtime: Runtime, tmp_path: Path) -> None:
    sent: list[Any] = []
    client = a_client(sent)
    runtime.client = cast(Any, client)
    runtime.on_frame([frames.CALL, 0, 7, 0, 1, "early", 0, b""], [])
    runtime.on_frame([frames.CALL, 1, 7, 0, 2, CONSTRUCT, 0, 1 << 20], [os.open(tmp_path, os.O_RDONLY)])
    runtime._run_blocking()
    assert [(frame[4], frame[6]) for frame in sent] == [(2, Status.ERROR), (1, Status.ERROR)]
    assert sent[0][7] == sent[1][7]


def test_a_concurrent_call_is_an_error_where_no_thread_can_be_had(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sent: list[Any] = []
    runtime.client = cast(Any, a_client(sent))
    runtime._methods.concurrent = frozenset({"stop"})
    monkeypatch.setattr(threading.Thread, "start", start)
    for number in (1, 2):
        runtime.on_frame([frames.CALL, 0, 7, 0, number, "stop", 0, b""], [])
    assert [(frame[4], frame[6]) for frame in sent] == [(1, Status.ERROR), (2, Status.ERROR)]
    assert b"can't start new thread" in sent[0][7]
    assert not runtime._open


def test_the_first_concurrent_call_does_not_begin_once_the_worker_ends(runtime: Runtime) -> None:
    runtime._methods.concurrent = frozenset({"stop"})
    runtime._concurrent.end()
    runtime.on_frame([frames.CALL, 0, 7, 0, 1, "stop", 0, b""], [])
    assert "rlinf-concurrent" not in [thread.name for thread in threading.enumerate()]
    assert runtime._concurrent.ended is not None
    assert runtime._concurrent.ended.done()


def test_a_generator_that_raises_when_it_is_closed_is_its_calls_error(runtime: Runtime) -> None:
    def items() -> Iterator[int]:
        try:
            yield 1
        finally:
            raise ValueError("cannot be closed")

    class Begins:
        def step(self) -> Any:
            generator = items()
            next(generator)
            return generator

    sent: list[Any] = []
    runtime.client = cast(Any, a_client(sent))
    runtime._early, runtime._methods.worker = None, Begins()
    runtime.on_frame([frames.CALL, 0, 7, 0, 1, "step", 0, codec.encode(((), {})).to_bytes()], [])
    runtime._run_blocking()
    assert [frame[6] for frame in sent] == [Status.ERROR]
    assert b"cannot be closed" in sent[0][7]


class Odd:
    """Has names whose look-up raises, as a ``__getattr__`` that looks into a dict does."""

    def step(self) -> str:
        return "stepped"

    @property
    def loss(self) -> float:
        raise ZeroDivisionError("no step yet")

    def __getattr__(self, name: str) -> None:
        raise KeyError(name)

    def __call__(self) -> None: ...


def test_a_name_whose_look_up_raises_is_the_error_of_its_call_alone(runtime: Runtime) -> None:
    sent: list[Any] = []
    runtime.client = cast(Any, a_client(sent))
    runtime._early, runtime._methods.worker = None, Odd()
    vars(runtime._methods.worker)["policy"] = Odd()
    for number, method in enumerate(["loss", "stop", "policy", "step"]):
        runtime.on_frame([frames.CALL, 0, 7, 0, number, method, 0, codec.encode(((), {})).to_bytes()], [])
    runtime._loop.call_soon(runtime._pump)
    runtime._loop.call_later(5, runtime._loop.stop)
    runtime._loop.run_forever()  # as long as a coroutine could be at the head
    while runtime._queue:  # a turn is short
        runtime._run_blocking()
    assert [frame[6] for frame in sent] == [*3 * [Status.ERROR], Status.OK]
    assert all(text in sent[number][7] for number, text in enumerate([b"no step yet", b"KeyError", b"__name__"]))


def test_a_method_that_is_not_there_is_told_with_those_that_are() -> None:
    class Plain:
        loss = Odd.loss

        def step(self) -> None: ...

    methods = Methods(lambda: None)
    methods.worker = Plain()
    _, function = methods.find("stop")
    with pytest.raises(AttributeError, match="Plain has no public method 'stop'; it has step"):
        function()


def test_a_coroutine_that_a_cancelled_method_returns_is_closed(
    runtime: Runtime, recwarn: pytest.WarningsRecorder
) -> None:
    class Late:
        def step(self) -> Any:  # as a decorator that forgot functools.wraps
            runtime._cancel(7, 1)
            return self.work()

        async def work(self) -> None: ...

    sent: list[Any] = []
    runtime.client = cast(Any, a_client(sent))
    runtime._early, runtime._methods.worker = None, Late()
    runtime.on_frame([frames.CALL, 0, 7, 0, 1, "step", 0, codec.encode(((), {})).to_bytes()], [])
    runtime._run_blocking()
    runtime._loop.run_until_complete(asyncio.sleep(0))
    gc.collect()
    assert [frame[6] for frame in sent] == [Status.CANCELLED]
    assert not recwarn.list


def test_a_call_that_an_eager_task_ends_at_once_is_recorded_as_one_that_has_ended(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by asyncio.eager_task_factory of Python 3.12."""

    def eager(loop: asyncio.AbstractEventLoop, coroutine: Any, **_: Any) -> asyncio.Future[Any]:
        with contextlib.suppress(StopIteration):
            coroutine.send(None)
        return loop.create_future()

    numbers, ended = itertools.count(1), []
    monkeypatch.setattr(recording, "admits", lambda: True)
    monkeypatch.setattr(recording, "begin", lambda *_: next(numbers))
    monkeypatch.setattr(recording, "end", lambda number, failed: ended.append(number))
    runtime.client = cast(Any, a_client([]))
    runtime._early, runtime._methods.worker = None, Late()
    runtime._loop.set_task_factory(cast(Any, eager))
    runtime.on_frame([frames.CALL, 0, 7, 0, 1, "value", 0, codec.encode(((), {})).to_bytes()], [])
    runtime._pump()
    assert not runtime._open
    assert next(numbers) == len(ended) + 1


def test_the_cancel_of_a_method_that_returns_a_work_ends_no_other_wait_for_that(runtime: Runtime) -> None:
    work: Work[int] = Work()

    class Shares:
        def step(self) -> Any:
            return work

    runtime.client = cast(Any, a_client([]))
    runtime._early, runtime._methods.worker = None, Shares()
    waiting = runtime._loop.create_task(work)
    runtime.on_frame([frames.CALL, 0, 7, 0, 1, "step", 0, codec.encode(((), {})).to_bytes()], [])
    runtime._run_blocking()
    runtime._loop.run_until_complete(asyncio.sleep(0))
    runtime._cancel(7, 1)
    runtime._loop.run_until_complete(asyncio.sleep(0.01))
    assert not runtime._open
    work._settle(3)
    assert runtime._loop.run_until_complete(asyncio.wait_for(waiting, 5)) == 3


class Late:
    async def value(self) -> int:
        return 1

    async def items(self) -> AsyncIterator[int]:
        yield 1

    def later(self) -> Any:
        return self.value()


@pytest.mark.parametrize("method", ["value", "items", "later"])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_a_call_that_is_cancelled_before_its_first_step_is_answered(runtime: Runtime, method: str) -> None:
    sent: list[Any] = []
    runtime.client = cast(Any, a_client(sent))
    runtime._early, runtime._methods.worker = None, Late()
    arguments = codec.encode(((), {})).to_bytes()

    def begin(number: int) -> Call:
        runtime.on_frame([frames.CALL, 0, 7, 0, number, method, int(method == "items"), arguments], [])
        call = runtime._open[7, number]
        if method == "later":
            runtime._run_blocking()
        else:
            runtime._pump()
        assert call.task is not None
        return call

    def cancel_both() -> None:
        for number in (1, 2):
            call = begin(number)
            if number == 1:
                runtime._cancel_running(call)
            elif call.task is not None:  # as user code does that ends all tasks
                call.task.cancel()
        runtime._loop.call_later(0.01, runtime._loop.stop)

    if method == "later":
        cancel_both()
    else:
        runtime._loop.call_soon(cancel_both)
    runtime._loop.run_forever()
    assert [(frame[4], frame[6]) for frame in sent] == [(1, Status.CANCELLED), (2, Status.CANCELLED)]
    assert not runtime._open
    assert not runtime._running


def test_by_rlinfs_rules_a_hook_that_blocks_in_a_coroutine_ends_when_a_rank_dies(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect, "is_rlinf", True)
    sent: list[Any] = []
    runtime.client = cast(Any, a_client(sent))
    runtime._collectives = cast(Any, SimpleNamespace(failed=lambda *_: None, ended=lambda: None))
    runtime._early = None
    never: Work[None] = Work()
    ends: list[Exception] = []

    class Hooked:
        async def on_restart(self) -> None:
            await asyncio.sleep(0)
            died.start()
            try:
                never.wait(5)
            except Exception as error:
                ends.append(error)
                raise

    runtime._methods.worker = Hooked()
    died = threading.Timer(
        0.05, runtime.on_frame, ([frames.FAILED, 0, 7, 0, 1, {"ends": True, "text": "rank 1 has died"}], [])
    )
    runtime.on_frame([frames.CALL, 0, 7, 0, 1, "on_restart", 0, bytes(codec.encode_plain(((), {})))], [])
    runtime._loop.call_later(0.2, runtime._loop.stop)
    runtime._pump()
    runtime._loop.run_forever()
    died.join()
    assert [str(error) for error in ends] == ["rank 1 has died"]
    assert [(frame[4], frame[6]) for frame in sent] == [(1, Status.CANCELLED)]

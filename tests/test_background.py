"""``Worker.background``: a task that fails ends its rank with a verdict; one that ends or is cancelled is quiet."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import threading
import weakref
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_async import Cluster, NodePlacementStrategy, Worker, WorkerDied, concurrent
from rlinf_async._worker.background import BackgroundTasks

pytestmark = pytest.mark.shared_cluster

ONE = NodePlacementStrategy([0])


class Host(Worker):
    def __init__(self, at: str = "", exits_late: bool = False) -> None:
        super().__init__()
        self.ticks = 0
        self.kept: Any = None
        if at == "__init__" and not self._restarts:
            self.background(self.fail("in the constructor"))
        if exits_late:
            threading.Thread(target=threading.Event().wait).start()

    async def fail(self, text: str) -> None:
        await asyncio.sleep(0.05)
        raise ValueError(text)

    def in_def(self, text: str) -> int:
        self.background(self.fail(text))
        return os.getpid()

    async def in_coroutine(self, text: str) -> None:
        self.background(self.fail(text))
        await asyncio.sleep(60)

    @concurrent
    async def beside(self, text: str) -> None:
        self.background(self.fail(text))
        await asyncio.sleep(60)

    async def raise_(self, kind: type[BaseException]) -> None:
        async def task() -> None:
            raise kind("of the task itself")

        self.background(task())
        await asyncio.sleep(60)

    def tick(self, path: str) -> None:
        async def count() -> None:
            try:
                while True:
                    self.ticks += 1
                    await asyncio.sleep(0.001)
            finally:
                Path(path).write_text("cancelled")

        async def end() -> None:
            pass

        self.kept = self.background(count())
        self.background(end())

    async def ticked(self) -> tuple[int, bool]:
        return self.ticks, self.kept.done()

    def stop(self) -> None:
        self.kept.cancel()

    async def pid(self) -> int:
        return os.getpid()


def launch(cluster: Cluster, *args: Any, **options: Any) -> Any:
    return Host.create_group(*args).launch(cluster, ONE, restart="rank", **{"name": "host", **options})


@pytest.mark.parametrize("at", ["in_coroutine", "beside"])
def test_a_task_that_fails_ends_its_rank_and_says_which_and_where(cluster: Cluster, at: str) -> None:
    with launch(cluster) as group:
        (before,) = group.pid().wait()
        with pytest.raises(WorkerDied) as caught:
            getattr(group, at)("no luck").wait(20)
        died = caught.value
        where = re.escape(f"{__file__}:")
        assert re.fullmatch(
            rf"ended because its background task Host.fail\(\), started at {where}\d+ in Host.{at}\(\), failed "
            r"\(ValueError: no luck\)",
            died.verdict,
        )
        assert died.returns
        assert died.execution == "started"
        assert "ValueError: no luck" in "\n".join(died.last_words)
        assert f"in fail{os.linesep}" in "\n".join(died.last_words)
        assert group.pid().wait(20) != [before]


class Odd(BaseException):
    pass


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, Odd])
def test_no_exception_of_a_task_is_swallowed(cluster: Cluster, kind: type[BaseException]) -> None:
    with launch(cluster) as group, pytest.raises(WorkerDied, match=rf"{kind.__name__}: of the task itself"):
        group.raise_(kind).wait(20)


def test_an_exit_that_hangs_holds_up_no_failure(cluster: Cluster) -> None:
    with (
        launch(cluster, "", True, env={"RLINF_CLOSE_GRACE_S": "0.5"}) as group,
        pytest.raises(WorkerDied, match=r"its background task Host.fail\(\)"),
    ):
        group.in_coroutine("no luck").wait(20)


def test_a_task_is_kept_and_ends_also_before_its_first_step() -> None:
    woken: list[Any] = []

    async def wait() -> None:
        future = asyncio.get_running_loop().create_future()
        weakref.finalize(future, woken.append, "collected")
        await future

    async def main() -> None:
        tasks = BackgroundTasks(asyncio.get_running_loop(), lambda callback, *args: callback(*args))
        tasks.begin(wait(), None)
        early = tasks.begin(_coroutine(), None)
        early.cancel()  # a warning that it was never awaited would be an error
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gc.collect()
        assert early.done()
        assert not woken

    asyncio.run(main())


def test_an_eager_task_that_fails_at_once_ends_its_rank() -> None:
    """As by asyncio.eager_task_factory of Python 3.12."""

    def eager(coroutine: Any, **_: Any) -> Any:
        with pytest.raises(StopIteration):
            coroutine.send(None)
        return Future[None]()

    async def fail() -> None:
        raise ValueError("no luck")

    loop: Any = SimpleNamespace(create_task=eager, stop=lambda: None)
    tasks = BackgroundTasks(loop, lambda callback, *args: callback(*args))
    tasks.begin(fail(), None)
    assert "failed (ValueError: no luck)" in tasks.verdict


async def _coroutine() -> None:
    pass


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (_coroutine, r"takes a coroutine.*, got <function _coroutine at .*>; call it: self.background\("),
        (3, r"background\(\) takes a coroutine, such as that of an async def, got 3$"),
        (None, "got None$"),
    ],
)
def test_what_is_no_coroutine_is_refused(given: Any, text: str) -> None:
    loop: Any = None
    tasks = BackgroundTasks(loop, lambda *args: None)
    with pytest.raises(TypeError, match=text):
        tasks.begin(given, None)

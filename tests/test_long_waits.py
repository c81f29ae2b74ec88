"""Warnings about long waits for stopped processes: ranks, and their running methods."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from rlinf_async import Channel, Cluster, NodePlacementStrategy, WorkerDied, WorkerGroup, settings
from tests._support.workers import Plain

pytestmark = pytest.mark.shared_cluster

FIRST_S = 0.3


class Listener(logging.Handler):
    """Keeps the words that are said in a process, and does something about the first that says what is expected."""

    def __init__(self, expected: str, then: Callable[[], Any]) -> None:
        super().__init__(logging.WARNING)
        self.words: list[str] = []
        self._expected = expected
        self._then: Callable[[], Any] | None = then

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(record.getMessage())
        then = self._then
        if then is not None and self._expected in self.words[-1]:
            self._then = None
            then()

    @property
    def word(self) -> str:
        """The one that was expected."""
        return next(word for word in self.words if self._expected in word)

    def __enter__(self) -> Listener:
        logging.getLogger("rlinf_async._waits.slow_waits").addHandler(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        logging.getLogger("rlinf_async._waits.slow_waits").removeHandler(self)


class Waiting(Plain):
    """Waits for others, and tells the first word about that."""

    async def _first_word(self, start: Callable[[], Any]) -> str:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        with Listener("still waiting", lambda: loop.call_soon_threadsafe(heard.set)) as listener:
            task = asyncio.ensure_future(start())
            await heard.wait()
            task.cancel()
        return listener.words[0]

    async def receive(self, group: str, rank: int) -> str:
        return await self._first_word(lambda: self.recv(group, rank))

    async def share(self, groups: list[Any]) -> str:
        return await self._first_word(lambda: self.broadcast(None, groups=groups))

    async def lock(self) -> str:
        return await self._first_word(self.device_lock.acquire)


class Sharing(Waiting):
    """Believes that it shares device 0 with all the others."""

    def __init__(self) -> None:
        super().__init__()
        self.global_accelerator_ids = [0]


@pytest.fixture(scope="module", autouse=True)
def words_come_soon() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.WAIT_WARNING_S.variable, str(FIRST_S))
        patch.setenv(settings.WAIT_ANSWER_S.variable, "0.5")
        yield


@pytest.fixture(scope="module")
def daemon(cluster: Cluster) -> psutil.Process:
    return psutil.Process(cluster.status()["pid"])


@pytest.fixture(scope="module")
def template(daemon: psutil.Process) -> int:
    """The process that workers are forked from; there are no others yet."""
    (process,) = daemon.children()
    return process.pid


@pytest.fixture
def group(cluster: Cluster, template: int) -> Iterator[Any]:
    group = Waiting.create_group().launch(cluster, placement=NodePlacementStrategy([0] * 3), name="waiting")
    yield group.wait_ready()
    group.close()


async def wait_for(thing: Any) -> Any:
    return await thing


def stop(pid: int) -> Callable[[], None]:
    """Stops a process; what lets it go on."""
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("how", [lambda handle: asyncio.run(wait_for(handle)), lambda handle: handle.wait()])
def test_a_stopped_rank_is_named_with_what_it_was_in(group: Any, how: Callable[[Any], Any]) -> None:
    go_on = stop(group.pid().wait()[1])
    with Listener("stopped (T)", go_on) as listener:
        how(group.hello())
    assert "waiting.hello() on 3 ranks, rank 1 has not answered" in listener.word
    assert f", at {__file__}:" in listener.word
    assert ": rank 1 of 'waiting' is stopped (T), in " in listener.word
    assert "hello (" in listener.word


def test_ranks_that_are_at_the_same_are_folded(group: Any) -> None:
    go_on = stop(group.pid().wait()[1])
    with Listener("stopped (T)", go_on) as listener:
        group.sleep(0.6).wait()
    assert re.search(
        r": ranks 0,2 of 'waiting' are in sleep \([^)]* s\); rank 1 of 'waiting' is stopped \(T\)", listener.word
    )


def test_a_rank_that_has_execed_is_named_with_what_it_is_now(group: Any) -> None:
    pid = group.pid().wait()[2]
    with Listener("exec'ed", lambda: os.kill(pid, signal.SIGKILL)) as listener, pytest.raises(WorkerDied):
        group[2].run("os.execv('/bin/sleep', ['sleep', '30'])").wait()
    assert "rank 2 of 'waiting' is exec'ed: it is sleep 30 now, in " in listener.word


def test_a_stream_that_brings_nothing_says_so(group: Any) -> None:
    go_on = stop(group.pid().wait()[0])
    with Listener("stopped (T)", go_on) as listener:
        next(iter(group[0].stream_and_clean_up(0)))
    assert "the next item of waiting.stream_and_clean_up(), rank 0 of 'waiting' has not ended" in listener.word


def test_a_daemon_that_does_not_answer_either_is_named(group: Any, daemon: psutil.Process) -> None:
    rank, node = stop(group.pid().wait()[1]), stop(daemon.pid)
    with Listener("the daemon of node 0 has not answered within 0.5 s", lambda: (rank(), node())):
        group.hello().wait()


def test_a_stopped_template_is_named_by_who_waits_for_a_launch(cluster: Cluster, template: int) -> None:
    go_on = stop(template)
    with Listener("stopped (T)", go_on) as listener:
        group = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0]), name="late")
        asyncio.run(wait_for(group))
    group.close()
    assert "late.__init__() on 2 ranks" in listener.word
    assert f"it needs 2 workers of 'late' on node 0: the worker template (pid {template}) is stopped" in listener.word


def test_a_get_and_a_put_say_what_is_in_the_channel(cluster: Cluster) -> None:
    async def use() -> None:
        async with Channel.create("slow", maxsize=1, cluster=cluster) as channel:
            with Listener("get() from channel 'slow'", lambda: channel.put("x", async_op=True)) as getting:
                await channel.get()
            await channel.put("y")
            with Listener("put() to channel 'slow'", lambda: channel.get(async_op=True)) as putting:
                await channel.put("z")
            await channel.get()
        assert "0 items under this key, 0 puts and 1 get wait; 1 process uses the channel" in getting.word
        assert "1 item under this key, 1 put and 0 gets wait" in putting.word

    asyncio.run(use())


def test_who_waits_for_a_name_hears_which_there_are(cluster: Cluster, group: Any) -> None:
    made: list[Channel] = []

    async def connect() -> None:
        async with Channel.create("known", cluster=cluster):
            with Listener("is not there", lambda: made.append(Channel.create("nobody", cluster=cluster))) as listener:
                await Channel.connect("nobody", cluster=cluster)
            assert "channel 'nobody' is not there; there are: known" in listener.word
            await made[0].close()
            later = Channel.connect("later", cluster=cluster)
            with Listener("is not there", lambda: made.append(Channel.create("later", cluster=cluster))) as listener:
                put = later.put("x")
                await later.get()
            assert "get() from channel 'later'" in listener.word
            await put
            await made[1].close()

    asyncio.run(connect())

    async def find() -> None:
        finding = asyncio.ensure_future(WorkerGroup.from_group_name(Plain, "nobody", cluster=cluster))
        with Listener("is not there", finding.cancel) as listener, pytest.raises(asyncio.CancelledError):
            await finding
        assert "group 'nobody' is not there; there are: waiting" in listener.word

    asyncio.run(find())


def test_a_worker_that_receives_says_what_its_peer_does(group: Any) -> None:
    go_on = stop(group.pid().wait()[1])
    word = group[0].receive("waiting", 1).wait()[0]
    go_on()
    assert "for recv() from rank 1 of group 'waiting'" in word
    assert ": rank 1 of 'waiting' is stopped (T)" in word
    word = group[0].receive("nobody", 0).wait()[0]
    assert "for recv() from rank 0 of group 'nobody'" in word
    assert "group 'nobody' is not there; there are: waiting" in word
    (word,) = group[1].share([("waiting", [0, 1])]).wait()
    assert "for broadcast() from rank 0 of group 'waiting'" in word
    assert "rank 0 of 'waiting' is idle" in word


def test_who_waits_for_a_lock_hears_who_has_it(cluster: Cluster) -> None:
    group = Sharing.create_group().launch(cluster, placement=NodePlacementStrategy([0, 0]), name="sharing")
    group[0].run("self.device_lock.acquire()").wait()
    (word,) = group[1].lock().wait()
    group.close()
    assert "for the device_lock of sharing:1" in word
    assert "taken by sharing:0" in word

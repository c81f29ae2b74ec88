"""Workers that use channels, for the tests of channels."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

from rlinf_async import Channel, ClosedError, Cluster, NodePlacementStrategy, Work, Worker
from rlinf_async._channels.remote_queue import RemoteQueue
from rlinf_async._channels.request import Put
from rlinf_async._channels.state.channel_keys import canonical_key
from rlinf_async._core import codec
from rlinf_async._core.frames import WAIT


class User(Worker):
    """Does with a channel what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[Any] = []
        self.channel: Any = None

    def pid(self) -> int:
        return os.getpid()

    def call(self, channel: Channel, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(channel, method)(*args, **kwargs)

    async def acall(self, channel: Channel, method: str, *args: Any, **kwargs: Any) -> Any:
        return await getattr(channel, method)(*args, **kwargs)

    def later(self, channel: Channel, method: str, *args: Any, **kwargs: Any) -> Any:
        work = getattr(channel, method)(*args, async_op=True, **kwargs)
        assert isinstance(work, Work)
        return work.wait()

    def put_all(self, channel: Channel, items: list[Any], **kwargs: Any) -> None:
        for item in items:
            channel.put(item, **kwargs)

    def get_all(self, channel: Channel, count: int, **kwargs: Any) -> list[Any]:
        return [channel.get(**kwargs) for _ in range(count)]

    async def iterate(self, channel: Channel) -> list[Any]:
        return [item async for item in channel]

    def loop_over(self, channel: Channel) -> list[Any]:
        return [item for item in channel]  # noqa: C416

    def create(self, *args: Any, **kwargs: Any) -> Channel:
        self.channel = self.create_channel(*args, **kwargs)
        return self.channel

    async def create_in_a_coroutine(self, name: str) -> Channel:
        channel = self.create_channel(name)
        channel.put("at once")
        return await channel

    def connect(self, *args: Any, **kwargs: Any) -> Any:
        return self.connect_channel(*args, **kwargs).get()

    def put_unchecked(self, channel: Channel, item: str, weights: list[Any]) -> list[str]:
        """What becomes of puts that this process should not have let through."""
        plain = codec.encode_plain(item)
        assert plain is not None
        key = canonical_key("default_queue")
        works = [
            channel._start(Put(channel.name, "default_queue", key, weight, plain, len(plain), WAIT, 60))
            for weight in weights
        ]
        return [_told(work) for work in works]

    async def put_unchecked_together(self, channel: Channel, item: str, weights: list[Any]) -> list[str]:
        """The same in one frame."""
        plain = codec.encode_plain(item)
        assert plain is not None
        key = canonical_key("default_queue")
        queue = _queue_of(channel)
        queue._batching._burst_until = time.monotonic() + 60
        works = [Put(channel.name, "default_queue", key, weight, plain, len(plain), WAIT, 60) for weight in weights]
        for work in works:
            channel._start(work)
        assert len(queue._batching.puts) == len(works)
        await asyncio.wait([asyncio.ensure_future(work) for work in works])
        return [_told(work) for work in works]

    # -- what is asked and not waited for -----------------------------------------------------------------------

    def ask(self, channel: Channel, method: str, *args: Any, **kwargs: Any) -> None:
        self.works.append(getattr(channel, method)(*args, async_op=True, **kwargs))

    def arrived(self) -> bool:
        """Returns once all that was asked has an answer, which nobody takes."""
        for work in self.works:
            gate = threading.Event()
            work._follow(gate.set)
            gate.wait()
        return True

    async def take(self) -> list[Any]:
        works, self.works = self.works, []
        return [await work for work in works]

    async def take_refusals(self) -> list[str]:
        works, self.works = self.works, []
        return [type(error).__name__ for error in await asyncio.gather(*works, return_exceptions=True)]

    def forget(self) -> None:
        self.works.clear()

    def keep(self, channel: Channel, name: str = "channel") -> None:
        """Does not touch it."""
        setattr(self, name, channel)

    def call_kept(self, name: str, method: str, *args: Any) -> str:
        try:
            return str(getattr(getattr(self, name), method)(*args))
        except Exception as error:
            return f"{type(error).__name__}: {str(error).split(';')[0]}"

    async def create_and_pass_on(self, name: str) -> Channel:
        """Does not know which channel it is when it leaves."""
        return self.create_channel(name)

    async def redelivered(self, channel: Channel) -> tuple[Any, bool]:
        work = channel.get()
        return await work, work.redelivered

    async def wait_and_give_up(self, channel: Channel, seconds: float) -> str:
        try:
            async with asyncio.timeout(seconds):
                return str(await channel.get())
        except TimeoutError:
            return "gave up"

    async def turn(self) -> None:
        """Begins only when what was called before waits."""

    async def cancelled_before_it_resumes(self, channel: Channel, method: str = "get", *args: Any) -> str:
        """The item has arrived when the task that waits for it is cancelled."""
        task = asyncio.current_task()
        assert task is not None
        work = getattr(channel, method)(*args)
        loop = asyncio.get_running_loop()
        main = threading.get_ident()

        def cancel() -> None:
            if threading.get_ident() == main:
                task.cancel()
            else:
                loop.call_soon_threadsafe(task.cancel)

        work._waiters.append(cancel)  # first: before the word that the item is here
        try:
            await work
        except asyncio.CancelledError:
            task.uncancel()
            return "cancelled"
        return "had it"

    async def put_in_a_crowd(self, channel: Channel, item: Any) -> None:
        """What is kept back for the end of the loop's turn, which a ``def`` method may be in the way of."""
        queue = _queue_of(channel)
        queue._batching._burst_until = time.monotonic() + 60
        self.works.append(channel.put(item))
        assert queue._batching.puts

    # -- puts that are done when they are sent ------------------------------------------------------------------

    def put_and_die(self, channel: Channel, items: list[Any]) -> None:
        self.put_all(channel, items)
        os.kill(os.getpid(), signal.SIGKILL)

    def put_past_a_stopped_daemon(self, channel: Channel, daemon: int, count: int, nbytes: int) -> int:
        """How many of so many puts were done while nobody read what they had said."""
        channel.put("first")
        os.kill(daemon, signal.SIGSTOP)
        try:
            works = [channel.put(bytes(nbytes), async_op=True) for _ in range(count)]
            done = sum(work.done() for work in works)
        finally:
            os.kill(daemon, signal.SIGCONT)
        for work in works:
            work.wait()
        return done

    async def put_until_closed(self, channel: Channel, in_flight: int, nbytes: int) -> tuple[list[int], bool]:
        """How many puts of each task have returned, and whether the others were refused."""
        counts = [0] * in_flight
        payload = bytes(nbytes)
        refused = True

        async def one(index: int) -> None:
            nonlocal refused
            try:
                while True:
                    await channel.put((self._rank, index, counts[index], payload))
                    counts[index] += 1
                    await asyncio.sleep(0)
            except ClosedError:
                pass
            except BaseException:
                refused = False
                raise

        async with asyncio.TaskGroup() as tasks:
            for index in range(in_flight):
                tasks.create_task(one(index))
        return counts, refused

    # -- many ---------------------------------------------------------------------------------------------------

    async def get_on_many_keys(self, channel: Channel, count: int) -> tuple[list[int], int]:
        """The keys in the order in which something came, and how many threads that took."""
        before = threading.active_count()
        order: list[int] = []

        async def one(key: int) -> None:
            assert await channel.get(key=key) == key
            order.append(key)

        async with asyncio.TaskGroup() as tasks:
            for key in range(count):
                tasks.create_task(one(key))
            await asyncio.sleep(0)
            await channel.put("waiting", key="ready")
            most = threading.active_count()
        return order, most - before

    async def produce(self, channel: Channel, count: int, nbytes: int, in_flight: int) -> None:
        import torch

        numbers = iter(range(count))

        async def one() -> None:
            for number in numbers:
                await channel.put((number, torch.full((nbytes,), number % 251, dtype=torch.uint8)))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(in_flight):
                tasks.create_task(one())


def _queue_of(channel: Channel) -> RemoteQueue:
    channel._bound()
    assert channel._replicas is not None
    assert channel._roster is not None
    return channel._replicas._queue(channel._roster["nodes"][0])


def _told(put: Put) -> str:
    try:
        put.wait()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def launch_mortal(cluster: Cluster, ranks: list[int], name: str = "mortal") -> Any:
    return User.create_group().launch(cluster, placement=NodePlacementStrategy(ranks), name=name).wait_ready()

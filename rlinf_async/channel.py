"""``Channel``, users' API of a queue in daemons, or local in a process: create, connect, put, get, batch, close."""

from __future__ import annotations

import functools
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, overload

from rlinf_async._channels import registration
from rlinf_async._channels.arguments import RequestArguments
from rlinf_async._channels.leasing import Lease
from rlinf_async._channels.local_queue import LocalQueue
from rlinf_async._channels.queue_errors import QueueEnd
from rlinf_async._channels.reading import Items
from rlinf_async._channels.replicas import Replicas
from rlinf_async._channels.request import Confirmation, Get, Put, QueueRequest
from rlinf_async._channels.state.channel_keys import key_of
from rlinf_async._channels.state.queue_counts import QueueCounts
from rlinf_async._client import emulated_links, registry
from rlinf_async._client.client import NodeClient
from rlinf_async._core import process
from rlinf_async._core.argument_checks import MAX_INTEGER, seconds, switch, whole_number
from rlinf_async._core.names import check_channel_name
from rlinf_async._recorder import recording
from rlinf_async._recorder.state.event_ring import EventKind
from rlinf_async._waits.thread_gate import may_wait, must_await
from rlinf_async.work import BoolOrWork, IntOrWork, NoneOrWork, Work, blocking

_DEFAULT_KEY: Final = "default_queue"
_PUT: Final = EventKind.PUT
_GET: Final = EventKind.GET


@dataclass(order=True)
class WeightedItem:
    """An item as ``peek_all`` shows it; ordered by weight."""

    weight: int
    item: Any = field(compare=False)


class Channel:
    """A first-in-first-out queue that any process of the run may put into and get from, by name or as an argument.

    A channel lives in the daemon of one node, not in any worker: an accepted item outlives its producer.  A consumer
    that is cancelled or killed before its ``get`` returns leaves the item to the next one, at its old place; from then
    on the item is the consumer's, and is never delivered again.  ``lease`` keeps items for the channel until a block
    ends well.  Items that one producer puts under one key are delivered in that order.  Contents do not survive the
    node that holds them.

    Names are for ``create`` and ``connect``; from then on an object means one channel for good.  Once that is closed, a
    channel that is made again under its name is another one.

    A put into a channel with ``maxsize`` or ``max_bytes`` is done when the channel has accepted the item.  Without a
    bound it is done when the item is on its way, if the producer runs on the channel's node: the daemon reads what a
    killed process has sent.  An item that comes after a close is lost, and the next operation of its producer there
    says so.

    In a coroutine the methods return a ``Work``, started already, to be awaited; elsewhere they block and return the
    result, unless ``async_op=True``.  To type checkers that is ``Any``, and with ``async_op=True`` a ``Work``.

    An item must not be changed until its put is done.  Tensors on a GPU travel by way of the CPU and arrive on the
    consumer's current device; the channel holds a copy, so the producer may free its own as soon as the put is done.

    Example:
        channel = Channel.create("obs", maxsize=8)
        group.run(channel)                       # as an argument, or Channel.connect("obs") in the worker

        await channel.put(obs)                   # in a worker's coroutine; with key=rank: get(key=rank) takes it
        async for obs in channel: ...            # until somebody calls channel.close() and it is empty
        for obs in channel: ...                  # the same in a def method or a script

    Replay buffer:
        Producers put transitions; the learner moves what has come into a buffer of its own, which forgets the oldest,
        and never waits for more than the first ones.  At the end of the channel ``EndOfChannel`` ends it::

            replay = collections.deque(await channel.get_many(1_000), maxlen=100_000)
            while True:
                replay.extend(await channel.drain())
                train(random.sample(replay, 256))
    """

    __contains__ = None  # it would take items out in search of one
    _noun = "channel"

    def __init__(self, name: str, maxsize: int, client: NodeClient | None, local: LocalQueue | None = None) -> None:
        """Not for users: ``create`` or ``connect``."""
        self._name = name
        self._maxsize = maxsize
        self._client = client
        self._local = local
        self._roster: registration.Roster | None = None
        self._promise: registration.Promise | None = None
        """What it is known by to those whom it was passed on to before it had a number."""
        self._replicas: Replicas | None = None
        self._opening: Work[None] | None = None
        self._closing: Work[None] | None = None
        self._discarding = False
        self._is_known = False
        self._why = ""
        self._arguments = RequestArguments(name, None if local is None else local.max_bytes)
        _channels.add(self)

    def __repr__(self) -> str:
        if self._local is not None:
            where = "this process"
        elif self._roster is None:
            where = "opening"
        else:
            nodes = self._roster["nodes"]
            where = f"node {nodes[0]}" if len(nodes) == 1 else f"{len(nodes)} nodes"
        bound = f" | maxsize {self._maxsize}" if self._maxsize else ""
        state = " | closed" if self._closing is not None else ""
        return f"<{self._noun.title()} {self._name} [{where}{bound}{state}]>"

    def __str__(self) -> str:
        """What is queued under the default key; in a coroutine, where nothing may block, the channel's ``repr``."""
        return repr(self) if must_await() else str(self.peek_all())

    # -- making -------------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        name: str,
        maxsize: int = 0,
        distributed: bool = False,
        node_rank: int = 0,
        local: bool = False,
        disable_distributed_log: bool = True,
        *,
        max_bytes: int = 0,
        cluster: registry.HasClient | None = None,
    ) -> Channel:
        """A new channel; if there is one of that name, a warning, and that one.

        In a coroutine it returns at once, and ``await channel`` waits until it exists; what is put meanwhile follows
        in order.  A channel that a driver has made lives until it or the cluster is closed, a worker's until it or the
        worker's group is closed.

        Args:
            name: what others connect by; free again once the channel is closed.
            maxsize: items that each key may hold; 0 is without bound.
            distributed: one queue on every node; a key lives where it was first touched.
            node_rank: the node that holds the queue, where it is not distributed.
            local: a queue in this process only; each process that it is passed to has its own, and a forked child,
                which would have a copy, none.
            disable_distributed_log: RLinf's; a channel has no process that could log.
            max_bytes: size in bytes of all items together, beyond which puts wait; by default half of the memory of
                the node, or of its container.
            cluster: whose channel it is, where several clusters are open in this process.

        Raises:
            RuntimeError: no ``cluster=`` was given, and not exactly one is open in this process.
            ConfigError: there is no such node.
            TypeError, ValueError: a size is no whole number, or is negative; ``distributed`` or ``local`` is no bool;
                the name is no text, or has more than 4096 bytes.
        """
        check_channel_name(name)
        maxsize = max(0, whole_number(maxsize, "maxsize", f"channel '{name}'", -MAX_INTEGER))
        max_bytes = whole_number(max_bytes, "max_bytes", f"channel '{name}'")
        distributed = switch(distributed, "distributed", f"channel '{name}'", "node_rank")
        node_rank = whole_number(node_rank, "node_rank", f"channel '{name}'")
        local = switch(local, "local", f"channel '{name}'", "max_bytes")
        if local:
            return cls(name, maxsize, None, LocalQueue(uuid.uuid4().hex, name, maxsize, max_bytes))
        client = registry.client_of(cluster)
        channel = cls(name, maxsize, client)
        channel._open(
            client,
            registration.create(
                client, name, maxsize=maxsize, max_bytes=max_bytes, distributed=distributed, node_rank=node_rank
            ),
        )
        return channel

    Create = create

    @classmethod
    def connect(
        cls,
        name: str,
        current_worker: Any = None,
        *,
        cluster: registry.HasClient | None = None,
        timeout: float | None = None,
    ) -> Channel:
        """The channel of that name; waits for it if it does not exist yet.

        In a coroutine it returns at once, and ``await channel`` waits.

        Args:
            current_worker: RLinf's; a process knows which worker it is.
            cluster: as in ``create``.
            timeout: seconds, by default ``RLINF_NAME_TIMEOUT_S``; 0 finds a channel that exists.

        Raises:
            DeadlineExceeded: there was no such channel in time; lists those that there are.
            ClosedError: the channel of that name is closed.
            RuntimeError: as in ``create``.
            TypeError, ValueError: the timeout is negative; the name is none that ``create`` takes.
        """
        if isinstance(current_worker, int | float):
            raise TypeError(f"connect() to channel '{name}': current_worker is {current_worker!r}: write timeout=")
        check_channel_name(name)
        if timeout is not None:
            timeout = seconds(timeout, f"connect() to channel '{name}'")
        client = registry.client_of(cluster)
        channel = cls(name, 0, client)
        channel._open(client, registration.find(client, name, timeout))
        return channel

    def _open(self, client: NodeClient, opening: Coroutine[Any, Any, registration.Roster | None]) -> None:
        """Begins to find out which channel it is; None says that it is closed already."""
        replicas = Replicas(client)

        async def open_replicas() -> None:
            roster = await opening
            self._take(client, roster)
            if roster is None:
                replicas.end(QueueEnd.of_closed(self._name, noun=self._noun))
            else:
                replicas.open(roster)

        def opened() -> None:
            error = work._error
            if error is not None:
                self._take(client, None, str(error))
                replicas.end(QueueEnd.of_lost(error))

        self._opening = replicas.opening = work = client.run(open_replicas(), what=f"{self._noun} '{self._name}'")
        self._replicas, self._client = replicas, client
        work._follow(opened)
        if not must_await():
            work.wait()

    def _take(self, client: NodeClient, roster: registration.Roster | None, why: str = "") -> None:
        """It is known which channel it is, or that it is none, and why it could not be made."""
        with _passing_on:
            self._roster, self._is_known, self._why = roster, True, why
            if self._promise is not None and self._promise["maker"] == client.endpoint:
                registration.keep(client, self._promise, roster, why)
        if roster is not None:
            self._maxsize = roster["maxsize"]

    def __await__(self) -> Generator[Any, Any, Channel]:
        """Waits until the channel exists.

        Raises:
            Exception: why it does not.
        """
        if self._opening is not None:
            yield from self._opening.async_wait().__await__()
        return self

    async def __aenter__(self) -> Channel:
        return await self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- facts --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name that others connect by."""
        return self._name

    @property
    def maxsize(self) -> int:
        """Items that each key may hold; 0 is without bound."""
        return self._maxsize

    @property
    def is_local(self) -> bool:
        """Whether it is a queue in this process only."""
        return self._local is not None

    # -- in -----------------------------------------------------------------------------------------------------

    def put(
        self,
        item: Any,
        weight: int = 0,
        key: Any = _DEFAULT_KEY,
        async_op: bool = False,
        *,
        timeout: float | None = None,
    ) -> NoneOrWork:
        """Puts an item behind what is queued under its key, and waits while there is no room for it.

        Args:
            weight: counted by ``get_batch``: a whole number, not negative.
            key: anything hashable; each has a queue of its own.
            async_op: return a ``Work`` where the call would block.
            timeout: seconds; then the item is withdrawn.  With 0 it goes in only if there is room at once.

        Returns:
            None once the item is accepted, or on its way to a channel without a bound on this node; in a coroutine or
            with ``async_op`` a ``Work`` of it.

        Raises:
            DeadlineExceeded: it was full for ``timeout`` seconds; the text says so if the item may be in the channel.
            ClosedError: the channel is closed, or was before an earlier item came.
            NodeLost: its node is gone; whether the item was accepted is not known.
            SerializationError: the item cannot travel.
            ValueError: the item alone is larger than ``max_bytes``; at once, the weight or the timeout is negative.
            TypeError: at once, the weight is no whole number, the timeout no number or the key not hashable.
        """
        accepted: NoneOrWork = _finish(self._start(self._arguments.put(item, weight, key, timeout)), async_op)
        return accepted

    def put_nowait(self, item: Any, weight: int = 0, key: Any = _DEFAULT_KEY) -> Any:
        """As ``put``, but where there is no room at once it raises ``asyncio.QueueFull``; in a coroutine, awaited."""
        return _finish(self._start(self._arguments.put(item, weight, key, None, nowait=True)), False)

    # -- out ----------------------------------------------------------------------------------------------------

    @overload
    def get(self, key: Any = _DEFAULT_KEY, *, async_op: Literal[True], timeout: float | None = None) -> Work[Any]: ...
    @overload
    def get(self, key: Any = _DEFAULT_KEY, async_op: bool = False, *, timeout: float | None = None) -> Any: ...
    def get(self, key: Any = _DEFAULT_KEY, async_op: bool = False, *, timeout: float | None = None) -> Any:
        """Takes the next item of a key, and waits while there is none.

        Args:
            async_op: return a ``Work`` where the call would block.
            timeout: seconds; an item that comes later stays in the channel.  With 0 an item that is there is taken.

        Returns:
            The item, in a coroutine or with ``async_op`` a ``Work`` of it.

        Raises:
            DeadlineExceeded: there was none for ``timeout`` seconds.
            EndOfChannel: the channel is closed, and nothing is left under this key.
            NodeLost: its node is gone, and the contents with it.
            TypeError, ValueError: at once, the timeout is no number or negative, or the key not hashable.
        """
        return _finish(self._start(self._arguments.get(key, timeout)), async_op)

    def get_nowait(self, key: Any = _DEFAULT_KEY) -> Any:
        """As ``get``, but where there is nothing it raises ``asyncio.QueueEmpty``; in a coroutine, awaited."""
        return _finish(self._start(self._arguments.get_nowait(key)), False)

    @overload
    def get_batch(
        self,
        target_weight: int = 0,
        key: Any = _DEFAULT_KEY,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work[list[Any]]: ...
    @overload
    def get_batch(
        self,
        target_weight: int = 0,
        key: Any = _DEFAULT_KEY,
        async_op: bool = False,
        *,
        timeout: float | None = None,
    ) -> Any: ...
    def get_batch(
        self,
        target_weight: int = 0,
        key: Any = _DEFAULT_KEY,
        async_op: bool = False,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Takes items in order until they weigh ``target_weight`` together, or the next one would be too much.

        It takes one at least, and waits for more as long as it has less; at the end of the channel it takes what
        there is.

        Args:
            target_weight: a whole number, not negative.
            async_op: return a ``Work`` where the call would block.
            timeout: seconds; what had been gathered by then stays in the channel.  With 0 a batch is taken that can be
                had at once.

        Returns:
            A list, in a coroutine or with ``async_op`` a ``Work`` of it.

        Raises:
            ValueError: the next item alone weighs more than ``target_weight``, or what it has gathered fills
                ``max_bytes``.  The items stay in the channel.
            TypeError, ValueError: at once, the weight is no whole number, or is negative.
            Exception: as ``get``.
        """
        return _finish(self._start(self._arguments.get_batch(target_weight, key, timeout)), async_op)

    @overload
    def get_many(
        self,
        n: int,
        key: Any = _DEFAULT_KEY,
        *,
        async_op: Literal[True],
        wait: bool = True,
        timeout: float | None = None,
    ) -> Work[list[Any]]: ...
    @overload
    def get_many(
        self,
        n: int,
        key: Any = _DEFAULT_KEY,
        async_op: bool = False,
        *,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Any: ...
    def get_many(
        self,
        n: int,
        key: Any = _DEFAULT_KEY,
        async_op: bool = False,
        *,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Any:
        """Takes the next ``n`` items of a key in order, and waits while there are fewer.

        At the end of the channel it takes what is left, and only after that ``EndOfChannel`` is raised.

        Args:
            n: at least 1; items count one each, whatever they weigh.
            async_op: return a ``Work`` where the call would block.
            wait: with False it takes what is there at once, at most ``n`` items and perhaps none.
            timeout: seconds; what had been gathered by then stays in the channel.  With 0 ``n`` items are taken that
                are there at once.  Only where it waits.

        Returns:
            A list, in a coroutine or with ``async_op`` a ``Work`` of it.

        Raises:
            EndOfChannel: the channel is closed, and nothing is left under this key; also with ``wait=False``.
            ValueError: what it has gathered fills ``max_bytes``.  The items stay in the channel.
            TypeError, ValueError: at once, ``n`` is no whole number, or less than 1; ``wait`` is no bool, or False with
                a ``timeout``.
            Exception: as ``get``.
        """
        return _finish(self._start(self._arguments.get_many(n, key, wait, timeout)), async_op)

    @overload
    def drain(self, key: Any = _DEFAULT_KEY, *, async_op: Literal[True]) -> Work[list[Any]]: ...
    @overload
    def drain(self, key: Any = _DEFAULT_KEY, async_op: bool = False) -> Any: ...
    def drain(self, key: Any = _DEFAULT_KEY, async_op: bool = False) -> Any:
        """Takes everything that is queued under a key, in order, perhaps nothing; as many as ``qsize`` would say.

        Returns, Raises:
            As ``get_many`` with ``wait=False``.
        """
        return _finish(self._start(self._arguments.drain(key)), async_op)

    def items(self, key: Any = _DEFAULT_KEY, *, window: int | None = None) -> Items:
        """The items of a key until the channel is closed and empty: ``async for``, or ``for`` in ``def`` methods.

        The loop asks for several items at once, and has each when it begins with it.  Items that it has not begun with
        go back to their places when the loop ends, or its process.

        Args:
            window: items that are asked for at once, at least 1; by default 16 where this loop is the only consumer of
                the channel, and 1 where there are several.

        Raises:
            TypeError, ValueError: at once, the window is no whole number, or less than 1.
        """
        reading = self._arguments.read(key, window)
        return Items(lambda reader: self._start(self._arguments.next_of(reading, reader)), self._name)

    def __aiter__(self) -> Items:
        """The items of the default key, until the channel is closed and empty."""
        return self.items()

    def __iter__(self) -> Iterator[Any]:
        """The same where no loop runs.

        Raises:
            TypeError: one does.
        """
        return iter(self.items())

    def lease(self, n: int = 1, key: Any = _DEFAULT_KEY, *, timeout: float | None = None) -> Lease:
        """The next ``n`` items of a key, which stay the channel's until the block that has them ends well.

        If the block ends by an error, or its process dies, they go back to their places.  A block that ends well waits
        until the channel has confirmed that they are its own.  So they are never given to another consumer as well,
        whatever happens to the network or to the process meanwhile::

            async with channel.lease(4) as items:     # `with` in a def method or a script
                for item in items:
                    await use(item)
                    await items.done()                # this one is; the others still go back at an error

        It waits for the items as ``get_many`` does.

        Args:
            n: at least 1; at the end of the channel fewer.
            timeout: seconds from the moment that the channel hands them out; after these they go back, and the end of
                the block raises ``LeaseLost``.

        Raises:
            LeaseLost: at the end of the block, or from ``done()``: the lease has timed out.
            NodeLost: at the same places: the channel's node is gone.
            TypeError, ValueError: at once, ``n`` or the timeout is none; a local channel has no timeouts.
            Exception: at the beginning of the block, as ``get_many``.
        """
        get = self._arguments.lease(n, key, timeout)
        return Lease(lambda: self._start(get), lambda lease, count: self._start(Confirmation(lease, count)))

    # -- questions ----------------------------------------------------------------------------------------------

    def qsize(self, key: Any = _DEFAULT_KEY) -> IntOrWork:
        """Items queued under a key; in a coroutine a ``Work`` of it, as of all these."""
        size: IntOrWork = self._ask("qsize()", key, "size", lambda found: found[0])
        return size

    def empty(self, key: Any = _DEFAULT_KEY) -> BoolOrWork:
        """Whether nothing is queued under a key."""
        return self._ask("empty()", key, "size", lambda found: not found[0])

    def full(self, key: Any = _DEFAULT_KEY) -> BoolOrWork:
        """Whether a put would wait."""
        return self._ask("full()", key, "size", lambda found: found[1])

    def peek_all(self, key: Any = _DEFAULT_KEY) -> Any:
        """What is queued under a key, in order, as ``WeightedItem``s; it stays there."""
        return self._ask("peek_all()", key, "peek", _show)

    def stats(self) -> Any:
        """Count what has become of the items: put = got + dropped + present.

        An item counts as put when the channel has accepted it, and as got when its consumer has it; what a loop has
        not begun with, or a lease holds, is present.

        Returns:
            An object with ``put``, ``got``, ``dropped`` (a dict by reason), ``present``, and ``keys``: by key, of those
            that have some present, (put, got, present) since it was last empty.  In a coroutine a ``Work`` of it.

        Raises:
            ClosedError: the channel is closed, and everything in it, or in its queue on some node, has been taken.
            NodeLost: a node of it is lost.
        """
        if self._local is not None:
            return blocking(_done(_named(self._local.counts())))
        client = self._bound()
        return blocking(client.run(self._count(client), what=f"the counts of channel '{self._name}'", abandonable=True))

    async def _count(self, client: NodeClient) -> QueueCounts:
        if self._opening is not None:
            await self._opening.async_wait()
        assert self._replicas is not None
        self._replicas.check()
        assert self._roster is not None
        self._replicas.flush()
        return _named(await registration.count(client, self._roster))

    def _ask(self, verb: str, key: Any, word: str, show: Callable[[Any], Any]) -> Any:
        return _finish(self._start(self._arguments.question(verb, key, word, show)), False)

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self, *, discard: bool = False) -> Any:
        """No more puts: those that wait for room end with ``ClosedError``.  Gets go on until what is in the channel has
        been taken, and then end with ``EndOfChannel``.  Its name is free.

        Anybody may close a channel.  Idempotent.  In a coroutine it returns a ``Work`` to await, elsewhere it blocks.
        Items whose puts were done before are in the channel when it is done.  Items that come later are lost, and their
        producers hear so.

        Args:
            discard: throw away what is in the channel, too: gets end at once, those that wait are woken.  A channel
                that was closed without may be closed so afterwards.  Items that a get has brought already are its
                consumer's.

        Raises:
            TypeError: ``discard`` is no bool.
        """
        return blocking(self._close(discard))

    async def aclose(self, *, discard: bool = False) -> None:
        """As ``close``, in a coroutine."""
        await self._close(discard).async_wait()

    def _close(self, discard: bool = False) -> Work[None]:
        if not isinstance(discard, bool):
            raise TypeError(f"close(discard=) of {self._noun} {self._name!r} takes True or False, got {discard!r}")
        if self._closing is None or (discard and not self._discarding):
            self._discarding = discard
            if self._local is not None:
                self._local.close(discard)
                self._closing = _done()
            elif (client := self._bound()).closed is not None:
                self._closing = _done()  # and it has ended with its cluster
            else:
                assert self._replicas is not None
                self._replicas.flush()
                self._closing = client.run(
                    self._close_queues(client, discard), what=f"closing {self._noun} '{self._name}'"
                )
        return self._closing

    async def _close_queues(self, client: NodeClient, discard: bool) -> None:
        if self._opening is not None:
            try:
                await self._opening.async_wait()
            except Exception:
                return  # there never was one
        if self._roster is None:
            return
        assert self._replicas is not None
        if emulated_links.here is not None:
            await emulated_links.here.emptied(("channel", self._name))
        await self._replicas.pinned()
        self._replicas.flush()
        await registration.close(client, self._roster, discard=discard)

    # -- travelling ---------------------------------------------------------------------------------------------

    def __reduce__(self) -> Any:
        if self._local is not None:
            local = _local_queues.setdefault(self._local.token, self._local)
            return _local_again, (local.token, self._name, self._maxsize, local.max_bytes)
        with _passing_on:
            if self._roster is None and self._promise is None:
                client = self._bound()
                self._promise = registration.promise(client)
                if self._is_known:
                    registration.keep(client, self._promise, None, self._why)
            return _again, (self._name, self._maxsize, self._roster, self._promise if self._roster is None else None)

    def _bound(self) -> NodeClient:
        """This process's connection to the channel's run, which one that has travelled looks for when it is used."""
        client = self._client
        if client is not None and client.pid != process.pid:
            raise process.forked(f"{self._noun} '{self._name}'", client.pid)
        if client is None:
            what = f"{self._noun} '{self._name}'"
            if self._roster is not None:
                client = registry.active_in(self._roster["run"], what)
                replicas = Replicas(client)
                replicas.open(self._roster)
                self._replicas, self._client = replicas, client
            else:
                assert self._promise is not None
                client = registry.active_in(self._promise["run"], what)
                self._open(client, registration.redeem(client, self._promise, self._name, self._noun))
        return client

    # -- inside -------------------------------------------------------------------------------------------------

    def _start(self, request: Any) -> Any:
        if recording.admits():  # not isinstance(): of an abstract base class that takes a microsecond
            if type(request) is Put:
                request._event = recording.begin(_PUT, self._name, request.nbytes)
            elif type(request) is Get:
                request._event = recording.begin(_GET, self._name)
        if self._local is not None:
            self._local.start(request)
        else:
            if self._replicas is None:
                self._bound()
            replicas = self._replicas
            assert replicas is not None
            if emulated_links.here is not None and isinstance(request, Put):
                # As if the channel were a worker of its name, rank 0.
                depart = functools.partial(replicas.start, request)
                emulated_links.here.send(("channel", self._name), [f"{self._name}:0"], request.nbytes, depart)
            else:
                replicas.start(request)
        return request


def _done(value: Any = None) -> Work[Any]:
    work: Work[Any] = Work()
    work._settle(value)
    return work


def _named(counts: QueueCounts) -> QueueCounts:
    return counts.by({key: key_of(key) for key in counts.keys})


def _show(items: list[tuple[int, Callable[[], Any]]]) -> list[WeightedItem]:
    return [WeightedItem(weight, make()) for weight, make in items]


def _finish(request: QueueRequest[Any], async_op: bool) -> Any:
    """The request itself where it is to be awaited, else its result."""
    if async_op or not may_wait():
        return request
    try:
        return request.wait()
    except BaseException:
        if not request.done():  # interrupted
            request._abandon()
        raise


def _again(
    name: str, maxsize: int, roster: registration.Roster | None, promise: registration.Promise | None = None
) -> Channel:
    """A channel that was passed to this process."""
    channel = Channel(name, maxsize, None)
    channel._roster, channel._promise = roster, promise
    return channel


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child no channel has a way to its queues: who uses one asks ``_bound``, which says why."""
    for channel in list(_channels):
        channel._replicas = None
    global _passing_on
    _passing_on = threading.RLock()
    _local_queues.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


_passing_on = threading.RLock()
"""Held where a channel is passed on, and where it becomes known which one it is: so each promise is kept."""


_local_queues: dict[str, LocalQueue] = {}
"""Those that have travelled, by token; whatever one process is passed of a local channel is one queue there."""


def _local_again(token: str, name: str, maxsize: int, max_bytes: int) -> Channel:
    queue = _local_queues.get(token)
    if queue is None:
        queue = _local_queues.setdefault(token, LocalQueue(token, name, maxsize, max_bytes))
    return Channel(name, maxsize, None, queue)

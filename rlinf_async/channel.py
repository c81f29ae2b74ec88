"""``Channel``, the user API of a queue, in daemons or local: create, connect, put, get, batch, close."""

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
from rlinf_async._channels.reading import ChannelItems
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
    """Item in the result of ``peek_all``; ordered by weight."""

    weight: int
    item: Any = field(compare=False)


# RLinf's channel interface has more than 30 methods, with overloads. The implementation is in ``_channels``.
class Channel:
    """First-in-first-out queue that any process of the run may put into and get from, by name or as an argument.

    A channel lives in the daemon of one node, not in any worker: an accepted item outlives its producer. A consumer
    that is cancelled or killed before its ``get`` returns leaves the item to the next one, at its old place; from then
    on the item is the consumer's, and is never delivered again. ``lease`` keeps items in the channel until a block ends
    without an error. Items that one producer puts under one key are delivered in that order. Contents do not survive
    the node that holds them.

    Names serve ``create`` and ``connect`` only: an object always means the same channel. A new channel with the name of
    a closed one is a different channel.

    A put into a channel with ``maxsize`` or ``max_bytes`` is done when the channel has accepted the item. Without a
    bound it is done when the item has been sent, if the producer runs on the channel's node: the daemon reads
    everything that a killed process has sent. An item that arrives after a close is lost, and the next operation of its
    producer on the channel reports that.

    In a coroutine the methods start immediately and return a ``Work`` to await; elsewhere they block and return the
    result, unless ``async_op=True``. For type checkers the result is ``Any``, and with ``async_op=True`` a ``Work``.

    An item must not be changed until its put is done. Tensors on a GPU travel through CPU memory and arrive on the
    consumer's current device; the channel holds a copy, so the producer may free its own as soon as the put is done.

    Example:
        channel = Channel.create("obs", maxsize=8)
        group.run(channel)                       # as an argument, or Channel.connect("obs") in the worker

        await channel.put(obs)                   # in a worker's coroutine; with key=rank: get(key=rank) takes it
        async for obs in channel: ...            # until channel.close() was called and it is empty
        for obs in channel: ...                  # the same in a def method or a script

    Replay buffer:
        Producers put transitions; the learner moves them into its own buffer, which drops the oldest, and waits only
        for the first ones. At the end of the channel ``EndOfChannel`` ends the loop::

            replay = collections.deque(await channel.get_many(1_000), maxlen=100_000)
            while True:
                replay.extend(await channel.drain())
                train(random.sample(replay, 256))
    """

    __contains__ = None  # a membership test would consume items
    _noun = "channel"

    def __init__(self, name: str, maxsize: int, client: NodeClient | None, local: LocalQueue | None = None) -> None:
        """Make a channel object. Users call ``create`` or ``connect``."""
        self._name = name
        self._maxsize = maxsize
        self._client = client
        self._local = local
        self._roster: registration.Roster | None = None
        self._promise: registration.Promise | None = None
        """Represents the channel in other processes that received it before it had a number."""
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
        """Return the items queued under the default key; in a coroutine, which may not block, the channel's
        ``repr``."""
        return repr(self) if must_await() else str(self.peek_all())

    # -- creation -----------------------------------------------------------------------------------------------

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
        """Create a channel; if one with that name exists, log a warning and connect to it.

        In a coroutine it returns immediately, and ``await channel`` waits until the channel exists; earlier puts are
        sent in order. A channel created by a driver lives until it or the cluster is closed, a channel created by a
        worker until it or the worker's group is closed.

        Args:
            name: name for ``connect``; free again once the channel is closed.
            maxsize: limit of items per key; 0 means no bound.
            distributed: one queue on every node; a key lives on the node that used it first.
            node_rank: the node that holds the queue, unless it is distributed.
            local: a queue in this process only; each process that receives it has its own queue. A forked child has
                none, because its copy would be inconsistent.
            disable_distributed_log: accepted for RLinf's programs and ignored: a channel has no process that could log.
            max_bytes: size in bytes of all items together, beyond which puts wait; by default half of the memory of
                the node, or of its container.
            cluster: cluster of the channel, if several are open in this process.

        Raises:
            RuntimeError: no ``cluster=`` was given, and not exactly one is open in this process.
            ConfigError: there is no such node.
            TypeError, ValueError: a size is not a whole number, or is negative; ``distributed`` or ``local`` is not a
                bool; the name is not a text, or has more than 4096 bytes.
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
        """Connect to the channel of that name; wait for it if it does not exist yet.

        In a coroutine it returns at once, and ``await channel`` waits.

        Args:
            current_worker: accepted for RLinf's programs and ignored: a process knows which worker it is.
            cluster: as in ``create``.
            timeout: seconds, by default ``RLINF_NAME_TIMEOUT_S``; 0 finds only a channel that exists.

        Raises:
            DeadlineExceeded: the channel did not exist in time; the text lists the channels that exist.
            ClosedError: the channel of that name is closed.
            RuntimeError: as in ``create``.
            TypeError, ValueError: the timeout is negative; the name is not valid for ``create``.
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
        with _passing_on:
            self._roster, self._is_known, self._why = roster, True, why
            if self._promise is not None and self._promise["maker"] == client.endpoint:
                registration.keep(client, self._promise, roster, why)
        if roster is not None:
            self._maxsize = roster["maxsize"]

    def __await__(self) -> Generator[Any, Any, Channel]:
        """Wait until the channel exists.

        Raises:
            Exception: the reason why it does not.
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

    # -- properties ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the channel, for ``connect``."""
        return self._name

    @property
    def maxsize(self) -> int:
        """Limit of items per key; 0 means no bound."""
        return self._maxsize

    @property
    def is_local(self) -> bool:
        """True for a queue in this process only."""
        return self._local is not None

    # -- put ----------------------------------------------------------------------------------------------------

    def put(
        self,
        item: Any,
        weight: int = 0,
        key: Any = _DEFAULT_KEY,
        async_op: bool = False,
        *,
        timeout: float | None = None,
    ) -> NoneOrWork:
        """Append an item to the queue of its key; wait while the queue is full.

        Args:
            weight: weight for ``get_batch``: a whole number, not negative.
            key: any hashable value; each key has a queue of its own.
            async_op: return a ``Work`` where the call would block.
            timeout: seconds; then the item is withdrawn. With 0 it is put only if there is room at once.

        Returns:
            None once the item is accepted, or sent to a channel without a bound on this node; in a coroutine or
            with ``async_op`` a ``Work`` for it.

        Raises:
            DeadlineExceeded: it was full for ``timeout`` seconds; the text says so if the item may be in the channel.
            ClosedError: the channel is closed, or was closed before an earlier item arrived.
            NodeLost: its node is lost; it is unknown whether the item was accepted.
            SerializationError: the item cannot travel.
            ValueError: the item alone is larger than ``max_bytes``; at once, the weight or the timeout is negative.
            TypeError: at once, the weight is not a whole number, the timeout not a number or the key not hashable.
        """
        accepted: NoneOrWork = _finish(self._start(self._arguments.put(item, weight, key, timeout)), async_op)
        return accepted

    def put_nowait(self, item: Any, weight: int = 0, key: Any = _DEFAULT_KEY) -> Any:
        """Put an item, or raise ``asyncio.QueueFull`` if there is no room now; in a coroutine, awaited."""
        return _finish(self._start(self._arguments.put(item, weight, key, None, nowait=True)), False)

    # -- get ----------------------------------------------------------------------------------------------------

    @overload
    def get(self, key: Any = _DEFAULT_KEY, *, async_op: Literal[True], timeout: float | None = None) -> Work[Any]: ...
    @overload
    def get(self, key: Any = _DEFAULT_KEY, async_op: bool = False, *, timeout: float | None = None) -> Any: ...
    def get(self, key: Any = _DEFAULT_KEY, async_op: bool = False, *, timeout: float | None = None) -> Any:
        """Take the next item of a key; wait until one is available.

        Args:
            async_op: return a ``Work`` where the call would block.
            timeout: seconds; a later item stays in the channel. With 0 only an available item is taken.

        Returns:
            The item, in a coroutine or with ``async_op`` a ``Work`` for it.

        Raises:
            DeadlineExceeded: no item was available for ``timeout`` seconds.
            EndOfChannel: the channel is closed, and nothing is left under this key.
            NodeLost: its node is lost, and the contents with it.
            TypeError, ValueError: at once, the timeout is not a number or negative, or the key not hashable.
        """
        return _finish(self._start(self._arguments.get(key, timeout)), async_op)

    def get_nowait(self, key: Any = _DEFAULT_KEY) -> Any:
        """Take the next item, or raise ``asyncio.QueueEmpty`` if there is none; in a coroutine, awaited."""
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
        """Take items in order until they weigh ``target_weight`` together, or the next one would exceed it.

        It takes at least one item, and waits for more while they weigh less; at the end of the channel it takes all
        that remain.

        Args:
            target_weight: a whole number, not negative.
            async_op: return a ``Work`` where the call would block.
            timeout: seconds; items gathered by then stay in the channel. With 0 only an available batch is taken.

        Returns:
            A list, in a coroutine or with ``async_op`` a ``Work`` for it.

        Raises:
            ValueError: the next item alone weighs more than ``target_weight``, or the gathered items fill
                ``max_bytes``. The items stay in the channel.
            TypeError, ValueError: at once, the weight is not a whole number, or is negative.
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
        """Take the next ``n`` items of a key in order; wait while there are fewer.

        At the end of the channel it takes all remaining items; only the next call raises ``EndOfChannel``.

        Args:
            n: at least 1; each item counts as one, whatever its weight.
            async_op: return a ``Work`` where the call would block.
            wait: False takes the items that are available, at most ``n`` and perhaps none.
            timeout: seconds; items gathered by then stay in the channel. With 0, ``n`` items are taken if that many are
                available. Not allowed with ``wait=False``.

        Returns:
            A list, in a coroutine or with ``async_op`` a ``Work`` for it.

        Raises:
            EndOfChannel: the channel is closed, and nothing is left under this key; also with ``wait=False``.
            ValueError: the gathered items fill ``max_bytes``. The items stay in the channel.
            TypeError, ValueError: at once, ``n`` is not a whole number, or less than 1; ``wait`` is not a bool, or
                False with a ``timeout``.
            Exception: as ``get``.
        """
        return _finish(self._start(self._arguments.get_many(n, key, wait, timeout)), async_op)

    @overload
    def drain(self, key: Any = _DEFAULT_KEY, *, async_op: Literal[True]) -> Work[list[Any]]: ...
    @overload
    def drain(self, key: Any = _DEFAULT_KEY, async_op: bool = False) -> Any: ...
    def drain(self, key: Any = _DEFAULT_KEY, async_op: bool = False) -> Any:
        """Take all items queued under a key, in order, perhaps none: as many as ``qsize`` would return.

        Returns, Raises:
            As ``get_many`` with ``wait=False``.
        """
        return _finish(self._start(self._arguments.drain(key)), async_op)

    def items(self, key: Any = _DEFAULT_KEY, *, window: int | None = None) -> ChannelItems:
        """Iterate over the items of a key until the channel is closed and empty: ``async for``, or ``for`` in ``def``
        methods.

        The loop requests several items at once. Items whose iteration has not begun return to their places when the
        loop or its process ends.

        Args:
            window: items requested at once, at least 1; by default 16 if this loop is the only consumer of the channel,
                and 1 if there are several.

        Raises:
            TypeError, ValueError: at once, the window is not a whole number, or less than 1.
        """
        reading = self._arguments.read(key, window)
        return ChannelItems(lambda reader: self._start(self._arguments.next_of(reading, reader)), self._name)

    def __aiter__(self) -> ChannelItems:
        """Iterate over the items of the default key until the channel is closed and empty."""
        return self.items()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the items of the default key, where no loop runs.

        Raises:
            TypeError: a loop runs in this thread.
        """
        return iter(self.items())

    def lease(self, n: int = 1, key: Any = _DEFAULT_KEY, *, timeout: float | None = None) -> Lease:
        """Lease the next ``n`` items of a key, which stay in the channel until the block ends without an error.

        If the block ends with an error, or its process dies, the items return to their places. A block without an error
        waits until the channel has confirmed the items. Confirmed items are never given to another consumer, even if
        the network or the process fails afterwards::

            async with channel.lease(4) as items:     # `with` in a def method or a script
                for item in items:
                    await use(item)
                    await items.done()                # confirms this item; an error then returns only the others

        It waits for the items as ``get_many`` does.

        Args:
            n: at least 1; at the end of the channel fewer.
            timeout: seconds after the channel has handed the items out. Afterwards they return to the channel, and the
                end of the block raises ``LeaseLost``.

        Raises:
            LeaseLost: at the end of the block, or from ``done()``: the lease has timed out.
            NodeLost: at the same places: the channel's node is lost
            TypeError, ValueError: at once, ``n`` or the timeout is invalid; a local channel has no timeouts.
            Exception: at the beginning of the block, as ``get_many``.
        """
        get = self._arguments.lease(n, key, timeout)
        return Lease(lambda: self._start(get), lambda lease, count: self._start(Confirmation(lease, count)))

    # -- queries ------------------------------------------------------------------------------------------------

    def qsize(self, key: Any = _DEFAULT_KEY) -> IntOrWork:
        """Return the number of items queued under a key; in a coroutine a ``Work`` for it, as do ``empty`` and
        ``full``."""
        size: IntOrWork = self._query("qsize()", key, "size", lambda found: found[0])
        return size

    def empty(self, key: Any = _DEFAULT_KEY) -> BoolOrWork:
        """True if nothing is queued under a key."""
        return self._query("empty()", key, "size", lambda found: not found[0])

    def full(self, key: Any = _DEFAULT_KEY) -> BoolOrWork:
        """True if a put would wait."""
        return self._query("full()", key, "size", lambda found: found[1])

    def peek_all(self, key: Any = _DEFAULT_KEY) -> Any:
        """Return the items queued under a key, in order, as ``WeightedItem``s, without removing them."""
        return self._query("peek_all()", key, "peek", _show)

    def stats(self) -> Any:
        """Return the counts of the channel's items: put = got + dropped + present.

        An item counts as put once the channel has accepted it, and as got once its consumer has it. Leased items, and
        items of a loop whose iteration has not begun, count as present.

        Returns:
            An object with ``put``, ``got``, ``dropped`` (a dict by reason), ``present``, and ``keys``: for each key
            with present items, (put, got, present) since it was last empty. In a coroutine a ``Work`` for it.

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

    def _query(self, verb: str, key: Any, word: str, show: Callable[[Any], Any]) -> Any:
        return _finish(self._start(self._arguments.query(verb, key, word, show)), False)

    # -- close ------------------------------------------------------------------------------------------------

    def close(self, *, discard: bool = False) -> Any:
        """Close the channel: puts fail with ``ClosedError``, waiting ones included. Gets continue until the channel is
        empty, and then raise ``EndOfChannel``. The name is free.

        Any process may close a channel. Idempotent. In a coroutine it returns a ``Work`` to await, elsewhere it blocks.
        When it is done, the channel has all items whose puts were done before. Items that come later are lost, and
        their producers get an error.

        Args:
            discard: also throw away the items in the channel: gets end at once, waiting ones included. A channel that
                was closed without it may be closed again with it. Items that a get has already received stay its
                consumer's.

        Raises:
            TypeError: ``discard`` is not a bool.
        """
        return blocking(self._close(discard))

    async def aclose(self, *, discard: bool = False) -> None:
        """Close the channel, as ``close``."""
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
                self._closing = _done()  # the channel has ended with its cluster
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
                return  # the channel was never created
        if self._roster is None:
            return
        assert self._replicas is not None
        if emulated_links.here is not None:
            await emulated_links.here.emptied(("channel", self._name))
        await self._replicas.pinned()
        self._replicas.flush()
        await registration.close(client, self._roster, discard=discard)

    # -- pickling -----------------------------------------------------------------------------------------------

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
        """Return this process's connection to the channel's run; a channel from elsewhere finds it at first use."""
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

    # -- internals ----------------------------------------------------------------------------------------------

    def _start(self, request: Any) -> Any:
        if recording.admits():  # isinstance() of an abstract base class would take a microsecond
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
                # The link is emulated as if the channel were rank 0 of a group with its name.
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
    """Return the request itself if it is to be awaited, else its result."""
    if async_op or not may_wait():
        return request
    try:
        return request.wait()
    except BaseException:
        if not request.done():  # the wait was interrupted before the request was done
            request._abandon()
        raise


def _again(
    name: str, maxsize: int, roster: registration.Roster | None, promise: registration.Promise | None = None
) -> Channel:
    channel = Channel(name, maxsize, None)
    channel._roster, channel._promise = roster, promise
    return channel


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Detach all channels in a forked child; their next use calls ``_bound``, which raises with the reason."""
    for channel in list(_channels):
        channel._replicas = None
    global _passing_on
    _passing_on = threading.RLock()
    _local_queues.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


_passing_on = threading.RLock()
"""Held while a channel is passed on, and while its roster arrives, so that every promise is resolved."""


_local_queues: dict[str, LocalQueue] = {}


def _local_again(token: str, name: str, maxsize: int, max_bytes: int) -> Channel:
    queue = _local_queues.get(token)
    if queue is None:
        queue = _local_queues.setdefault(token, LocalQueue(token, name, maxsize, max_bytes))
    return Channel(name, maxsize, None, queue)

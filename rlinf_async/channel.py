"""``Channel``: the user API for queues, which live in daemons or locally: create, connect, put, get, batch, close."""

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
from rlinf_async._waits.thread_gate import must_await
from rlinf_async.work import BoolOrWork, IntOrWork, NoneOrWork, Work, blocking

_DEFAULT_KEY: Final = "default_queue"
_PUT: Final = EventKind.PUT
_GET: Final = EventKind.GET


@dataclass(order=True)
class WeightedItem:
    """An item in the result of ``peek_all``; items are ordered by weight."""

    weight: int
    item: Any = field(compare=False)


# RLinf's channel interface has more than 30 methods, with overloads, all implemented in ``_channels``.
class Channel:
    """A first-in-first-out queue that any process of the run can use, found by name or received as an argument.

    A channel lives in one node's daemon, not in a worker, so an accepted item outlives its producer. If a consumer is
    cancelled or killed before its ``get`` returns, the item returns to its old place in the queue; once ``get`` has
    returned, the item belongs to its consumer and is never delivered again. ``lease`` keeps items in the channel until
    a block ends without an error. Items that one producer puts under one key are delivered in order. The contents are
    lost if the node that holds them is lost.

    Names are only used by ``create`` and ``connect``; a channel object always means the same channel. A new channel
    with the name of a closed one is a different channel.

    A put is done when the channel has accepted the item. If the channel has neither ``maxsize`` nor ``max_bytes``, the
    producer runs on the channel's node, and the item takes at most 4 MiB, the put is done as soon as the item has been
    sent, because the daemon reads everything that a killed process has sent. An item that arrives after a close is
    lost, and its producer's next operation on the channel reports the loss.

    In a coroutine, the methods start immediately and return a ``Work`` to await. Elsewhere they block and return the
    result, unless ``async_op=True``. For type checkers, the result is ``Any``, or a ``Work`` with ``async_op=True``.

    Do not change an item until its put is done. Tensors on a GPU are sent through CPU memory and arrive on the
    consumer's current device. The channel holds a copy, so the producer may free its tensors after the put.

    Example:
        channel = Channel.create("obs", maxsize=8)
        group.run(channel)                       # as an argument, or Channel.connect("obs") in the worker

        await channel.put(obs)                   # in a worker's coroutine; with key=rank: get(key=rank) takes it
        async for obs in channel: ...            # until channel.close() was called and it is empty
        for obs in channel: ...                  # the same in a def method or a script

    Replay buffer:
        Producers put transitions. The learner waits only for the first transitions, and moves all into its own buffer,
        which drops the oldest. When the channel ends, ``EndOfChannel`` ends the loop::

            replay = collections.deque(await channel.get_many(1_000), maxlen=100_000)
            while True:
                replay.extend(await channel.drain())
                train(random.sample(replay, 256))
    """

    __contains__ = None  # a membership test would consume items
    _noun = "channel"

    def __init__(self, name: str, maxsize: int, client: NodeClient | None, local: LocalQueue | None = None) -> None:
        """Internal; use ``create`` or ``connect`` to create an instance."""
        self._name = name
        self._maxsize = maxsize
        self._client = client
        self._local = local
        self._roster: registration.Roster | None = None
        self._promise: registration.Promise | None = None
        """Placeholder for the channel in processes that received the channel before it had a number."""
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
        """Return the items queued under the default key; in a coroutine, which must not block, the channel's
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
        sent in order once it does. A channel created by a driver lives until it or the cluster is closed; a worker's
        channel lives until it or the worker's group is closed.

        Args:
            name: name for ``connect``; it can be reused once the channel is closed.
            maxsize: maximum number of items per key; 0 means no bound.
            distributed: create one queue on every node; a key belongs to the node that uses it first.
            node_rank: node that holds the queue, unless it is distributed.
            local: create a queue in this process only. Each process that receives the channel gets its own queue; a
                forked child gets none, because its copy would be inconsistent.
            disable_distributed_log: accepted for RLinf's programs and ignored, because a channel has no process that
                could log.
            max_bytes: maximum total size of all items, beyond which puts wait; by default half of the node's or
                container's memory.
            cluster: the cluster for the channel; required if several clusters are open in this process.

        Raises:
            RuntimeError: ``cluster=`` was not given, and this process does not have exactly one open cluster.
            ConfigError: there is no such node.
            TypeError, ValueError: a size is not a whole number, or is negative; ``distributed`` or ``local`` is not a
                bool; the name is not a string, or has more than 4096 bytes.
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
        """Connect to the channel with that name; wait for it if it does not exist yet.

        In a coroutine it returns immediately, and ``await channel`` waits.

        Args:
            current_worker: accepted for RLinf's programs and ignored: a process knows which worker it is.
            cluster: as in ``create``.
            timeout: seconds to wait, by default ``RLINF_NAME_TIMEOUT_S``; 0 finds only an existing channel.

        Raises:
            DeadlineExceeded: the channel did not exist in time; the error lists the existing channels.
            ClosedError: the channel with that name is closed.
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
            Exception: the reason why it does not exist.
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
        """Maximum number of items per key; 0 means no bound."""
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
        """Append an item to its key's queue; wait while the queue is full.

        Args:
            weight: weight for ``get_batch``, a non-negative integer.
            key: any hashable value; each key has its own queue.
            async_op: return a ``Work`` instead of blocking.
            timeout: seconds after which the item is withdrawn; with 0, the item is put only if there is room
                immediately.

        Returns:
            None, once the item is accepted, or sent to an unbounded channel on this node. In a coroutine, or with
            ``async_op``, a ``Work`` that resolves to None.

        Raises:
            DeadlineExceeded: the queue was full for ``timeout`` seconds; the error says whether the channel may still
                have received the item.
            ClosedError: the channel is closed, or was closed before an earlier item arrived.
            NodeLost: the channel's node is lost; it is unknown whether the item was accepted.
            SerializationError: the item cannot be serialized.
            ValueError: the item alone exceeds ``max_bytes``. Raised immediately if the weight or the timeout is
                negative.
            TypeError: raised immediately if the weight is not an integer, the timeout is not a number, or the key is
                not hashable.
        """
        accepted: NoneOrWork = _finish(self._start(self._arguments.put(item, weight, key, timeout)), async_op)
        return accepted

    def put_nowait(self, item: Any, weight: int = 0, key: Any = _DEFAULT_KEY) -> Any:
        """Put an item, or raise ``asyncio.QueueFull`` if there is no room now; must be awaited in a coroutine."""
        return _finish(self._start(self._arguments.put(item, weight, key, None, nowait=True)), False)

    # -- get ----------------------------------------------------------------------------------------------------

    @overload
    def get(self, key: Any = _DEFAULT_KEY, *, async_op: Literal[True], timeout: float | None = None) -> Work[Any]: ...
    @overload
    def get(self, key: Any = _DEFAULT_KEY, async_op: bool = False, *, timeout: float | None = None) -> Any: ...
    def get(self, key: Any = _DEFAULT_KEY, async_op: bool = False, *, timeout: float | None = None) -> Any:
        """Take the next item of a key; wait until one is available.

        Args:
            async_op: return a ``Work`` instead of blocking.
            timeout: seconds to wait; an item that arrives later stays in the channel. With 0, only an item that is
                already available is taken.

        Returns:
            The item. In a coroutine, or with ``async_op``, a ``Work`` that resolves to it.

        Raises:
            DeadlineExceeded: no item was available for ``timeout`` seconds.
            EndOfChannel: the channel is closed, and no items are left under this key.
            NodeLost: the channel's node is lost, and the contents with it.
            TypeError, ValueError: raised immediately if the timeout is not a number or is negative, or the key is not
                hashable.
        """
        return _finish(self._start(self._arguments.get(key, timeout)), async_op)

    def get_nowait(self, key: Any = _DEFAULT_KEY) -> Any:
        """Take the next item, or raise ``asyncio.QueueEmpty`` if there is none; must be awaited in a coroutine."""
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
        """Take items in order until their total weight reaches ``target_weight``, or the next item would exceed it.

        It takes at least one item, and waits for more while the weight is below the target; at the end of the channel
        it takes all remaining items.

        Args:
            target_weight: a non-negative integer.
            async_op: return a ``Work`` instead of blocking.
            timeout: seconds to wait; if they expire, the gathered items stay in the channel. With 0, only a batch that
                is already available is taken.

        Returns:
            A list. In a coroutine, or with ``async_op``, a ``Work`` that resolves to it.

        Raises:
            ValueError: the next item alone weighs more than ``target_weight``, or the gathered items already fill
                ``max_bytes``. The items stay in the channel.
            TypeError, ValueError: raised immediately if the weight is not an integer or is negative.
            Exception: as for ``get``.
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
        """Take the next ``n`` items of a key in order; wait until there are enough.

        At the end of the channel it takes all remaining items; only the next call raises ``EndOfChannel``.

        Args:
            n: number of items, at least 1; weights are ignored.
            async_op: return a ``Work`` instead of blocking.
            wait: False takes only the available items, at most ``n`` and perhaps none.
            timeout: seconds to wait; if they expire, the gathered items stay in the channel. With 0, ``n`` items are
                taken only if that many are available. Not allowed with ``wait=False``.

        Returns:
            A list. In a coroutine, or with ``async_op``, a ``Work`` that resolves to it.

        Raises:
            EndOfChannel: the channel is closed, and no items are left under this key; also with ``wait=False``.
            ValueError: the gathered items already fill ``max_bytes``. The items stay in the channel.
            TypeError, ValueError: raised immediately if ``n`` is not an integer or is less than 1, or if ``wait`` is
                not a bool, or is False with a ``timeout``.
            Exception: as for ``get``.
        """
        return _finish(self._start(self._arguments.get_many(n, key, wait, timeout)), async_op)

    @overload
    def drain(self, key: Any = _DEFAULT_KEY, *, async_op: Literal[True]) -> Work[list[Any]]: ...
    @overload
    def drain(self, key: Any = _DEFAULT_KEY, async_op: bool = False) -> Any: ...
    def drain(self, key: Any = _DEFAULT_KEY, async_op: bool = False) -> Any:
        """Take all items queued under a key, in order. There may be none; ``qsize`` returns their number.

        Returns, Raises:
            As for ``get_many`` with ``wait=False``.
        """
        return _finish(self._start(self._arguments.drain(key)), async_op)

    def items(self, key: Any = _DEFAULT_KEY, *, window: int | None = None) -> ChannelItems:
        """Iterate over a key's items until the channel is closed and empty: ``async for``, or ``for`` in ``def``
        methods.

        The loop requests several items at once. When the loop or its process ends, items that it has requested but not
        yielded return to their places.

        Args:
            window: items requested at once, at least 1; by default 16 if this loop is the channel's only consumer, and
                1 if there are several.

        Raises:
            TypeError, ValueError: raised immediately if the window is not an integer or is less than 1.
        """
        reading = self._arguments.read(key, window)
        return ChannelItems(lambda reader: self._start(self._arguments.next_of(reading, reader)), self._name)

    def __aiter__(self) -> ChannelItems:
        """Iterate over the default key's items until the channel is closed and empty."""
        return self.items()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the default key's items, in code without a running loop.

        Raises:
            TypeError: a loop is running in this thread.
        """
        return iter(self.items())

    def lease(self, n: int = 1, key: Any = _DEFAULT_KEY, *, timeout: float | None = None) -> Lease:
        """Lease a key's next ``n`` items, which stay in the channel until the block ends without an error.

        If the block ends with an error, or its process dies, the items return to their places. A block without an error
        waits until the channel has confirmed the items. Confirmed items are never given to another consumer, even if
        the network or the process fails afterwards::

            async with channel.lease(4) as items:     # `with` in a def method or a script
                for item in items:
                    await use(item)
                    await items.done()                # confirms this item, so that an error returns only the others

        Entering waits for the items as ``get_many`` does.

        Args:
            n: number of items, at least 1; at the end of the channel there may be fewer.
            timeout: seconds from the delivery of the items. When they expire, the items return to the channel, and the
                end of the block raises ``LeaseLost``.

        Raises:
            LeaseLost: raised at the end of the block, or by ``done()``, if the lease has timed out.
            NodeLost: raised at the end of the block, or by ``done()``, if the channel's node is lost.
            TypeError, ValueError: raised immediately if ``n`` or the timeout is invalid; local channels do not support
                timeouts.
            Exception: entering the block raises the same errors as ``get_many``.
        """
        get = self._arguments.lease(n, key, timeout)
        return Lease(lambda: self._start(get), lambda lease, count: self._start(Confirmation(lease, count)))

    # -- queries ------------------------------------------------------------------------------------------------

    def qsize(self, key: Any = _DEFAULT_KEY) -> IntOrWork:
        """Return the number of items queued under a key; like ``empty`` and ``full``, a ``Work`` in a coroutine."""
        size: IntOrWork = self._query("qsize()", key, "size", lambda found: found[0])
        return size

    def empty(self, key: Any = _DEFAULT_KEY) -> BoolOrWork:
        """True if no items are queued under a key."""
        return self._query("empty()", key, "size", lambda found: not found[0])

    def full(self, key: Any = _DEFAULT_KEY) -> BoolOrWork:
        """True if a put would wait."""
        return self._query("full()", key, "size", lambda found: found[1])

    def peek_all(self, key: Any = _DEFAULT_KEY) -> Any:
        """Return the items queued under a key, in order, as ``WeightedItem``s, without removing them."""
        return self._query("peek_all()", key, "peek", _show)

    def stats(self) -> Any:
        """Return the channel's item counts; put = got + dropped + present always holds.

        An item counts as put once the channel has accepted it, and as got once its consumer has received it. Leased
        items, and items that a loop has requested but not yielded, count as present.

        Returns:
            An object with ``put``, ``got``, ``dropped`` (a dict that maps each reason to a count), ``present``, and
            ``keys``, which maps each key with present items to its counts (put, got, present) since it was last empty.
            In a coroutine, a ``Work`` that resolves to it.

        Raises:
            ClosedError: the channel is closed, and all items in it, or in its queue on some node, have been taken.
            NodeLost: one of its nodes is lost.
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
        """Close the channel: puts, including waiting ones, fail with ``ClosedError``; gets continue until it is empty.

        Once the channel is empty, gets raise ``EndOfChannel``. The channel's name can be reused. Any process may close
        a channel. Idempotent. In a coroutine it returns a ``Work`` to await, elsewhere it blocks. A closed channel
        still has all items whose puts were done before the close. Later items are lost, and their producers get an
        error.

        Args:
            discard: also discard the items in the channel, so that gets, including waiting ones, end immediately. A
                channel closed without ``discard`` may be closed again with it. Items that a consumer has already
                received are not affected.

        Raises:
            TypeError: ``discard`` is not a bool.
        """
        return blocking(self._close(discard))

    async def aclose(self, *, discard: bool = False) -> None:
        """Close the channel, as ``close`` does."""
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
        """Return this process's connection to the channel's run; an unpickled channel finds it at first use."""
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
        if recording.admits():  # compare types: isinstance() with an abstract base class takes a microsecond
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
                # The link is emulated as if the channel were rank 0 of a group with the channel's name.
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
    """Return the request itself if the caller will await it, otherwise its result."""
    return request if async_op else blocking(request)


def _again(
    name: str, maxsize: int, roster: registration.Roster | None, promise: registration.Promise | None = None
) -> Channel:
    channel = Channel(name, maxsize, None)
    channel._roster, channel._promise = roster, promise
    return channel


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Detach all channels in a forked child; their next use calls ``_bound``, which raises the reason."""
    for channel in list(_channels):
        channel._replicas = None
    global _passing_on
    _passing_on = threading.RLock()
    _local_queues.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


_passing_on = threading.RLock()
"""Lock held while a channel is passed on, and while its roster arrives, so that every promise is resolved."""


_local_queues: dict[str, LocalQueue] = {}


def _local_again(token: str, name: str, maxsize: int, max_bytes: int) -> Channel:
    queue = _local_queues.get(token)
    if queue is None:
        queue = _local_queues.setdefault(token, LocalQueue(token, name, maxsize, max_bytes))
    return Channel(name, maxsize, None, queue)

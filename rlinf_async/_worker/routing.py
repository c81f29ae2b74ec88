"""Mixin of ``Worker``: ``send_to`` and ``recv_from``, for batches between groups of different sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlinf_async._messaging.collective_options import CollectiveGroupOptions
from rlinf_async._messaging.routes import Route, Routes
from rlinf_async._worker.context import require_exchange
from rlinf_async._worker.messaging import as_asked
from rlinf_async.channel import Channel
from rlinf_async.work import NoneOrWork, ValueOrWork


class Routing:
    """Mixin of ``Worker`` that splits a batch for another group's ranks, which merge their parts.

    A batch is spread evenly over the sending group, and arrives evenly spread over the receiving group, with its rows
    in order, for any two world sizes::

        env (2 ranks of 6 rows)    self.send_to("rollout", channel, obs, tag="obs")
        rollout (3 ranks)          obs = self.recv_from("env", channel, tag="obs", batch_size=12)     # 4 rows

    In decoupled mode ranks have no fixed partners: shards wait in one queue, a free rank takes the next shards, and its
    results under the same tag return to the ranks that sent them::

        env                        self.batch_router = {}
                                   self.send_to("rollout", channel, obs, tag="step", decoupled_mode=True)
                                   actions = self.recv_from("rollout", channel, tag="step", decoupled_mode=True)
        rollout                    self.batch_router = {"step": []}
                                   obs = self.recv_from("env", channel, tag="step", decoupled_mode=True)
                                   self.send_to("env", channel, act(obs), tag="step", decoupled_mode=True)
    """

    _group_name: str
    _rank: int
    _world_size: int

    def send_to(
        self,
        group_name: str,
        channel: Channel | None,
        data: Any,
        *,
        route_key: Any = None,
        mode: str | None = None,
        tag: str | None = None,
        async_op: bool = False,
        batch_size: int | None = None,
        split_fn: Callable[[Any, Sequence[int]], Sequence[Any]] | None = None,
        enable_p2p: bool = False,
        options: CollectiveGroupOptions | None = None,
        decoupled_mode: bool = False,
        send_queue_size: int = 0,
        timeout: float | None = None,
    ) -> NoneOrWork:
        """Send this rank's rows of a batch to those ranks of another group that need them.

        Args:
            group_name: the receiving group; the call waits until it exists.
            channel: channel that carries the parts; None with ``enable_p2p``.
            data: this rank's rows: tensors, arrays and lists at any depth of dicts.
            route_key, tag: names that the receiver must also give; ignored with ``enable_p2p``.
            mode: with a tag, the receiver passes both as one tag: ``"train_obs"`` for ``"train"`` and ``"obs"``. In
                decoupled mode the mode becomes part of the shards' names, and the receiver passes only the tag.
            batch_size: total number of rows of all sending ranks; by default, every rank is assumed to have as many as
                this one.
            split_fn: replacement for ``split_batch``.
            enable_p2p: use ``send`` instead of a channel; the receiver's ``recv_from`` must set it, too.
            options: options of ``send``.
            decoupled_mode: any free rank takes the shards; see above.
            send_queue_size: number of shards into which this rank splits its rows; 0 for one shard.
            timeout: seconds, including the wait for the group; when they expire, parts not yet taken are withdrawn.

        Returns:
            None; in a coroutine, and with ``async_op``, a ``Work``.

        Raises:
            ValueError: the batch does not divide by both world sizes, ``data`` has the wrong number of rows, neither a
                channel nor ``enable_p2p`` is given, or ``enable_p2p`` is combined with ``decoupled_mode``.
            Exception: as for ``send``, or ``Channel.put``.
        """
        route = Route(
            group_name, None if enable_p2p else channel, tag, route_key, mode, batch_size, options, decoupled_mode,
            send_queue_size, timeout,
        )  # fmt: skip
        route.check(enable_p2p)
        return as_asked(self._routes().send(route, data, split_fn), async_op)

    def recv_from(
        self,
        group_name: str,
        channel: Channel | None,
        *,
        route_key: Any = None,
        tag: str | None = None,
        async_op: bool = False,
        batch_size: int | None = None,
        merge_fn: Callable[[list[Any]], Any] | None = None,
        infer_batch_size_fn: Callable[[Any], int] | None = None,
        enable_p2p: bool = False,
        options: CollectiveGroupOptions | None = None,
        decoupled_mode: bool = False,
        recv_queue_size: int = 0,
        timeout: float | None = None,
    ) -> ValueOrWork:
        """Receive this rank's part of a batch that another group sends with ``send_to``; shares its arguments.

        Args:
            batch_size: total number of rows of all receiving ranks, to check the batch. In decoupled mode it also
                determines the number of shards to wait for; by default as many as this rank has sent, or one if it
                serves other ranks.
            merge_fn: replacement for ``merge_batches``; in that case, rows are checked only with
                ``infer_batch_size_fn``.
            infer_batch_size_fn: function that returns the number of rows of a part.

        Returns:
            The batch; None if only None was sent. In a coroutine, and with ``async_op``, a ``Work`` that resolves to
            it.

        Raises:
            ValueError: the parts have a wrong number of rows, or cannot be merged.
            Exception: as for ``recv``, or ``Channel.get``.
        """
        route = Route(
            group_name, None if enable_p2p else channel, tag, route_key, None, batch_size, options, decoupled_mode,
            recv_queue_size, timeout,
        )  # fmt: skip
        route.check(enable_p2p)
        return as_asked(self._routes().receive(route, merge_fn, infer_batch_size_fn), async_op)

    def _routes(self) -> Routes:
        routes: Routes | None = self.__dict__.get("_routes_of")
        if routes is None:
            routes = self.__dict__["_routes_of"] = Routes(self, require_exchange())
        return routes

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
    """The part of ``Worker`` that splits a batch among the ranks of another group and puts it together again.

    A batch is spread evenly over the sending group, and arrives evenly spread over the receiving one, in the order of
    its rows, whatever the two world sizes are::

        env (2 ranks of 6 rows)    self.send_to("rollout", channel, obs, tag="obs")
        rollout (3 ranks)          obs = self.recv_from("env", channel, tag="obs", batch_size=12)     # 4 rows

    In decoupled mode there are no fixed partners: shards wait in one queue, whoever is free takes the next ones, and
    what it sends under the same tag goes back to where they came from::

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
        """Sends this rank's part of a batch to the ranks of another group that are to have it.

        Args:
            group_name: the receiving group; where it does not exist yet, it is waited for.
            channel: what the parts go through; None with ``enable_p2p``.
            data: this rank's rows: tensors, arrays and lists at any depth of dicts.
            route_key, tag: what the receiver must give as well; of no account with ``enable_p2p``.
            mode: with a tag, the receiver gives both as one tag: ``"train_obs"`` of ``"train"`` and ``"obs"``.  In
                decoupled mode it stands in the names of the shards, and the receiver gives the tag alone.
            batch_size: rows of all sending ranks together; by default each has as many as this one.
            split_fn: in place of ``split_batch``.
            enable_p2p: by ``send``, which the receiver's ``recv_from`` must know.
            options: as of ``send``.
            decoupled_mode: whoever is free takes it; see above.
            send_queue_size: shards that this rank sends there; 0 for its whole part.
            timeout: seconds, the wait for the group included; then what has not been taken of it is withdrawn.

        Returns:
            None; in a coroutine, and with ``async_op``, a ``Work``.

        Raises:
            ValueError: the batch does not divide by both world sizes, or ``data`` has another number of rows; there is
                neither a channel nor ``enable_p2p``, or both that and ``decoupled_mode``.
            Exception: as ``send``, or ``Channel.put``.
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
        """Receives this rank's part of a batch that another group sends with ``send_to``; the arguments are as there.

        Args:
            batch_size: rows of all receiving ranks together, against which what arrives is checked; in decoupled mode
                also how many shards there are to come, which otherwise are all that this rank has sent out, or one if
                it serves others.
            merge_fn: in place of ``merge_batches``; then nothing is checked without ``infer_batch_size_fn``.
            infer_batch_size_fn: rows of a part.

        Returns:
            The batch, None if only None has been sent; in a coroutine, and with ``async_op``, a ``Work`` of it.

        Raises:
            ValueError: what arrives has another number of rows than it should, or cannot be merged.
            Exception: as ``recv``, or ``Channel.get``.
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

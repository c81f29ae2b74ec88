"""Executes ``send_to`` and ``recv_from``: splits a batch, sends shards by channel or directly, and merges them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlinf_async._core.argument_checks import seconds
from rlinf_async._messaging.collective_options import CollectiveGroupOptions
from rlinf_async._messaging.exchange import Exchange
from rlinf_async._messaging.route_work import AsyncRouteWork
from rlinf_async._waits.thread_gate import must_await
from rlinf_async.channel import Channel
from rlinf_async.errors import ConfigError
from rlinf_async.routing import (
    build_recv_plan,
    build_send_plan,
    decoupled_build_recv_plan,
    decoupled_build_send_plan,
    infer_batch_size,
    merge_batches,
    split_batch,
    split_channel_message,
    validate_batch_size,
)
from rlinf_async.work import Work

SplitFn = Callable[[Any, Sequence[int]], Sequence[Any]]
MergeFn = Callable[[list[Any]], Any]
SizeFn = Callable[[Any], int]


class LocalWorker(Protocol):
    """The attributes of a worker that ``Routes`` uses."""

    _group_name: str
    _rank: int
    _world_size: int


@dataclass(frozen=True)
class Route:
    """Arguments of one ``send_to`` or ``recv_from`` call, except data and functions.

    Attributes:
        channel: channel that carries the shards; None for peer-to-peer sends.
        queue_size: number of shards that this rank sends or takes per call in decoupled mode; 0 for one whole shard.
    """

    group: str
    channel: Channel | None
    tag: str | None
    route_key: Any
    mode: str | None
    batch_size: int | None
    options: CollectiveGroupOptions | None
    decoupled: bool
    queue_size: int
    timeout: float | None

    def check(self, enable_p2p: bool) -> None:
        """Raise ConfigError if the arguments are inconsistent, TypeError or ValueError for the timeout."""
        if self.decoupled and enable_p2p:
            raise ConfigError("enable_p2p is not supported in decoupled_mode: any rank may serve any other there")
        if self.timeout is not None:
            seconds(self.timeout, f"what goes to or comes from '{self.group}'")
        if self.channel is None and not enable_p2p:
            raise ConfigError(f"a channel is needed for what goes to or comes from '{self.group}', or enable_p2p=True")


class Routes:
    """The ``send_to`` and ``recv_from`` calls of one worker. All methods run in threads of user code.

    The first use of a group looks it up. Operations that wait for the lookup start in order, ahead of later operations.
    """

    def __init__(self, worker: LocalWorker, exchange: Exchange) -> None:
        self._worker = worker
        self._exchange = exchange
        self._waiting: dict[str, deque[tuple[Work[int], AsyncRouteWork, Callable[[int], None]]]] = {}
        self._order = threading.RLock()
        self._sent: dict[tuple[str, str | None, Any], int] = {}

    # -- send ---------------------------------------------------------------------------------------------------

    def send(self, route: Route, data: Any, split_fn: SplitFn | None) -> AsyncRouteWork:
        work = AsyncRouteWork(f"send_to() to '{route.group}'", route.timeout)

        def start(world_size: int) -> None:
            parts = self._shards(route, data, split_fn or split_batch, world_size)
            work.begin(self._send_part(route, *part) for part in parts)
            if route.decoupled:
                self._note_sent(route, len(parts))

        self._begin(route.group, work, start)
        return work

    def _shards(self, route: Route, data: Any, split: SplitFn, world_size: int) -> list[tuple[Any, int, Any]]:
        worker = self._worker
        if route.decoupled:
            return self._decoupled_shards(route, data, split, world_size)
        plan = build_send_plan(
            src_group_name=worker._group_name,
            dst_group_name=route.group,
            src_rank=worker._rank,
            src_world_size=worker._world_size,
            dst_world_size=world_size,
            batch_size=self._rows(route, data),
            tag=route.tag if route.mode is None else f"{route.mode}_{route.tag}",
            route_key=route.route_key,
        )
        parts = _split(split, data, plan.batch_sizes)
        return [(entry.key, entry.peer_rank, part) for entry, part in zip(plan.entries, parts, strict=True)]

    def _decoupled_shards(self, route: Route, data: Any, split: SplitFn, world_size: int) -> list[tuple[Any, int, Any]]:
        worker = self._worker
        router = _router(worker)
        answers = list(router.get(route.tag) or ())
        entries = decoupled_build_send_plan(
            src_group_name=worker._group_name,
            dst_group_name=route.group,
            src_rank=worker._rank,
            src_world_size=worker._world_size,
            dst_world_size=world_size,
            batch_size=infer_batch_size(data) if answers else self._rows(route, data),
            mode=route.mode,
            tag=route.tag,
            route_key=route.route_key,
            send_queue_size=route.queue_size,
            tag_batch_router=answers,
        ).entries
        parts = _split(split, data, [entry.batch_size for entry in entries])
        return [
            (entry.key, -1, {"batch_index": entry.batch_index, "batch": part})
            for entry, part in zip(entries, parts, strict=True)
        ]

    def _note_sent(self, route: Route, count: int) -> None:
        router = _router(self._worker)
        if answered := router.get(route.tag):
            router[route.tag] = [*answered][count:]
        else:
            self._sent[_place(route)] = count

    def _rows(self, route: Route, data: Any) -> int:
        return infer_batch_size(data) * self._worker._world_size if route.batch_size is None else route.batch_size

    def _send_part(self, route: Route, key: Any, rank: int, part: Any) -> Work[Any]:
        work: Work[Any]
        if route.channel is None:
            work = self._exchange.send(part, route.group, rank, route.options, None, route.timeout)
        else:
            work = route.channel.put(part, key=key, async_op=True, timeout=route.timeout)
        return work

    # -- receive ------------------------------------------------------------------------------------------------

    def receive(self, route: Route, merge_fn: MergeFn | None, size_fn: SizeFn | None) -> AsyncRouteWork:
        work = AsyncRouteWork(f"recv_from() from '{route.group}'", route.timeout)
        merge = merge_fn or merge_batches
        must_fit = merge_fn is None or size_fn is not None

        def start(world_size: int) -> None:
            if route.decoupled:
                self._receive_decoupled(work, route, merge, world_size)
            else:
                self._receive_planned(work, route, merge, size_fn, must_fit, world_size)

        self._begin(route.group, work, start)
        return work

    def _receive_planned(
        self,
        work: AsyncRouteWork,
        route: Route,
        merge: MergeFn,
        size_fn: SizeFn | None,
        must_fit: bool,
        world_size: int,
    ) -> None:
        worker = self._worker
        plan = build_recv_plan(
            src_group_name=route.group,
            dst_group_name=worker._group_name,
            dst_rank=worker._rank,
            src_world_size=world_size,
            dst_world_size=worker._world_size,
            batch_size=route.batch_size,
            tag=route.tag,
            route_key=route.route_key,
        )

        def finalize(parts: list[Any]) -> Any:
            if all(part is None for part in parts):
                return None
            for entry, part in zip(plan.entries, parts, strict=True):
                if entry.batch_size and must_fit:
                    what = f"what rank {entry.peer_rank} of '{route.group}' has sent"
                    validate_batch_size(part, entry.batch_size, size_fn, what=what)
            return merge(parts)

        work.begin((self._receive_part(route, entry.key, entry.peer_rank) for entry in plan.entries), finalize)

    def _receive_decoupled(self, work: AsyncRouteWork, route: Route, merge: MergeFn, world_size: int) -> None:
        worker = self._worker
        router = _router(worker)
        serves = route.tag in router
        plan = functools.partial(
            decoupled_build_recv_plan,
            src_group_name=route.group,
            dst_group_name=worker._group_name,
            recv_rank=None if serves else worker._rank,
            tag=route.tag,
            route_key=route.route_key,
        )
        if route.batch_size is not None:
            entries = plan(
                src_world_size=worker._world_size,
                dst_world_size=world_size,
                batch_size=route.batch_size,
                recv_queue_size=route.queue_size,
            ).entries
        else:  # one shard to serve, or all shards that were sent
            count = 1 if serves else self._sent.get(_place(route), 0)
            if not count:
                raise ConfigError(
                    f"nothing is out to be served by '{route.group}' under tag {route.tag!r}: give batch_size=, or "
                    "have the tag in self.batch_router to serve others"
                )
            entries = plan(src_world_size=1, dst_world_size=1, batch_size=1).entries * count

        def finalize(items: list[dict[str, Any]]) -> Any:
            if not serves:
                self._sent.pop(_place(route), None)
                items = sorted(items, key=lambda item: split_channel_message(item["batch_index"])[1])
            merged = merge([item["batch"] for item in items])
            if serves:  # after the merge: the rows of shards that cannot be merged are in no answer
                router[route.tag] = [*(router[route.tag] or ()), *(item["batch_index"] for item in items)]
            return merged

        work.begin((self._receive_part(route, entry.key, -1) for entry in entries), finalize)

    def _receive_part(self, route: Route, key: Any, rank: int) -> Work[Any]:
        work: Work[Any]
        if route.channel is None:
            work = self._exchange.recv(route.group, rank, route.options, route.timeout)
        else:
            work = route.channel.get(key=key, async_op=True, timeout=route.timeout)
        return work

    # -- the other group ----------------------------------------------------------------------------------------

    def _begin(self, group: str, work: AsyncRouteWork, start: Callable[[int], None]) -> None:
        """Start the operation with the group's world size, after the operations that already wait for the group."""
        size = self._exchange.find_group(group)
        work.wait_for(size)
        self._waiting.setdefault(group, deque()).append((size, work, start))
        if not must_await():
            try:
                size.wait()
            except BaseException as error:
                # The work gets the error of the lookup. Any other error, from a signal handler for example, goes to
                # this caller, and the work must not start sending later.
                if error is not size._error:
                    work._lose_interest()
                    raise
            self._advance(group)
        elif size.done():
            self._advance(group)
        else:
            size._follow(functools.partial(_advance_there, asyncio.get_running_loop(), self, group))

    def _advance(self, group: str) -> None:
        waiting = self._waiting[group]
        # Another thread, running a ``@concurrent`` method, may execute this at the same time and take the next entry,
        # whose lookup may not be done. tests/_messaging/test_route_work.py::test_two_threads_start_what_is_known_once
        with self._order:
            while waiting and waiting[0][0].done():
                size, work, start = waiting.popleft()
                if work.done():
                    continue  # the work has been abandoned, and must not start sending now
                try:
                    start(size._result())
                except BaseException as error:
                    work.fail(error)
                    if isinstance(error, KeyboardInterrupt | SystemExit):
                        raise


def _advance_there(loop: asyncio.AbstractEventLoop, routes: Routes, group: str) -> None:
    """Call ``_advance`` on the loop of user code; called by the thread that received the answer."""
    with contextlib.suppress(RuntimeError):  # the loop is closed, so no code waits on it
        loop.call_soon_threadsafe(routes._advance, group)


def _split(split: SplitFn, data: Any, sizes: list[int]) -> Sequence[Any]:
    parts = split(data, sizes)
    if len(parts) != len(sizes):
        raise ConfigError(f"split_fn has made {len(parts)} parts of the batch, and {len(sizes)} are needed: {sizes}")
    return parts


def _router(worker: LocalWorker) -> dict[str | None, Any]:
    router = getattr(worker, "batch_router", None)
    if not isinstance(router, dict):
        raise ConfigError(
            "decoupled_mode needs self.batch_router: a dict, {tag: []} where this worker serves what others send under "
            "that tag, {} where it does not"
        )
    return router


def _place(route: Route) -> tuple[str, str | None, Any]:
    return route.group, route.tag, repr(route.route_key)

"""Routing plans without fixed partners: any free rank takes the next shard, and its result returns to the origin.

origin     shard, "0_1_train_obs" ──► the queue of (group, tag) ──► any rank of the other group
origin  ◄── the origin's own queue ◄── what has been made of it, under the same index
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_async.errors import ConfigError
from rlinf_async.routing.keys import ANY, RouteKey, build_route_channel_key
from rlinf_async.routing.mapper import CommMapper


@dataclass(frozen=True)
class DecoupledRouteEntry:
    """One shard on its way.

    Attributes:
        batch_size: rows; 0 where it is not known beforehand.
        key: the channel's key for it.
        batch_index: the name of the shard, which it has until it is back; empty for one that is yet to come.
    """

    batch_size: int
    key: RouteKey
    batch_index: str


@dataclass(frozen=True)
class DecoupledRoutePlan:
    """The shards of one rank, to send or to receive."""

    entries: tuple[DecoupledRouteEntry, ...]


def build_batch_index(send_rank: int, batch_idx: int, mode: str | None, tag: str | None) -> str:
    """The name of a shard: ``"rank_index_mode_tag"``.

    Raises:
        ConfigError: the mode has a ``_``, which ends it.
    """
    mode = mode or "default"
    if "_" in mode:
        raise ConfigError(f"mode={mode!r} must not contain '_'")
    return f"{send_rank}_{batch_idx}_{mode}_{tag or 'default'}"


def split_channel_message(channel_message: str) -> tuple[int, int, str, str]:
    """The rank that a shard comes from, its place among that rank's, its mode and its tag.

    Raises:
        ValueError: it is no name of a shard.
    """
    parts = channel_message.split("_", 3)
    if len(parts) != 4 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        raise ValueError(f"{channel_message!r} is no name of a shard: those are rank_index_mode_tag")
    return int(parts[0]), int(parts[1]), parts[2], parts[3]


def decoupled_build_send_plan(
    *,
    src_group_name: str,
    dst_group_name: str,
    src_rank: int | None,
    src_world_size: int,
    dst_world_size: int,
    tag: str | None,
    route_key: Any = None,
    batch_size: int,
    mode: str | None = None,
    tag_batch_router: Sequence[str] | None = None,
    send_queue_size: int = 0,
) -> DecoupledRoutePlan:
    """Return the shards that one rank sends.

    Args:
        src_rank: the sender's; of no account where it replies.
        batch_size: rows of all ranks of this group together; of a reply this rank's own.
        mode: stands in the shards' names.
        tag_batch_router: names of the shards that this replies to, in order; each part returns to its shard's origin.
        send_queue_size: shards to send; 0 for the rank's whole part.

    Raises:
        ConfigError: the batch cannot be cut like that.
        ValueError: one of ``tag_batch_router`` is no name of a shard.
    """
    if tag_batch_router:
        if batch_size % len(tag_batch_router):
            raise ConfigError(
                f"{batch_size} rows cannot be split evenly among {len(tag_batch_router)} shards to answer"
            )
        sizes, indexes = [batch_size // len(tag_batch_router)] * len(tag_batch_router), list(tag_batch_router)
        ranks: list[int] = [split_channel_message(index)[0] for index in indexes]
    else:
        sizes = CommMapper.decoupled_get_batch_size(batch_size, src_world_size, dst_world_size, send_queue_size)
        indexes = [build_batch_index(src_rank or 0, number, mode, tag) for number in range(len(sizes))]
        ranks = [ANY] * len(sizes)
    return DecoupledRoutePlan(
        tuple(
            DecoupledRouteEntry(
                size, build_route_channel_key(src_group_name, dst_group_name, ANY, rank, tag, route_key), index
            )
            for size, rank, index in zip(sizes, ranks, indexes, strict=True)
        )
    )


def decoupled_build_recv_plan(
    *,
    src_group_name: str,
    dst_group_name: str,
    recv_rank: int | None,
    src_world_size: int,
    dst_world_size: int,
    tag: str | None,
    route_key: Any = None,
    batch_size: int,
    recv_queue_size: int = 0,
) -> DecoupledRoutePlan:
    """Return the shards that one rank receives.

    Args:
        recv_rank: the receiver, which awaits the answers to its own shards; None where it serves any rank.
        src_world_size: ranks of the receiver's own group.
        dst_world_size: ranks of the other group.
        batch_size: rows of all ranks together.
        recv_queue_size: shards to receive; 0 for the rank's whole part.

    Raises:
        ConfigError: the batch cannot be cut like that.
    """
    key = build_route_channel_key(src_group_name, dst_group_name, ANY, recv_rank, tag, route_key)
    sizes = CommMapper.decoupled_get_batch_size(batch_size, src_world_size, dst_world_size, recv_queue_size)
    return DecoupledRoutePlan(tuple(DecoupledRouteEntry(size, key, "") for size in sizes))

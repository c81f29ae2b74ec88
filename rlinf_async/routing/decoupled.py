"""Routing plans without fixed partners: any free rank takes the next shard, and its result returns to the origin.

origin     shard, "0_1_train_obs" ──► the queue of (group, tag) ──► any rank of the other group
origin  ◄── the origin's own queue ◄── its result, under the same index
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
    """One shard, to send or to receive.

    Attributes:
        batch_size: rows of the shard; 0 if not known in advance.
        key: channel key of the shard.
        batch_index: name of the shard, which its result keeps; empty for a shard to receive.
    """

    batch_size: int
    key: RouteKey
    batch_index: str


@dataclass(frozen=True)
class DecoupledRoutePlan:
    """One rank's shards, to send or to receive."""

    entries: tuple[DecoupledRouteEntry, ...]


def build_batch_index(send_rank: int, batch_idx: int, mode: str | None, tag: str | None) -> str:
    """Return the name of a shard: ``"rank_index_mode_tag"``.

    Raises:
        ConfigError: the mode contains ``_``, the separator.
    """
    mode = mode or "default"
    if "_" in mode:
        raise ConfigError(f"mode={mode!r} must not contain '_'")
    return f"{send_rank}_{batch_idx}_{mode}_{tag or 'default'}"


def split_channel_message(channel_message: str) -> tuple[int, int, str, str]:
    """Return the rank from which a shard comes, its index there, its mode and its tag.

    Raises:
        ValueError: the string is not the name of a shard.
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
        src_rank: rank of the sender; ignored in a reply.
        batch_size: total rows of this group's ranks; in a reply, this rank's rows.
        mode: mode in the shards' names.
        tag_batch_router: in a reply, the names of the answered shards in order; each part returns to its shard's
            origin.
        send_queue_size: number of shards to send; 0 for all of the rank's shards.

    Raises:
        ConfigError: the batch cannot be divided evenly.
        ValueError: ``tag_batch_router`` contains a string that is not the name of a shard.
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
        recv_rank: rank of a receiver that awaits the answers to its own shards; None if it serves any rank.
        src_world_size: number of ranks in the receiver's group.
        dst_world_size: number of ranks in the other group.
        batch_size: total rows of all ranks.
        recv_queue_size: number of shards to receive; 0 for all of the rank's shards.

    Raises:
        ConfigError: the batch cannot be divided evenly.
    """
    key = build_route_channel_key(src_group_name, dst_group_name, ANY, recv_rank, tag, route_key)
    sizes = CommMapper.decoupled_get_batch_size(batch_size, src_world_size, dst_world_size, recv_queue_size)
    return DecoupledRoutePlan(tuple(DecoupledRouteEntry(size, key, "") for size in sizes))

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


def build_batch_index(send_rank: int, batch_idx: int, mode: str | None, tag: str | None) -> str:
    """The name of a shard: ``"rank_index_mode_tag"``.

    Raises:
        ConfigError: the mode has a ``_``, which ends it.
    """
    mode = mode or "default"
    if "_" in mode:
        raise ConfigError(f"mode={mode!r} must not contain '_'")
    return f"{send_rank}_{batch_idx}_{mode}_{tag or 'default'}"


def split_channel_message(batch_index: str) -> tuple[int, int, str, str]:
    """The rank that a shard comes from, its place among that rank's, its mode and its tag.

    Raises:
        ValueError: it is no name of a shard.
    """
    parts = batch_index.split("_", 3)
    if len(parts) != 4 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        raise ValueError(f"{batch_index!r} is no name of a shard: those are rank_index_mode_tag")
    return int(parts[0]), int(parts[1]), parts[2], parts[3]


def decoupled_build_send_plan(
    *,
    src_group: str,
    dst_group: str,
    src_rank: int,
    src_world_size: int,
    dst_world_size: int,
    batch_size: int,
    mode: str | None = None,
    tag: str | None = None,
    route_key: Any = None,
    queue_size: int = 0,
    replies_to: Sequence[str] = (),
) -> list[DecoupledRouteEntry]:
    """What one rank sends, shard by shard.

    Args:
        batch_size: rows of all ranks of this group together; with ``replies_to`` this rank's own.
        queue_size: into how many shards the whole batch is cut; 0 for as few as possible.
        replies_to: the names of the shards that this answers, in order; each part goes back to where that came from.

    Raises:
        ConfigError: the batch cannot be cut like that.
        ValueError: one of ``replies_to`` is no name of a shard.
    """
    if replies_to:
        if batch_size % len(replies_to):
            raise ConfigError(f"{batch_size} rows cannot be split evenly among {len(replies_to)} shards to answer")
        size = batch_size // len(replies_to)
        return [
            DecoupledRouteEntry(
                size,
                build_route_channel_key(src_group, dst_group, ANY, split_channel_message(index)[0], tag, route_key),
                index,
            )
            for index in replies_to
        ]
    shard = CommMapper.decoupled_get_batch_size(batch_size, src_world_size, dst_world_size, queue_size)
    key = build_route_channel_key(src_group, dst_group, ANY, ANY, tag, route_key)
    return [
        DecoupledRouteEntry(shard, key, build_batch_index(src_rank, number, mode, tag))
        for number in range(batch_size // src_world_size // shard)
    ]


def decoupled_build_recv_plan(
    *,
    src_group: str,
    dst_group: str,
    dst_rank: int,
    src_world_size: int,
    dst_world_size: int,
    batch_size: int,
    tag: str | None = None,
    route_key: Any = None,
    queue_size: int = 0,
    serves_any: bool = False,
) -> list[DecoupledRouteEntry]:
    """What one rank receives, shard by shard.

    Args:
        batch_size: rows of all ranks together.
        queue_size: as the sender has it.
        serves_any: takes whatever comes, from anybody; otherwise the answers to what this rank has sent.

    Raises:
        ConfigError: the batch cannot be cut like that.
    """
    shard = CommMapper.decoupled_get_batch_size(batch_size, src_world_size, dst_world_size, queue_size)
    to = ANY if serves_any else dst_rank
    key = build_route_channel_key(src_group, dst_group, ANY, to, tag, route_key)
    return [DecoupledRouteEntry(shard, key, "") for _ in range(batch_size // dst_world_size // shard)]

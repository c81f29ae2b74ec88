"""Matching send and receive plans between the ranks of two groups: peers, row counts and channel keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rlinf_async.routing.keys import RouteKey, build_route_channel_key
from rlinf_async.routing.mapper import CommMapper


@dataclass(frozen=True)
class RouteEntry:
    """The rows that one rank sends to another.

    Attributes:
        peer_rank: rank on the other side.
        batch_size: number of rows; 0 if not known in advance.
        key: channel key of the rows.
    """

    peer_rank: int
    batch_size: int
    key: RouteKey


@dataclass(frozen=True)
class RoutePlan:
    """One rank's entries, to send or to receive, in the order of the rows.

    Attributes:
        peer_group: name of the group on the other side.
        entries: one entry for each peer rank that shares rows with this rank.
    """

    peer_group: str
    entries: tuple[RouteEntry, ...]

    @property
    def batch_sizes(self) -> list[int]:
        return [entry.batch_size for entry in self.entries]

    @property
    def batch_size(self) -> int:
        """Total number of rows of this rank."""
        return sum(self.batch_sizes)


def build_send_plan(
    *,
    src_group_name: str,
    dst_group_name: str,
    src_rank: int,
    src_world_size: int,
    dst_world_size: int,
    batch_size: int,
    tag: str | None = None,
    route_key: Any = None,
) -> RoutePlan:
    """Return one source rank's sends.

    Args:
        batch_size: total rows of all ranks.

    Raises:
        ConfigError: a world size does not divide the batch.
    """
    shares = CommMapper.get_dst_ranks(batch_size, src_world_size, dst_world_size, src_rank)
    return RoutePlan(
        dst_group_name,
        tuple(
            RouteEntry(
                rank, size, build_route_channel_key(src_group_name, dst_group_name, src_rank, rank, tag, route_key)
            )
            for rank, size in shares
        ),
    )


def build_recv_plan(
    *,
    src_group_name: str,
    dst_group_name: str,
    dst_rank: int,
    src_world_size: int,
    dst_world_size: int,
    batch_size: int | None = None,
    tag: str | None = None,
    route_key: Any = None,
) -> RoutePlan:
    """Return one destination rank's receives.

    Args:
        batch_size: total rows of all ranks; None if unknown, in which case every entry's ``batch_size`` is 0.

    Raises:
        ConfigError: a world size does not divide the batch.
    """
    whole = math.lcm(src_world_size, dst_world_size) if batch_size is None else batch_size
    shares = CommMapper.get_src_ranks(whole, src_world_size, dst_world_size, dst_rank)
    return RoutePlan(
        src_group_name,
        tuple(
            RouteEntry(
                rank,
                0 if batch_size is None else size,
                build_route_channel_key(src_group_name, dst_group_name, rank, dst_rank, tag, route_key),
            )
            for rank, size in shares
        ),
    )

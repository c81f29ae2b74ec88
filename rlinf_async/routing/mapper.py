"""``CommMapper``: overlaps of two even splits of a batch, as peer ranks and row counts; shard sizes."""

from __future__ import annotations

import math
from typing import Any

from rlinf_async.errors import ConfigError


class CommMapper:
    """The overlaps of two even splits of one batch.

    Rank r of n has the rows from ``r * batch_size / n`` up to ``(r + 1) * batch_size / n``.  What a rank of the source
    has in common with a rank of the destination goes from the one to the other.

    Example:
        >>> CommMapper.get_dst_ranks(12, src_world_size=2, dst_world_size=3, src_rank=0)
        [(0, 4), (1, 2)]
        >>> CommMapper.get_src_ranks(12, src_world_size=2, dst_world_size=3, dst_rank=1)
        [(0, 2), (1, 2)]
    """

    @staticmethod
    def get_dst_ranks(
        batch_size: int, src_world_size: int, dst_world_size: int, src_rank: int
    ) -> list[tuple[int, int]]:
        """The ranks that a source's rows go to, in order, and how many rows.

        Raises:
            ConfigError: the batch does not divide by both world sizes, or there is no such rank.
        """
        return _overlaps(batch_size, src_world_size, dst_world_size, src_rank)

    @staticmethod
    def get_src_ranks(
        batch_size: int, src_world_size: int, dst_world_size: int, dst_rank: int
    ) -> list[tuple[int, int]]:
        """The ranks that a destination's rows come from, in order, and how many rows; errors as ``get_dst_ranks``."""
        return _overlaps(batch_size, dst_world_size, src_world_size, dst_rank)

    @staticmethod
    def build_channel_key(src_rank: int, dst_rank: int, extra: Any) -> str:
        """A channel's key for what goes from one rank to another."""
        return f"{src_rank}_{dst_rank}_{extra}"

    @staticmethod
    def decoupled_get_batch_size(
        batch_size: int, src_world_size: int, dst_world_size: int, queue_size: int = 0
    ) -> list[int]:
        """Return the rows of each shard that a rank of the source exchanges, where any rank may serve any other.

        Every rank of both groups has whole shards, which are as large as they can be.

        Args:
            batch_size: rows of all ranks of one group together.
            src_world_size: ranks of the group that asks, whether it sends or receives.
            dst_world_size: ranks of the other group.
            queue_size: shards that the rank exchanges at once; 0 for all of its part.

        Raises:
            ConfigError: the batch cannot be cut like that, or a rank has fewer shards than ``queue_size``.
        """
        own = _share(batch_size, src_world_size)
        shard = math.gcd(own, _share(batch_size, dst_world_size))
        count = own // shard
        if queue_size > count > 1:
            raise ConfigError(
                f"queue size {queue_size}: of a batch of {batch_size}, which {src_world_size} ranks exchange with "
                f"{dst_world_size}, each has {count} shards"
            )
        return [shard] * (min(queue_size, count) or count)


def _overlaps(batch_size: int, own_world_size: int, other_world_size: int, own_rank: int) -> list[tuple[int, int]]:
    own, other = _share(batch_size, own_world_size), _share(batch_size, other_world_size)
    if not 0 <= own_rank < own_world_size:
        raise ConfigError(f"there is no rank {own_rank} in a group of {own_world_size}")
    first, last = own_rank * own, (own_rank + 1) * own
    return [
        (rank, min(last, (rank + 1) * other) - max(first, rank * other))
        for rank in range(first // other, -(-last // other))
    ]


def _share(batch_size: int, parts: int) -> int:
    """Rows of each of so many equal parts."""
    if parts < 1 or batch_size < 1 or batch_size % parts:
        raise ConfigError(f"a batch of {batch_size} cannot be split evenly into {parts} parts")
    return batch_size // parts

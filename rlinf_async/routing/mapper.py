"""``CommMapper``: overlaps of two even splits of a batch, as peer ranks and row counts; shard sizes."""

from __future__ import annotations

import math
from typing import Any

from rlinf_async.errors import ConfigError


class CommMapper:
    """The overlaps of two even splits of one batch.

    Rank r of n has the rows from ``r * batch_size / n`` up to ``(r + 1) * batch_size / n``. A source rank sends each
    destination rank the rows that both have.

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
        """Return the ranks to which a source rank sends, in order, each with its number of rows.

        Raises:
            ConfigError: a world size does not divide the batch, or there is no such rank.
        """
        return _overlaps(batch_size, src_world_size, dst_world_size, src_rank)

    @staticmethod
    def get_src_ranks(
        batch_size: int, src_world_size: int, dst_world_size: int, dst_rank: int
    ) -> list[tuple[int, int]]:
        """Return the ranks from which a destination rank receives, each with its number of rows. Raises ConfigError."""
        return _overlaps(batch_size, dst_world_size, src_world_size, dst_rank)

    @staticmethod
    def build_channel_key(src_rank: int, dst_rank: int, extra: Any) -> str:
        """Return the channel key for the rows from one rank to another."""
        return f"{src_rank}_{dst_rank}_{extra}"

    @staticmethod
    def decoupled_get_batch_size(
        batch_size: int, src_world_size: int, dst_world_size: int, queue_size: int = 0
    ) -> list[int]:
        """Return the rows of each shard that a source rank exchanges when any rank may serve any other.

        Every rank of both groups has a whole number of shards, and the shards are as large as possible.

        Args:
            batch_size: total rows of one group's ranks.
            src_world_size: number of ranks in the calling group, which may send or receive.
            dst_world_size: number of ranks in the other group.
            queue_size: number of shards that the rank exchanges at once; 0 for all of its shards.

        Raises:
            ConfigError: the batch cannot be divided evenly, or a rank has fewer shards than ``queue_size``.
        """
        own = _share(batch_size, src_world_size)
        shard = math.gcd(own, _share(batch_size, dst_world_size))
        count = own // shard
        if queue_size > count > 1 or queue_size < 0:
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
    if parts < 1 or batch_size < 1 or batch_size % parts:
        raise ConfigError(f"a batch of {batch_size} cannot be split evenly into {parts} parts")
    return batch_size // parts

"""The packed placement strategy, the default: processes side by side on a range of accelerators or other hardware."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlinf_async.errors import ConfigError
from rlinf_async.placement.node_strategy import NodePlacementStrategy
from rlinf_async.placement.numbering import AcceleratorNumbering, ClusterShape
from rlinf_async.placement.placement import Placement
from rlinf_async.placement.resolver import MultiNodeGroupResolver, find_groups
from rlinf_async.placement.strategy import PlacementStrategy, build_placements, take_seat


@dataclass(frozen=True)
class PackedPlacementStrategy(PlacementStrategy):
    """A strategy that places processes side by side on a range of hardware, each on one or several pieces.

    Hardware is counted across the node groups in their order, and within a group in the order of its nodes. Each
    process takes the lowest free piece and further pieces at distance ``stride``. A process never spans nodes.

    Args:
        start_hardware_rank, end_hardware_rank: first and last piece of the range.
        num_hardware_per_process: pieces for each process.
        stride: distance between a process's pieces.
        node_group: one or several node groups whose hardware is counted; by default the whole cluster.

    Example:
        >>> [list(ranks) for ranks in PackedPlacementStrategy(0, 7, 2, stride=2).get_hardware_ranks()]
        [[0, 2], [1, 3], [4, 6], [5, 7]]

    Raises:
        ConfigError: the range is negative or empty, or does not divide evenly among the processes. ``get_placement``
            raises it if the groups have no hardware or not enough, if a process would span nodes or kinds of hardware,
            or if a group is unknown.
    """

    start_hardware_rank: int
    end_hardware_rank: int
    num_hardware_per_process: int = 1
    stride: int = 1
    node_group: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name in ("start_hardware_rank", "end_hardware_rank", "num_hardware_per_process", "stride"):
            value = getattr(self, name)
            if isinstance(value, bool) or not hasattr(type(value), "__index__"):
                raise ConfigError(f"{name} must be a whole number, got {value!r}")
        start, end = self.start_hardware_rank, self.end_hardware_rank
        if start < 0:
            raise ConfigError(f"The start hardware rank {start} must be non-negative")
        if end < start:
            raise ConfigError(
                f"The end hardware rank {end} must be greater than or equal to the start hardware rank {start}"
            )
        if self.num_hardware_per_process < 1 or self.stride < 1:
            raise ConfigError(
                f"num_hardware_per_process ({self.num_hardware_per_process}) and stride ({self.stride}) "
                "must be at least 1"
            )
        block = self.num_hardware_per_process * self.stride
        if (end - start + 1) % block:
            raise ConfigError(
                f"The number of hardware {end - start + 1} (ranks {start}-{end}) must be divisible by "
                f"num_hardware_per_process * stride ({block})"
            )

    @property
    def num_processes(self) -> int:
        return (self.end_hardware_rank - self.start_hardware_rank + 1) // self.num_hardware_per_process

    def get_hardware_ranks(self) -> Iterator[range]:
        """Yield the hardware ranks of process 0, 1, …, counted across the node groups."""
        # Strided processes interleave: `stride` of them fill a block without holes before the next block begins.
        block = self.num_hardware_per_process * self.stride
        for block_start in range(self.start_hardware_rank, self.end_hardware_rank + 1, block):
            for first in range(block_start, block_start + self.stride):
                yield range(first, block_start + block, self.stride)

    def get_placement(self, cluster: ClusterShape, isolate_accelerator: bool = True) -> list[Placement]:
        resolver = MultiNodeGroupResolver(find_groups(cluster, self.node_group))
        resolver.check_counts_hardware("Packed")
        if self.end_hardware_rank >= resolver.hardware_resource_count:
            raise ConfigError(
                f"Hardware ranks {self.start_hardware_rank}-{self.end_hardware_rank} exceed available resources: "
                f"{resolver.describe()}"
            )
        seats = [take_seat(resolver, rank, ranks) for rank, ranks in enumerate(self.get_hardware_ranks())]
        return build_placements(cluster, seats, isolate_accelerator=isolate_accelerator)


def default_strategy(cluster: ClusterShape) -> PlacementStrategy:
    """Return a strategy with one process per accelerator or, if there are none, one process on node 0."""
    num_accelerators = AcceleratorNumbering(cluster).num_accelerators
    if num_accelerators:
        return PackedPlacementStrategy(0, num_accelerators - 1)
    return NodePlacementStrategy([0])

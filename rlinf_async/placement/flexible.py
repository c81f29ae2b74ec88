"""A placement strategy with an explicit list of hardware ranks for each process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlinf_async.errors import ConfigError
from rlinf_async.placement.numbering import ClusterShape, read_ranks
from rlinf_async.placement.placement import Placement
from rlinf_async.placement.resolver import MultiNodeGroupResolver, find_groups
from rlinf_async.placement.strategy import PlacementStrategy, build_placements, take_seat


@dataclass(frozen=True)
class FlexiblePlacementStrategy(PlacementStrategy):
    """A strategy that gives each process an explicit list of hardware; several processes may share a piece.

    Rank ``i`` gets the ``i``-th list and sees its devices in that order.

    Args:
        hardware_ranks_list: for each process, its hardware ranks, counted across the node groups; all on one node.
        node_group_label: one or several node groups whose hardware is counted; by default the whole cluster.

    Example:
        >>> FlexiblePlacementStrategy([[4], [2, 1], [2]]).hardware_ranks_list
        ((4,), (2, 1), (2,))

    Raises:
        ConfigError: a list is empty, contains a negative rank, or repeats a rank. ``get_placement`` raises it if the
            groups lack one of these ranks or have no hardware, if a process would span nodes or kinds of hardware, or
            if a group is unknown.
    """

    hardware_ranks_list: Sequence[Sequence[int]]
    node_group_label: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        given = self.hardware_ranks_list
        lists = tuple(given) if isinstance(given, Iterable) else ()
        if not lists:
            raise ConfigError(
                f"The hardware_ranks_list must not be empty: give each process its accelerators, got {given!r}"
            )
        lists = tuple(read_ranks(each, f"The hardware ranks of process {rank}") for rank, each in enumerate(lists))
        for process, hardware_ranks in enumerate(lists):
            if not hardware_ranks:
                raise ConfigError(f"The hardware ranks of process {process} must not be empty")
            if min(hardware_ranks) < 0:
                raise ConfigError(
                    f"The hardware ranks {list(hardware_ranks)} of process {process} must be non-negative"
                )
            if len(set(hardware_ranks)) != len(hardware_ranks):
                raise ConfigError(f"All hardware ranks {list(hardware_ranks)} of process {process} must be unique")
        object.__setattr__(self, "hardware_ranks_list", lists)

    def get_placement(self, cluster: ClusterShape, isolate_accelerator: bool = True) -> list[Placement]:
        resolver = MultiNodeGroupResolver(find_groups(cluster, self.node_group_label))
        resolver.check_counts_hardware("Flexible")
        seats = [take_seat(resolver, rank, ranks) for rank, ranks in enumerate(self.hardware_ranks_list)]
        return build_placements(cluster, seats, isolate_accelerator=isolate_accelerator)

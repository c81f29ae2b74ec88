"""The interface ``PlacementStrategy``, and the builder of ``Placement`` records from chosen nodes and devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_async.address import NodeInfo
from rlinf_async.configuration import ACCELERATOR, NODE_GROUP, NodeGroup
from rlinf_async.errors import ConfigError
from rlinf_async.hardware import AcceleratorType
from rlinf_async.placement.numbering import AcceleratorNumbering, ClusterShape, name_node
from rlinf_async.placement.placement import Placement
from rlinf_async.placement.resolver import MultiNodeGroupResolver


class PlacementStrategy(ABC):
    """Decides on which node and devices each rank of a group runs.

    Attributes:
        component: name of the component whose placement rule created this strategy; empty if no rule did.
    """

    component: str = ""

    @abstractmethod
    def get_placement(self, cluster: ClusterShape, isolate_accelerator: bool = True) -> list[Placement]:
        """Place every rank: ``result[i]`` is for rank ``i``. Equal arguments must give equal results.

        Args:
            cluster: object with ``nodes`` and, optionally, ``node_groups``.
            isolate_accelerator: if True, a worker sees only its own accelerators, not all of its node's.

        Raises:
            ConfigError: the cluster lacks the requested nodes or hardware.
        """


def check_strategy(given: Any) -> PlacementStrategy:
    """Return the argument of ``launch(placement_strategy=...)`` if it is a strategy.

    Raises:
        TypeError: it is not a strategy; the message suggests strategies that the caller may have meant.
    """
    if isinstance(given, type) or not callable(getattr(given, "get_placement", None)):
        got = f"the class {given.__name__}" if isinstance(given, type) else f"{given!r} ({type(given).__name__})"
        raise TypeError(f"placement_strategy= takes a placement strategy, got {got}: write {_suggest_strategy(given)}")
    strategy: PlacementStrategy = given
    return strategy


def _suggest_strategy(given: Any) -> str:
    """Suggest strategies to a caller who passed nodes, accelerators or a process count instead of a strategy."""
    if isinstance(given, type) and issubclass(given, PlacementStrategy):
        return f"{given.__name__}(...), an instance of it"
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        accelerators = f"accelerators 0-{given - 1}" if given > 1 else "accelerator 0"
        return (
            f"NodePlacementStrategy([0] * {given}) for {given} on node 0, or "
            f"PackedPlacementStrategy(0, {given - 1}) for one on each of {accelerators}"
        )
    if isinstance(given, list | tuple | range) and given and all(type(rank) is int and rank >= 0 for rank in given):
        ranks = list(given)
        is_range = ranks == list(range(ranks[0], ranks[-1] + 1))
        by_hardware = (
            f"PackedPlacementStrategy({ranks[0]}, {ranks[-1]})"
            if is_range
            else f"FlexiblePlacementStrategy({[[rank] for rank in ranks]})"
        )
        return f"NodePlacementStrategy({ranks}) if these are nodes, {by_hardware} if they are accelerators"
    return (
        "NodePlacementStrategy([0, 0]) for nodes, PackedPlacementStrategy(0, 3) for accelerators, or "
        "ComponentPlacement(config, cluster).get_strategy(name) for a rule of cluster.component_placement"
    )


@dataclass(frozen=True)
class Seat:
    """The place of one process: its node as a member of a group, and the pieces of hardware that it owns."""

    group: NodeGroup
    node: NodeInfo
    own: tuple[int, ...] = ()


def take_seat(resolver: MultiNodeGroupResolver, rank: int, hardware_ranks: Sequence[int]) -> Seat:
    """Return the seat of a process that has these pieces of hardware.

    Raises:
        ConfigError: the pieces are on several nodes or of several kinds.
    """
    pieces = [resolver.locate(hardware_rank) for hardware_rank in hardware_ranks]
    first = pieces[0]
    for piece in pieces[1:]:
        if piece.node is not first.node:
            raise ConfigError(
                f"Rank {rank} would get hardware ranks {list(hardware_ranks)}, which lie on "
                f"{name_node(first.node)} and {name_node(piece.node)}; a process cannot spread across multiple nodes, "
                f"all must be on the same node: {resolver.describe()}"
            )
        if piece.group is not first.group:
            kinds = " and ".join(str(each.group.counted_hardware) for each in (first, piece))
            raise ConfigError(
                f"Rank {rank} would get hardware ranks {list(hardware_ranks)}, which are of the types {kinds}; "
                "all hardware of a process must be of the same type"
            )
    return Seat(first.group, first.node, tuple(piece.position for piece in pieces))


def build_placements(cluster: ClusterShape, seats: Sequence[Seat], *, isolate_accelerator: bool) -> list[Placement]:
    """Build the placements of ranks 0, 1, … from their seats.

    A rank without its own accelerators sees all of its node's, regardless of ``isolate_accelerator``. In a configured
    group that ignores hardware, it sees none.
    """
    workers_on = Counter(seat.node.node_rank for seat in seats)
    node_order = {node_rank: order for order, node_rank in enumerate(workers_on)}
    first_accelerators = AcceleratorNumbering(cluster).get_first_accelerators()
    placed: Counter[int] = Counter()
    placements = []
    for rank, seat in enumerate(seats):
        node, node_rank = seat.node, seat.node.node_rank
        hardware_type = seat.group.counted_hardware if seat.own else None
        own = seat.own if hardware_type == ACCELERATOR else ()
        is_blind = seat.group.ignore_hardware and seat.group.label != NODE_GROUP
        everything = () if is_blind else tuple(range(node.num_accelerators))
        visible = own if own and isolate_accelerator else everything
        placements.append(
            Placement(
                rank=rank,
                cluster_node_rank=node_rank,
                placement_node_rank=node_order[node_rank],
                local_accelerator_rank=(own or visible[:1] or (-1,))[0],
                accelerator_type=AcceleratorType.NO_ACCEL.value if is_blind else node.accelerator_type,
                local_rank=placed[node_rank],
                local_world_size=workers_on[node_rank],
                visible_accelerators=tuple(node.accelerators[position] for position in visible),
                isolate_accelerator=isolate_accelerator,
                local_hardware_ranks=seat.own,
                node_group_label=seat.group.label,
                global_accelerator_ids=tuple(first_accelerators[node_rank] + position for position in visible),
                hardware_type=hardware_type or "",
            )
        )
        placed[node_rank] += 1
    return placements

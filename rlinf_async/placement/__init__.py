"""From what is asked for and what a cluster has to one place per rank: pure functions, no processes."""

from .component import HybridComponentPlacement, PlacementMode
from .default import default_strategy
from .environment import worker_environment
from .flexible import FlexiblePlacementStrategy
from .inventory import ClusterShape
from .node import NodePlacementStrategy, NodeRankError
from .packed import PackedPlacementStrategy
from .placement import Placement
from .strategy import PlacementStrategy

__all__ = [
    "ClusterShape",
    "FlexiblePlacementStrategy",
    "HybridComponentPlacement",
    "NodePlacementStrategy",
    "NodeRankError",
    "PackedPlacementStrategy",
    "Placement",
    "PlacementMode",
    "PlacementStrategy",
    "default_strategy",
    "worker_environment",
]

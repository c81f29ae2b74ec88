"""From what is asked for and what a cluster has to one place per rank: pure functions, no processes."""

from .chart import Chart, NodeChart, Spot, make_chart
from .component import ComponentPlacement, HybridComponentPlacement
from .default import default_strategy
from .environment import worker_environment
from .flexible import FlexiblePlacementStrategy
from .inventory import ClusterShape
from .model_parallel import (
    ModelParallelComponentPlacement,
    ModelParallelEvalComponentPlacement,
    MultiAgentModelParallelComponentPlacement,
    MultiAgentModelParallelEvalComponentPlacement,
)
from .modes import PlacementMode, RolloutSyncMode, placement_mode_to_rollout_sync_mode
from .node import NodePlacementStrategy, NodeRankError
from .packed import PackedPlacementStrategy
from .placement import Placement
from .resolver import MultiNodeGroupResolver
from .sizes import ParallelSizes
from .strategy import PlacementStrategy

__all__ = [
    "Chart",
    "ClusterShape",
    "ComponentPlacement",
    "FlexiblePlacementStrategy",
    "HybridComponentPlacement",
    "ModelParallelComponentPlacement",
    "ModelParallelEvalComponentPlacement",
    "MultiAgentModelParallelComponentPlacement",
    "MultiAgentModelParallelEvalComponentPlacement",
    "MultiNodeGroupResolver",
    "NodeChart",
    "NodePlacementStrategy",
    "NodeRankError",
    "PackedPlacementStrategy",
    "ParallelSizes",
    "Placement",
    "PlacementMode",
    "PlacementStrategy",
    "RolloutSyncMode",
    "Spot",
    "default_strategy",
    "make_chart",
    "placement_mode_to_rollout_sync_mode",
    "worker_environment",
]

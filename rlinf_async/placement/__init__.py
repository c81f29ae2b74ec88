"""From what is asked for and what a cluster has to one place per rank: pure functions, no processes."""

from rlinf_async.placement.chart import Chart, NodeChart, Spot, make_chart
from rlinf_async.placement.component import ComponentPlacement, HybridComponentPlacement
from rlinf_async.placement.flexible import FlexiblePlacementStrategy
from rlinf_async.placement.model_parallel import (
    ModelParallelComponentPlacement,
    ModelParallelEvalComponentPlacement,
    MultiAgentModelParallelComponentPlacement,
    MultiAgentModelParallelEvalComponentPlacement,
)
from rlinf_async.placement.modes import PlacementMode, RolloutSyncMode, placement_mode_to_rollout_sync_mode
from rlinf_async.placement.node_strategy import NodePlacementStrategy, NodeRankError
from rlinf_async.placement.numbering import ClusterShape
from rlinf_async.placement.packed import PackedPlacementStrategy, default_strategy
from rlinf_async.placement.placement import Placement
from rlinf_async.placement.resolver import MultiNodeGroupResolver
from rlinf_async.placement.sizes import ParallelSizes
from rlinf_async.placement.strategy import PlacementStrategy
from rlinf_async.placement.worker_variables import worker_environment

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

"""Placement of worker groups: strategies and rules that assign each rank its node and devices; pure functions."""

from rlinf_async.placement.chart import Chart as Chart, NodeChart as NodeChart, Spot as Spot, make_chart as make_chart
from rlinf_async.placement.component import (
    ComponentPlacement as ComponentPlacement,
    HybridComponentPlacement as HybridComponentPlacement,
)
from rlinf_async.placement.flexible import FlexiblePlacementStrategy as FlexiblePlacementStrategy
from rlinf_async.placement.model_parallel import (
    ModelParallelComponentPlacement as ModelParallelComponentPlacement,
    ModelParallelEvalComponentPlacement as ModelParallelEvalComponentPlacement,
    MultiAgentModelParallelComponentPlacement as MultiAgentModelParallelComponentPlacement,
    MultiAgentModelParallelEvalComponentPlacement as MultiAgentModelParallelEvalComponentPlacement,
)
from rlinf_async.placement.modes import (
    PlacementMode as PlacementMode,
    RolloutSyncMode as RolloutSyncMode,
    placement_mode_to_rollout_sync_mode as placement_mode_to_rollout_sync_mode,
)
from rlinf_async.placement.node_strategy import (
    NodePlacementStrategy as NodePlacementStrategy,
    NodeRankError as NodeRankError,
)
from rlinf_async.placement.numbering import ClusterShape as ClusterShape
from rlinf_async.placement.packed import (
    PackedPlacementStrategy as PackedPlacementStrategy,
    default_strategy as default_strategy,
)
from rlinf_async.placement.placement import Placement as Placement
from rlinf_async.placement.resolver import MultiNodeGroupResolver as MultiNodeGroupResolver
from rlinf_async.placement.strategy import (
    PlacementStrategy as PlacementStrategy,
    check_strategy as check_strategy,
)
from rlinf_async.placement.worker_variables import worker_environment as worker_environment

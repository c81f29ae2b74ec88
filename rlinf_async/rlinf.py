"""RLinf's other names: of its scheduler and its weight syncers, for code that is ported from there."""

from typing import TYPE_CHECKING

from rlinf_async._public_names import lazy_names

if TYPE_CHECKING:
    from rlinf_async._cluster.sys_variables import ClusterEnvVar as ClusterEnvVar
    from rlinf_async._messaging.collective_options import CollectiveGroupOptions as CollectiveGroupOptions
    from rlinf_async._worker.accelerator_util import AcceleratorUtil as AcceleratorUtil
    from rlinf_async._worker.routing import get_group_world_size as get_group_world_size
    from rlinf_async.errors import WrongBase as WrongBase
    from rlinf_async.handle import WorkerGroupFuncResult as WorkerGroupFuncResult
    from rlinf_async.hardware import AcceleratorType as AcceleratorType
    from rlinf_async.hardware import HardwareConfig as HardwareConfig
    from rlinf_async.hardware import HardwareInfo as HardwareInfo
    from rlinf_async.hardware import HardwareResource as HardwareResource
    from rlinf_async.hardware import NodeHardwareConfig as NodeHardwareConfig
    from rlinf_async.placement import HybridComponentPlacement as HybridComponentPlacement
    from rlinf_async.placement import ModelParallelComponentPlacement as ModelParallelComponentPlacement
    from rlinf_async.placement import ModelParallelEvalComponentPlacement as ModelParallelEvalComponentPlacement
    from rlinf_async.placement import (
        MultiAgentModelParallelComponentPlacement as MultiAgentModelParallelComponentPlacement,
    )
    from rlinf_async.placement import (
        MultiAgentModelParallelEvalComponentPlacement as MultiAgentModelParallelEvalComponentPlacement,
    )
    from rlinf_async.placement import Placement as Placement
    from rlinf_async.placement import PlacementMode as PlacementMode
    from rlinf_async.placement import RolloutSyncMode as RolloutSyncMode
    from rlinf_async.placement import placement_mode_to_rollout_sync_mode as placement_mode_to_rollout_sync_mode
    from rlinf_async.profiling import NsightConfig as NsightConfig
    from rlinf_async.profiling import RocprofSysConfig as RocprofSysConfig
    from rlinf_async.routing import CommMapper as CommMapper
    from rlinf_async.routing import build_recv_plan as build_recv_plan
    from rlinf_async.routing import build_route_channel_key as build_route_channel_key
    from rlinf_async.routing import build_send_key as build_send_key
    from rlinf_async.routing import build_send_plan as build_send_plan
    from rlinf_async.routing import decoupled_build_recv_plan as decoupled_build_recv_plan
    from rlinf_async.routing import get_batch_size as get_batch_size
    from rlinf_async.routing import infer_batch_size as infer_batch_size
    from rlinf_async.routing import merge_batches as merge_batches
    from rlinf_async.routing import split_batch as split_batch
    from rlinf_async.routing import split_channel_message as split_channel_message
    from rlinf_async.weights.syncers.bucket_syncer import BucketWeightSyncer as BucketWeightSyncer
    from rlinf_async.weights.syncers.buckets import iter_named_tensor_buckets as iter_named_tensor_buckets
    from rlinf_async.weights.syncers.patch import CompressedWeightPatch as CompressedWeightPatch
    from rlinf_async.weights.syncers.patch import EmptyWeightPatch as EmptyWeightPatch
    from rlinf_async.weights.syncers.patch import WeightPatch as WeightPatch
    from rlinf_async.weights.syncers.patch_syncer import PatchWeightSyncer as PatchWeightSyncer
    from rlinf_async.weights.syncers.syncer import WeightSyncer as WeightSyncer
    from rlinf_async.weights.syncers.syncer import collect_param_names_need_sync as collect_param_names_need_sync
else:
    __getattr__, __dir__ = lazy_names(__name__)

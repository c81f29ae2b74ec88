"""RLinf's names that ``rlinf_async.__all__`` omits (placement, routing, weight syncers, ...), for ported code."""

from typing import TYPE_CHECKING

from rlinf_async._public_names import lazy_names

if TYPE_CHECKING:
    from rlinf_async._cluster.sys_variables import ClusterEnvVar as ClusterEnvVar
    from rlinf_async._messaging.collective_options import CollectiveGroupOptions as CollectiveGroupOptions
    from rlinf_async._worker.accelerator_util import AcceleratorUtil as AcceleratorUtil
    from rlinf_async.errors import WrongBase as WrongBase
    from rlinf_async.handle import WorkerGroupFuncResult as WorkerGroupFuncResult
    from rlinf_async.hardware import (
        AcceleratorType as AcceleratorType,
        HardwareConfig as HardwareConfig,
        HardwareInfo as HardwareInfo,
        HardwareResource as HardwareResource,
        NodeHardwareConfig as NodeHardwareConfig,
    )
    from rlinf_async.hardware.robots import (
        DOSW1HWInfo as DOSW1HWInfo,
        DualFrankaHWInfo as DualFrankaHWInfo,
        FrankaHWInfo as FrankaHWInfo,
        GimArmHWInfo as GimArmHWInfo,
        Turtle2HWInfo as Turtle2HWInfo,
    )
    from rlinf_async.placement import (
        HybridComponentPlacement as HybridComponentPlacement,
        ModelParallelComponentPlacement as ModelParallelComponentPlacement,
        ModelParallelEvalComponentPlacement as ModelParallelEvalComponentPlacement,
        MultiAgentModelParallelComponentPlacement as MultiAgentModelParallelComponentPlacement,
        MultiAgentModelParallelEvalComponentPlacement as MultiAgentModelParallelEvalComponentPlacement,
        Placement as Placement,
        PlacementMode as PlacementMode,
        RolloutSyncMode as RolloutSyncMode,
        placement_mode_to_rollout_sync_mode as placement_mode_to_rollout_sync_mode,
    )
    from rlinf_async.profiling import NsightConfig as NsightConfig, RocprofSysConfig as RocprofSysConfig
    from rlinf_async.rlinf.bucket_syncer import BucketWeightSyncer as BucketWeightSyncer
    from rlinf_async.rlinf.buckets import iter_named_tensor_buckets as iter_named_tensor_buckets
    from rlinf_async.rlinf.patch import (
        CompressedWeightPatch as CompressedWeightPatch,
        EmptyWeightPatch as EmptyWeightPatch,
        WeightPatch as WeightPatch,
    )
    from rlinf_async.rlinf.patch_syncer import PatchWeightSyncer as PatchWeightSyncer
    from rlinf_async.rlinf.rlinf_worker import (
        AsyncRouteWork as AsyncRouteWork,
        get_group_world_size as get_group_world_size,
    )
    from rlinf_async.rlinf.syncer import (
        WeightSyncer as WeightSyncer,
        collect_param_names_need_sync as collect_param_names_need_sync,
    )
    from rlinf_async.routing import (
        CommMapper as CommMapper,
        build_recv_plan as build_recv_plan,
        build_route_channel_key as build_route_channel_key,
        build_send_key as build_send_key,
        build_send_plan as build_send_plan,
        decoupled_build_recv_plan as decoupled_build_recv_plan,
        get_batch_size as get_batch_size,
        infer_batch_size as infer_batch_size,
        merge_batches as merge_batches,
        split_batch as split_batch,
        split_channel_message as split_channel_message,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

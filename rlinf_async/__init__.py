"""rlinf_async: an asyncio-native actor framework for distributed reinforcement learning."""

# The house.  Imports run down this list only; tests/test_layers.py holds it so.
#
#   errors      every exception          address    frozen names for things
#   core/       plain state: frames, codec, calls, failures, directory, segments; no IO
#   hardware/   accelerators by their makers, robots, what users register of their own; no torch
#   configuration/  the cluster section: node groups, variables, interpreters; read and checked
#   placement/  (configuration, cluster shape) -> one place per rank
#   routing/    which rows of a batch go from which rank to which
#   wire/       frames over a connection: UNIX sockets, gRPC, a daemon's stdin; credentials
#   work, each  one thing to wait for; per-rank arguments   loop_thread  where there is no loop
#   client      this process's seat at its node
#   trace, tracing, tracer               what is done when: spans of this process, to one file of the run
#   far_links                            what is sent to workers that seem to be far away
#   channel                              queues; wish, queues, replicas, local_queue, registry are its parts
#   outcome, handle, stream              one call on many ranks
#   data/       tensors                  worker/    inside a worker process
#   members, group, settings, launch     many workers as one object
#   nodes, own_nodes, output, sys_variables, cluster   the way into a run
#
# launcher/ is the other package: how processes come to exist and stop.  Nothing here imports it.
# Importing this page imports neither torch nor grpc.

from rlinf_async.address import NodeInfo, WorkerAddress, WorkerInfo
from rlinf_async.channel import Channel, WeightedItem
from rlinf_async.cluster import Cluster
from rlinf_async.configuration import ClusterConfig
from rlinf_async.each import each
from rlinf_async.errors import (
    AuthError,
    ClosedError,
    ConfigError,
    DeadlineExceeded,
    EndOfChannel,
    LaunchError,
    NodeLost,
    PeerLost,
    RemoteError,
    RLinfAsyncError,
    SerializationError,
    TransferFailed,
    VersionMismatch,
    WorkerDied,
)
from rlinf_async.group import WorkerGroup
from rlinf_async.handle import Handle
from rlinf_async.hardware import (
    AcceleratorFamily,
    AcceleratorType,
    Hardware,
    HardwareConfig,
    HardwareInfo,
    HardwareResource,
    NodeHardwareConfig,
    register_accelerator,
)
from rlinf_async.outcome import Outcome
from rlinf_async.placement import (
    ComponentPlacement,
    FlexiblePlacementStrategy,
    HybridComponentPlacement,
    ModelParallelComponentPlacement,
    ModelParallelEvalComponentPlacement,
    MultiAgentModelParallelComponentPlacement,
    MultiAgentModelParallelEvalComponentPlacement,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Placement,
    PlacementMode,
    PlacementStrategy,
    RolloutSyncMode,
    placement_mode_to_rollout_sync_mode,
)
from rlinf_async.profiling import NsightConfig, ProfileConfig, RocprofSysConfig, TorchProfileConfig
from rlinf_async.routing import (
    CommMapper,
    build_recv_plan,
    build_route_channel_key,
    build_send_key,
    build_send_plan,
    decoupled_build_recv_plan,
    get_batch_size,
    infer_batch_size,
    merge_batches,
    split_batch,
    split_channel_message,
)
from rlinf_async.stream import Stream
from rlinf_async.sys_variables import ClusterEnvVar
from rlinf_async.tracer import Tracer
from rlinf_async.work import Work
from rlinf_async.worker.accelerator_util import AcceleratorUtil
from rlinf_async.worker.base import Worker
from rlinf_async.worker.options import CollectiveGroupOptions
from rlinf_async.worker.routing import get_group_world_size

WorkerGroupFuncResult = Handle
"""RLinf's name."""

__version__ = "0.1.0"

__all__ = [
    "AcceleratorFamily",
    "AcceleratorType",
    "AcceleratorUtil",
    "AuthError",
    "Channel",
    "ClosedError",
    "Cluster",
    "ClusterConfig",
    "ClusterEnvVar",
    "CollectiveGroupOptions",
    "CommMapper",
    "ComponentPlacement",
    "ConfigError",
    "DeadlineExceeded",
    "EndOfChannel",
    "FlexiblePlacementStrategy",
    "Handle",
    "Hardware",
    "HardwareConfig",
    "HardwareInfo",
    "HardwareResource",
    "HybridComponentPlacement",
    "LaunchError",
    "ModelParallelComponentPlacement",
    "ModelParallelEvalComponentPlacement",
    "MultiAgentModelParallelComponentPlacement",
    "MultiAgentModelParallelEvalComponentPlacement",
    "NodeHardwareConfig",
    "NodeInfo",
    "NodeLost",
    "NodePlacementStrategy",
    "NsightConfig",
    "Outcome",
    "PackedPlacementStrategy",
    "PeerLost",
    "Placement",
    "PlacementMode",
    "PlacementStrategy",
    "ProfileConfig",
    "RLinfAsyncError",
    "RemoteError",
    "RocprofSysConfig",
    "RolloutSyncMode",
    "SerializationError",
    "Stream",
    "TorchProfileConfig",
    "Tracer",
    "TransferFailed",
    "VersionMismatch",
    "WeightedItem",
    "Work",
    "Worker",
    "WorkerAddress",
    "WorkerDied",
    "WorkerGroup",
    "WorkerGroupFuncResult",
    "WorkerInfo",
    "build_recv_plan",
    "build_route_channel_key",
    "build_send_key",
    "build_send_plan",
    "decoupled_build_recv_plan",
    "each",
    "get_batch_size",
    "get_group_world_size",
    "infer_batch_size",
    "merge_batches",
    "placement_mode_to_rollout_sync_mode",
    "register_accelerator",
    "split_batch",
    "split_channel_message",
]

"""rlinf_async: an asyncio-native actor framework for distributed reinforcement learning."""

# The house.  Imports run down this list only; tests/test_layers.py holds it so.  An underscore: internal.
#
#   errors, settings, address           every exception; timeouts and limits that a user may change; names for things
#   _core/              plain state: frames, codec, pending calls, failures, directory, segments; no IO, no asyncio
#   _channels/state/    the queue of a channel          _messaging/state/   matching and flow control of messages
#   _trace/state/       spans, clocks, the trace's file
#   hardware/           accelerators by their makers, robots, what users register of their own; no torch
#   profiling/          a worker under a profiler: what is asked for, and the command
#   configuration/      the cluster section: node groups, variables, interpreters; read and checked
#   placement/          (configuration, cluster shape) -> one place per rank
#   routing/            which rows of a batch go from which rank to which
#   _waits/             the table of what waits, words about long waits, errors that nobody awaited
#   _wire/              frames over a connection: UNIX sockets, gRPC, a daemon's stdin; credentials
#   work                one thing to wait for, from any thread and any loop
#   _client/            this process's connection to its node's daemon: calls, requests, direct calls, events
#   _trace/             what this process records, and the way to the file
#   _channels/, channel requests to a queue, near or far; what users hold of it
#   outcome, handle, stream             one call on many ranks
#   _transports/        tensors between two workers: Link and its kinds
#   _messaging/         send, recv, broadcast: exchange, outbox, inbox, routes
#   _group/             the processes of a group, arguments per rank, failure notices
#   _worker/, worker    inside a worker process; what users derive their classes from
#   group, _cluster/, cluster           many workers as one object; launching; the way into a run
#
#   weights/            a trainer's weights at its rollout workers; loaded when one of its names is asked for
#     state/, waiting/  versions, reports, words; threads, conditions and gates
#     model/            the tensors of a model: found, laid out, gathered, compared, written
#     gpu/, slots/      CUDA's part; the memory that versions lie in
#     links/, plane/    words between processes; Publisher and Subscriber, on one machine and over many
#     transports/       TorchRL's carriers      schemes/, syncers/   TorchRL's and RLinf's interfaces
#
# launcher/ (imported as rlinf_launcher) is the other package: how processes come to exist and stop.  Nothing here
# imports it.  Importing this page imports neither torch nor grpc.

import importlib
from typing import TYPE_CHECKING, Any, Final

from rlinf_async._cluster.sys_variables import ClusterEnvVar
from rlinf_async._group.each import each
from rlinf_async._group.wait_all import wait_all
from rlinf_async._messaging.collective_options import CollectiveGroupOptions
from rlinf_async._trace.tracer import Tracer
from rlinf_async._worker.accelerator_util import AcceleratorUtil
from rlinf_async._worker.routing import get_group_world_size
from rlinf_async.address import NodeInfo, WorkerAddress, WorkerInfo
from rlinf_async.channel import Channel, WeightedItem
from rlinf_async.cluster import Cluster
from rlinf_async.configuration import ClusterConfig
from rlinf_async.errors import (
    AuthError,
    ClosedError,
    ConfigError,
    DeadlineExceeded,
    EndOfChannel,
    ForkedProcessError,
    LaunchError,
    LoopNotRunning,
    NodeLost,
    PeerLost,
    RemoteError,
    RLinfAsyncError,
    SerializationError,
    StaleVersion,
    TransferFailed,
    UnobservedFailure,
    VersionMismatch,
    WeightMismatch,
    WorkerDied,
    WrongAcknowledgement,
    WrongBase,
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
from rlinf_async.work import Work
from rlinf_async.worker import Worker

if TYPE_CHECKING:
    from rlinf_async.weights import (
        BucketWeightSyncer,
        DistributedTransport,
        DistributedWeightSyncScheme,
        ModuleTransformReceiver,
        ModuleTransformScheme,
        ModuleTransformSender,
        MPTransport,
        MultiProcessWeightSyncScheme,
        NoWeightSyncScheme,
        PatchWeightSyncer,
        RayActorTransport,
        RayModuleTransformReceiver,
        RayModuleTransformScheme,
        RayModuleTransformSender,
        RayTransport,
        RayWeightSyncScheme,
        RPCTransport,
        RPCWeightSyncScheme,
        SharedMemTransport,
        SharedMemWeightSyncScheme,
        SyncHandle,
        SyncReport,
        TransportBackend,
        WeightReceiver,
        WeightSender,
        WeightStrategy,
        WeightSyncer,
        WeightSyncScheme,
        WorkerActorTransport,
        WorkerModuleTransformReceiver,
        WorkerModuleTransformScheme,
        WorkerModuleTransformSender,
        WorkerTransport,
        WorkerWeightSyncScheme,
        register_weight_sync_backend,
    )

WorkerGroupFuncResult = Handle
"""RLinf's name."""

__version__ = "0.1.0"

_WEIGHTS: Final = frozenset(
    {
        "BucketWeightSyncer",
        "DistributedTransport",
        "DistributedWeightSyncScheme",
        "MPTransport",
        "ModuleTransformReceiver",
        "ModuleTransformScheme",
        "ModuleTransformSender",
        "MultiProcessWeightSyncScheme",
        "NoWeightSyncScheme",
        "PatchWeightSyncer",
        "RPCTransport",
        "RPCWeightSyncScheme",
        "RayActorTransport",
        "RayModuleTransformReceiver",
        "RayModuleTransformScheme",
        "RayModuleTransformSender",
        "RayTransport",
        "RayWeightSyncScheme",
        "SharedMemTransport",
        "SharedMemWeightSyncScheme",
        "SyncHandle",
        "SyncReport",
        "TransportBackend",
        "WeightReceiver",
        "WeightSender",
        "WeightStrategy",
        "WeightSyncScheme",
        "WeightSyncer",
        "WorkerActorTransport",
        "WorkerModuleTransformReceiver",
        "WorkerModuleTransformScheme",
        "WorkerModuleTransformSender",
        "WorkerTransport",
        "WorkerWeightSyncScheme",
        "register_weight_sync_backend",
    }
)
"""Names of ``rlinf_async.weights``, which imports torch."""


def __getattr__(name: str) -> Any:
    if name not in _WEIGHTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module("rlinf_async.weights"), name)
    globals()[name] = found
    return found


__all__ = [
    "AcceleratorFamily",
    "AcceleratorType",
    "AcceleratorUtil",
    "AuthError",
    "BucketWeightSyncer",
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
    "DistributedTransport",
    "DistributedWeightSyncScheme",
    "EndOfChannel",
    "FlexiblePlacementStrategy",
    "ForkedProcessError",
    "Handle",
    "Hardware",
    "HardwareConfig",
    "HardwareInfo",
    "HardwareResource",
    "HybridComponentPlacement",
    "LaunchError",
    "LoopNotRunning",
    "MPTransport",
    "ModelParallelComponentPlacement",
    "ModelParallelEvalComponentPlacement",
    "ModuleTransformReceiver",
    "ModuleTransformScheme",
    "ModuleTransformSender",
    "MultiAgentModelParallelComponentPlacement",
    "MultiAgentModelParallelEvalComponentPlacement",
    "MultiProcessWeightSyncScheme",
    "NoWeightSyncScheme",
    "NodeHardwareConfig",
    "NodeInfo",
    "NodeLost",
    "NodePlacementStrategy",
    "NsightConfig",
    "Outcome",
    "PackedPlacementStrategy",
    "PatchWeightSyncer",
    "PeerLost",
    "Placement",
    "PlacementMode",
    "PlacementStrategy",
    "ProfileConfig",
    "RLinfAsyncError",
    "RPCTransport",
    "RPCWeightSyncScheme",
    "RayActorTransport",
    "RayModuleTransformReceiver",
    "RayModuleTransformScheme",
    "RayModuleTransformSender",
    "RayTransport",
    "RayWeightSyncScheme",
    "RemoteError",
    "RocprofSysConfig",
    "RolloutSyncMode",
    "SerializationError",
    "SharedMemTransport",
    "SharedMemWeightSyncScheme",
    "StaleVersion",
    "Stream",
    "SyncHandle",
    "SyncReport",
    "TorchProfileConfig",
    "Tracer",
    "TransferFailed",
    "TransportBackend",
    "UnobservedFailure",
    "VersionMismatch",
    "WeightMismatch",
    "WeightReceiver",
    "WeightSender",
    "WeightStrategy",
    "WeightSyncScheme",
    "WeightSyncer",
    "WeightedItem",
    "Work",
    "Worker",
    "WorkerActorTransport",
    "WorkerAddress",
    "WorkerDied",
    "WorkerGroup",
    "WorkerGroupFuncResult",
    "WorkerInfo",
    "WorkerModuleTransformReceiver",
    "WorkerModuleTransformScheme",
    "WorkerModuleTransformSender",
    "WorkerTransport",
    "WorkerWeightSyncScheme",
    "WrongAcknowledgement",
    "WrongBase",
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
    "register_weight_sync_backend",
    "split_batch",
    "split_channel_message",
    "wait_all",
]

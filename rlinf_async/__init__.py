"""rlinf_async: an asyncio-native actor framework for distributed reinforcement learning."""

# The house.  Imports run down this list only; tests/test_layers.py holds it so.
#
#   errors      every exception          address    frozen names for things
#   core/       plain state: frames, codec, calls, failures, directory, segments; no IO
#   placement/  (configuration, cluster shape) -> one place per rank
#   wire/       frames over a connection: UNIX sockets, gRPC, a daemon's stdin; credentials
#   work, each  one thing to wait for; per-rank arguments   client  this process's seat at its node
#   channel                              queues; wish, queues, replicas, local_queue, registry are its parts
#   outcome, handle, stream              one call on many ranks
#   data/       tensors                  worker/    inside a worker process
#   members, group, launch               many workers as one object
#   nodes, output, loop_thread, cluster  the way into a run
#
# launcher/ is the other package: how processes come to exist and stop.  Nothing here imports it.
# Importing this page imports neither torch nor grpc.

from rlinf_async.address import NodeInfo, WorkerAddress, WorkerInfo
from rlinf_async.channel import Channel, WeightedItem
from rlinf_async.cluster import Cluster
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
from rlinf_async.outcome import Outcome
from rlinf_async.placement import (
    FlexiblePlacementStrategy,
    HybridComponentPlacement,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Placement,
    PlacementStrategy,
)
from rlinf_async.stream import Stream
from rlinf_async.work import Work
from rlinf_async.worker.base import Worker
from rlinf_async.worker.options import CollectiveGroupOptions

WorkerGroupFuncResult = Handle
"""RLinf's name."""

__version__ = "0.1.0"

__all__ = [
    "AuthError",
    "Channel",
    "ClosedError",
    "Cluster",
    "CollectiveGroupOptions",
    "ConfigError",
    "DeadlineExceeded",
    "EndOfChannel",
    "FlexiblePlacementStrategy",
    "Handle",
    "HybridComponentPlacement",
    "LaunchError",
    "NodeInfo",
    "NodeLost",
    "NodePlacementStrategy",
    "Outcome",
    "PackedPlacementStrategy",
    "PeerLost",
    "Placement",
    "PlacementStrategy",
    "RLinfAsyncError",
    "RemoteError",
    "SerializationError",
    "Stream",
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
    "each",
]

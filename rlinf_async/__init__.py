"""rlinf_async: an asyncio-native actor framework for distributed reinforcement learning."""

# The house.  Imports run down this list only; tests/test_layers.py holds it so.  An underscore: internal.
#
#   _public_names       names that are loaded when they are asked for: the table at the end of this page
#   errors, settings, address           every exception; timeouts and limits that a user may change; names for things
#   _core/              plain state: frames, operations, codec, calls, failures, directory, segments; no IO, no asyncio
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
#   _inspection/        what this process does and waits for, told to whoever asks why a run stands still;
#     state/            reports of a run, the graph of who waits for whom, the verdict
#   _trace/             what this process records, and the way to the file
#   _channels/, channel requests to a queue, near or far; what users hold of it
#   outcome, handle, stream             one call on many ranks
#   _transports/        tensors between two workers: Link and its kinds
#   _messaging/         send, recv, broadcast: exchange, outbox, inbox, routes
#   _group/, group      the processes of a group, arguments per rank, failure notices; many workers as one object
#   _worker/, worker    inside a worker process; what users derive their classes from
#   _cluster/, cluster  launching; the way into a run
#
#   weights/            a trainer's weights at its rollout workers; loaded when one of its names is asked for
#     state/, waiting/  versions, reports, words; threads, conditions and gates
#     model/            the tensors of a model: found, laid out, gathered, compared, written
#     memory/           shared memory that versions lie in; the part of GPUs in it
#     links/, plane/    words between processes; Publisher and Subscriber, on one machine and over many
#     transports/       TorchRL's carriers      schemes/   TorchRL's interface
#     publication, following              publish and follow, between worker groups
#   rlinf/, torchrl/    the other systems' names, for ported code; RLinf's weight syncers, TorchRL's collectors
#   __main__            python -m rlinf_async: usage and versions
#
# launcher/ (imported as rlinf_launcher) is the other package: how processes come to exist and stop.  Nothing here
# imports it.  Importing this page loads none of all that: a node's daemon imports a third of it.

from typing import TYPE_CHECKING

from rlinf_async._public_names import lazy_names

if TYPE_CHECKING:
    from rlinf_async._group.each import each as each
    from rlinf_async._group.idempotent import idempotent as idempotent
    from rlinf_async._group.restart_rounds import Restart as Restart
    from rlinf_async._group.wait_all import wait_all as wait_all
    from rlinf_async._trace.tracer import Tracer as Tracer
    from rlinf_async._worker.methods import concurrent as concurrent
    from rlinf_async.address import NodeInfo as NodeInfo, WorkerAddress as WorkerAddress, WorkerInfo as WorkerInfo
    from rlinf_async.channel import Channel as Channel, WeightedItem as WeightedItem
    from rlinf_async.cluster import Cluster as Cluster
    from rlinf_async.configuration import ClusterConfig as ClusterConfig
    from rlinf_async.errors import (
        AuthError as AuthError,
        ClosedError as ClosedError,
        ConfigError as ConfigError,
        DeadlineExceeded as DeadlineExceeded,
        EndOfChannel as EndOfChannel,
        ForkedProcessError as ForkedProcessError,
        LaunchError as LaunchError,
        LoopNotRunning as LoopNotRunning,
        NodeLost as NodeLost,
        PeerLost as PeerLost,
        RemoteError as RemoteError,
        RLinfAsyncError as RLinfAsyncError,
        SerializationError as SerializationError,
        StaleVersion as StaleVersion,
        TransferFailed as TransferFailed,
        UnobservedFailure as UnobservedFailure,
        VersionMismatch as VersionMismatch,
        WeightMismatch as WeightMismatch,
        WorkerDied as WorkerDied,
    )
    from rlinf_async.group import WorkerGroup as WorkerGroup
    from rlinf_async.handle import Handle as Handle
    from rlinf_async.hardware import (
        AcceleratorFamily as AcceleratorFamily,
        Hardware as Hardware,
        register_accelerator as register_accelerator,
    )
    from rlinf_async.outcome import Outcome as Outcome
    from rlinf_async.placement import (
        ComponentPlacement as ComponentPlacement,
        FlexiblePlacementStrategy as FlexiblePlacementStrategy,
        NodePlacementStrategy as NodePlacementStrategy,
        PackedPlacementStrategy as PackedPlacementStrategy,
        PlacementStrategy as PlacementStrategy,
    )
    from rlinf_async.profiling import ProfileConfig as ProfileConfig, TorchProfileConfig as TorchProfileConfig
    from rlinf_async.rlinf import *  # noqa: F403
    from rlinf_async.stream import Stream as Stream
    from rlinf_async.torchrl import *  # noqa: F403
    from rlinf_async.weights import (
        SyncReport as SyncReport,
        WorkerWeightSyncScheme as WorkerWeightSyncScheme,
        follow as follow,
        publish as publish,
    )
    from rlinf_async.work import Work as Work
    from rlinf_async.worker import Worker as Worker
else:
    __getattr__, __dir__ = lazy_names(__name__)

__version__ = "0.1.0"

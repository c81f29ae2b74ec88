"""rlinf_async: an asyncio-native actor framework for distributed reinforcement learning."""

# docs/architecture.md describes the layers, and tests/test_layers.py checks that imports respect them. Importing this
# package loads none of its modules: each name is loaded on first use, because a node's daemon needs only a third of
# them.

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
    from rlinf_async.any_rank import AnyRank as AnyRank
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
        LeaseLost as LeaseLost,
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
    from rlinf_async.experience import Experience as Experience
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

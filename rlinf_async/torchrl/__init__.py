"""TorchRL's names: weight update schemes, senders, receivers and transports, for code ported from TorchRL."""

from typing import TYPE_CHECKING

from rlinf_async._public_names import lazy_names

if TYPE_CHECKING:
    from rlinf_async.errors import WrongAcknowledgement as WrongAcknowledgement
    from rlinf_async.weights.plane.sync_handle import SyncHandle as SyncHandle
    from rlinf_async.weights.schemes.called import (
        ModuleTransformReceiver as ModuleTransformReceiver,
        ModuleTransformScheme as ModuleTransformScheme,
        ModuleTransformSender as ModuleTransformSender,
        RayModuleTransformReceiver as RayModuleTransformReceiver,
        RayModuleTransformScheme as RayModuleTransformScheme,
        RayModuleTransformSender as RayModuleTransformSender,
        RPCWeightSyncScheme as RPCWeightSyncScheme,
        WorkerModuleTransformReceiver as WorkerModuleTransformReceiver,
        WorkerModuleTransformScheme as WorkerModuleTransformScheme,
        WorkerModuleTransformSender as WorkerModuleTransformSender,
    )
    from rlinf_async.weights.schemes.distributed_scheme import (
        DistributedWeightSyncScheme as DistributedWeightSyncScheme,
    )
    from rlinf_async.weights.schemes.multi_process import MultiProcessWeightSyncScheme as MultiProcessWeightSyncScheme
    from rlinf_async.weights.schemes.none import NoWeightSyncScheme as NoWeightSyncScheme
    from rlinf_async.weights.schemes.receiver import WeightReceiver as WeightReceiver
    from rlinf_async.weights.schemes.scheme import (
        WeightSyncScheme as WeightSyncScheme,
        register_weight_sync_backend as register_weight_sync_backend,
    )
    from rlinf_async.weights.schemes.sender import WeightSender as WeightSender
    from rlinf_async.weights.schemes.shared_mem import SharedMemWeightSyncScheme as SharedMemWeightSyncScheme
    from rlinf_async.weights.schemes.weight_strategy import WeightStrategy as WeightStrategy
    from rlinf_async.weights.schemes.worker_scheme import RayWeightSyncScheme as RayWeightSyncScheme
    from rlinf_async.weights.transports.buffers import SharedMemTransport as SharedMemTransport
    from rlinf_async.weights.transports.call_transports import (
        RayActorTransport as RayActorTransport,
        RayTransport as RayTransport,
        RPCTransport as RPCTransport,
        WorkerActorTransport as WorkerActorTransport,
        WorkerTransport as WorkerTransport,
    )
    from rlinf_async.weights.transports.distributed import DistributedTransport as DistributedTransport
    from rlinf_async.weights.transports.mp import MPTransport as MPTransport
    from rlinf_async.weights.transports.transport import TransportBackend as TransportBackend
else:
    __getattr__, __dir__ = lazy_names(__name__)

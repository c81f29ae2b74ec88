"""Rollout workers always run a whole version of the trainer's weights.

``WorkerWeightSyncScheme`` takes them from one worker group to another; the other schemes are TorchRL's, for other
processes.  A name is loaded when it is asked for, and torch not before.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rlinf_async.weights.actor import WorkerActorTransport as RayActorTransport
    from rlinf_async.weights.actor import WorkerActorTransport as WorkerActorTransport
    from rlinf_async.weights.bucket_syncer import BucketWeightSyncer as BucketWeightSyncer
    from rlinf_async.weights.distributed import DistributedTransport as DistributedTransport
    from rlinf_async.weights.distributed_scheme import DistributedWeightSyncScheme as DistributedWeightSyncScheme
    from rlinf_async.weights.manifest import Manifest as Manifest
    from rlinf_async.weights.module_transform import WorkerModuleTransformReceiver as ModuleTransformReceiver
    from rlinf_async.weights.module_transform import WorkerModuleTransformReceiver as RayModuleTransformReceiver
    from rlinf_async.weights.module_transform import WorkerModuleTransformReceiver as WorkerModuleTransformReceiver
    from rlinf_async.weights.module_transform import WorkerModuleTransformScheme as ModuleTransformScheme
    from rlinf_async.weights.module_transform import WorkerModuleTransformScheme as RayModuleTransformScheme
    from rlinf_async.weights.module_transform import WorkerModuleTransformScheme as WorkerModuleTransformScheme
    from rlinf_async.weights.module_transform import WorkerModuleTransformSender as ModuleTransformSender
    from rlinf_async.weights.module_transform import WorkerModuleTransformSender as RayModuleTransformSender
    from rlinf_async.weights.module_transform import WorkerModuleTransformSender as WorkerModuleTransformSender
    from rlinf_async.weights.mp import MPTransport as MPTransport
    from rlinf_async.weights.multi_process import MultiProcessWeightSyncScheme as MultiProcessWeightSyncScheme
    from rlinf_async.weights.none import NoTransport as NoTransport
    from rlinf_async.weights.none import NoWeightSyncScheme as NoWeightSyncScheme
    from rlinf_async.weights.param_tree import ParamTree as ParamTree
    from rlinf_async.weights.patch_syncer import PatchWeightSyncer as PatchWeightSyncer
    from rlinf_async.weights.publisher import Publisher as Publisher
    from rlinf_async.weights.receiver import WeightReceiver as WeightReceiver
    from rlinf_async.weights.report import Ack as Ack
    from rlinf_async.weights.report import SyncReport as SyncReport
    from rlinf_async.weights.rpc import RPCTransport as RPCTransport
    from rlinf_async.weights.rpc import RPCWeightSyncScheme as RPCWeightSyncScheme
    from rlinf_async.weights.scheme import WeightSyncScheme as WeightSyncScheme
    from rlinf_async.weights.scheme import register_weight_sync_backend as register_weight_sync_backend
    from rlinf_async.weights.sender import WeightSender as WeightSender
    from rlinf_async.weights.shared_mem import SharedMemTransport as SharedMemTransport
    from rlinf_async.weights.shared_mem import SharedMemWeightSyncScheme as SharedMemWeightSyncScheme
    from rlinf_async.weights.strategy import WeightStrategy as WeightStrategy
    from rlinf_async.weights.subscriber import Subscriber as Subscriber
    from rlinf_async.weights.sync_handle import SyncHandle as SyncHandle
    from rlinf_async.weights.syncer import WeightSyncer as WeightSyncer
    from rlinf_async.weights.transport import TransportBackend as TransportBackend
    from rlinf_async.weights.worker import WorkerTransport as RayTransport
    from rlinf_async.weights.worker import WorkerTransport as WorkerTransport
    from rlinf_async.weights.worker_scheme import WorkerWeightSyncScheme as RayWeightSyncScheme
    from rlinf_async.weights.worker_scheme import WorkerWeightSyncScheme as WorkerWeightSyncScheme

_HOMES: Final = {
    "Ack": "report",
    "BucketWeightSyncer": "bucket_syncer",
    "DistributedTransport": "distributed",
    "DistributedWeightSyncScheme": "distributed_scheme",
    "MPTransport": "mp",
    "Manifest": "manifest",
    "MultiProcessWeightSyncScheme": "multi_process",
    "NoTransport": "none",
    "NoWeightSyncScheme": "none",
    "ParamTree": "param_tree",
    "PatchWeightSyncer": "patch_syncer",
    "Publisher": "publisher",
    "RPCTransport": "rpc",
    "RPCWeightSyncScheme": "rpc",
    "SharedMemTransport": "shared_mem",
    "SharedMemWeightSyncScheme": "shared_mem",
    "Subscriber": "subscriber",
    "SyncHandle": "sync_handle",
    "SyncReport": "report",
    "TransportBackend": "transport",
    "WeightReceiver": "receiver",
    "WeightSender": "sender",
    "WeightStrategy": "strategy",
    "WeightSyncScheme": "scheme",
    "WeightSyncer": "syncer",
    "WorkerActorTransport": "actor",
    "WorkerModuleTransformReceiver": "module_transform",
    "WorkerModuleTransformScheme": "module_transform",
    "WorkerModuleTransformSender": "module_transform",
    "WorkerTransport": "worker",
    "WorkerWeightSyncScheme": "worker_scheme",
    "register_weight_sync_backend": "scheme",
}
"""By name: the module that it stands in."""

_OTHER_NAMES: Final = {
    "ModuleTransformReceiver": "WorkerModuleTransformReceiver",
    "ModuleTransformScheme": "WorkerModuleTransformScheme",
    "ModuleTransformSender": "WorkerModuleTransformSender",
    "RayActorTransport": "WorkerActorTransport",
    "RayModuleTransformReceiver": "WorkerModuleTransformReceiver",
    "RayModuleTransformScheme": "WorkerModuleTransformScheme",
    "RayModuleTransformSender": "WorkerModuleTransformSender",
    "RayTransport": "WorkerTransport",
    "RayWeightSyncScheme": "WorkerWeightSyncScheme",
}
"""TorchRL's, where they say Ray."""

__all__ = [
    "Ack",
    "BucketWeightSyncer",
    "DistributedTransport",
    "DistributedWeightSyncScheme",
    "MPTransport",
    "Manifest",
    "ModuleTransformReceiver",
    "ModuleTransformScheme",
    "ModuleTransformSender",
    "MultiProcessWeightSyncScheme",
    "NoTransport",
    "NoWeightSyncScheme",
    "ParamTree",
    "PatchWeightSyncer",
    "Publisher",
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
    "Subscriber",
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
]


def __getattr__(name: str) -> Any:
    own = _OTHER_NAMES.get(name, name)
    if own not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOMES[own]}"), own)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Rollout workers always run a whole version of the trainer's weights.

``WorkerWeightSyncScheme`` takes them from one worker group to another; the other schemes are TorchRL's, for other
processes.  A name is loaded when it is asked for, and torch not before.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rlinf_async.weights.model.manifest import Manifest as Manifest
    from rlinf_async.weights.model.param_tree import ParamTree as ParamTree
    from rlinf_async.weights.plane.publisher import Publisher as Publisher
    from rlinf_async.weights.plane.subscriber import Subscriber as Subscriber
    from rlinf_async.weights.plane.sync_handle import SyncHandle as SyncHandle
    from rlinf_async.weights.schemes.distributed_scheme import (
        DistributedWeightSyncScheme as DistributedWeightSyncScheme,
    )
    from rlinf_async.weights.schemes.module_transform import WorkerModuleTransformReceiver as ModuleTransformReceiver
    from rlinf_async.weights.schemes.module_transform import WorkerModuleTransformReceiver as RayModuleTransformReceiver
    from rlinf_async.weights.schemes.module_transform import (
        WorkerModuleTransformReceiver as WorkerModuleTransformReceiver,
    )
    from rlinf_async.weights.schemes.module_transform import WorkerModuleTransformScheme as ModuleTransformScheme
    from rlinf_async.weights.schemes.module_transform import WorkerModuleTransformScheme as RayModuleTransformScheme
    from rlinf_async.weights.schemes.module_transform import WorkerModuleTransformScheme as WorkerModuleTransformScheme
    from rlinf_async.weights.schemes.module_transform import WorkerModuleTransformSender as ModuleTransformSender
    from rlinf_async.weights.schemes.module_transform import WorkerModuleTransformSender as RayModuleTransformSender
    from rlinf_async.weights.schemes.module_transform import WorkerModuleTransformSender as WorkerModuleTransformSender
    from rlinf_async.weights.schemes.multi_process import MultiProcessWeightSyncScheme as MultiProcessWeightSyncScheme
    from rlinf_async.weights.schemes.none import NoTransport as NoTransport
    from rlinf_async.weights.schemes.none import NoWeightSyncScheme as NoWeightSyncScheme
    from rlinf_async.weights.schemes.receiver import WeightReceiver as WeightReceiver
    from rlinf_async.weights.schemes.rpc import RPCTransport as RPCTransport
    from rlinf_async.weights.schemes.rpc import RPCWeightSyncScheme as RPCWeightSyncScheme
    from rlinf_async.weights.schemes.scheme import WeightSyncScheme as WeightSyncScheme
    from rlinf_async.weights.schemes.scheme import register_weight_sync_backend as register_weight_sync_backend
    from rlinf_async.weights.schemes.sender import WeightSender as WeightSender
    from rlinf_async.weights.schemes.shared_mem import SharedMemTransport as SharedMemTransport
    from rlinf_async.weights.schemes.shared_mem import SharedMemWeightSyncScheme as SharedMemWeightSyncScheme
    from rlinf_async.weights.schemes.strategy import WeightStrategy as WeightStrategy
    from rlinf_async.weights.schemes.worker_scheme import WorkerWeightSyncScheme as RayWeightSyncScheme
    from rlinf_async.weights.schemes.worker_scheme import WorkerWeightSyncScheme as WorkerWeightSyncScheme
    from rlinf_async.weights.state.report import Ack as Ack
    from rlinf_async.weights.state.report import SyncReport as SyncReport
    from rlinf_async.weights.syncers.bucket_syncer import BucketWeightSyncer as BucketWeightSyncer
    from rlinf_async.weights.syncers.buckets import iter_named_tensor_buckets as iter_named_tensor_buckets
    from rlinf_async.weights.syncers.patch import CompressedWeightPatch as CompressedWeightPatch
    from rlinf_async.weights.syncers.patch import EmptyWeightPatch as EmptyWeightPatch
    from rlinf_async.weights.syncers.patch import WeightPatch as WeightPatch
    from rlinf_async.weights.syncers.patch_syncer import PatchWeightSyncer as PatchWeightSyncer
    from rlinf_async.weights.syncers.syncer import WeightSyncer as WeightSyncer
    from rlinf_async.weights.syncers.syncer import collect_param_names_need_sync as collect_param_names_need_sync
    from rlinf_async.weights.transports.actor import WorkerActorTransport as RayActorTransport
    from rlinf_async.weights.transports.actor import WorkerActorTransport as WorkerActorTransport
    from rlinf_async.weights.transports.distributed import DistributedTransport as DistributedTransport
    from rlinf_async.weights.transports.mp import MPTransport as MPTransport
    from rlinf_async.weights.transports.transport import TransportBackend as TransportBackend
    from rlinf_async.weights.transports.worker import WorkerTransport as RayTransport
    from rlinf_async.weights.transports.worker import WorkerTransport as WorkerTransport

_HOMES: Final = {
    "Ack": "state.report",
    "BucketWeightSyncer": "syncers.bucket_syncer",
    "CompressedWeightPatch": "syncers.patch",
    "DistributedTransport": "transports.distributed",
    "DistributedWeightSyncScheme": "schemes.distributed_scheme",
    "EmptyWeightPatch": "syncers.patch",
    "MPTransport": "transports.mp",
    "Manifest": "model.manifest",
    "MultiProcessWeightSyncScheme": "schemes.multi_process",
    "NoTransport": "schemes.none",
    "NoWeightSyncScheme": "schemes.none",
    "ParamTree": "model.param_tree",
    "PatchWeightSyncer": "syncers.patch_syncer",
    "Publisher": "plane.publisher",
    "RPCTransport": "schemes.rpc",
    "RPCWeightSyncScheme": "schemes.rpc",
    "SharedMemTransport": "schemes.shared_mem",
    "SharedMemWeightSyncScheme": "schemes.shared_mem",
    "Subscriber": "plane.subscriber",
    "SyncHandle": "plane.sync_handle",
    "SyncReport": "state.report",
    "TransportBackend": "transports.transport",
    "WeightPatch": "syncers.patch",
    "WeightReceiver": "schemes.receiver",
    "WeightSender": "schemes.sender",
    "WeightStrategy": "schemes.strategy",
    "WeightSyncScheme": "schemes.scheme",
    "WeightSyncer": "syncers.syncer",
    "WorkerActorTransport": "transports.actor",
    "WorkerModuleTransformReceiver": "schemes.module_transform",
    "WorkerModuleTransformScheme": "schemes.module_transform",
    "WorkerModuleTransformSender": "schemes.module_transform",
    "WorkerTransport": "transports.worker",
    "WorkerWeightSyncScheme": "schemes.worker_scheme",
    "collect_param_names_need_sync": "syncers.syncer",
    "iter_named_tensor_buckets": "syncers.buckets",
    "register_weight_sync_backend": "schemes.scheme",
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
    "CompressedWeightPatch",
    "DistributedTransport",
    "DistributedWeightSyncScheme",
    "EmptyWeightPatch",
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
    "WeightPatch",
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
    "collect_param_names_need_sync",
    "iter_named_tensor_buckets",
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

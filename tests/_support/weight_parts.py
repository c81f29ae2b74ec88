"""Internals of ``rlinf_async.weights`` for tests of other modules: the one file of tests that knows where they are."""

from __future__ import annotations

from rlinf_async.weights.links.local_link import LocalLink as LocalLink
from rlinf_async.weights.links.pipe_mail import PipeMail as PipeMail
from rlinf_async.weights.links.socket_link import (
    LOOP as LOOP,
    OWN as OWN,
    Notice as Notice,
    SocketLink as SocketLink,
)
from rlinf_async.weights.links.store_mail import StoreMail as StoreMail
from rlinf_async.weights.links.weight_link import LinkMessage as LinkMessage, WeightLink as WeightLink
from rlinf_async.weights.links.worker_link import WorkerLink as WorkerLink
from rlinf_async.weights.memory.cuda import Cuda as Cuda
from rlinf_async.weights.memory.leases import Leases as Leases
from rlinf_async.weights.memory.slot import (
    IN_SLOT as IN_SLOT,
    ON_GPU as ON_GPU,
    SlotWriter as SlotWriter,
)
from rlinf_async.weights.memory.slot_reader import MemoryGone as MemoryGone, SlotReader as SlotReader
from rlinf_async.weights.memory.store import Store as Store
from rlinf_async.weights.model import fit as fit
from rlinf_async.weights.model.copying import copy_tensors as copy_tensors
from rlinf_async.weights.model.fit import Fit as Fit
from rlinf_async.weights.model.gather import gather_buckets as gather_buckets
from rlinf_async.weights.model.param_tree import name_of as name_of
from rlinf_async.weights.model.places import Places as Places
from rlinf_async.weights.model.writing import Update as Update
from rlinf_async.weights.plane.receiver_table import ReceiverTable as ReceiverTable
from rlinf_async.weights.plane.sync_handle import SyncHandle as SyncHandle, WeightsMessage as WeightsMessage
from rlinf_async.weights.state import messages as messages
from rlinf_async.weights.transports.deliveries import SingleDelivery as SingleDelivery
from rlinf_async.weights.waiting.execution import SyncAdapter as SyncAdapter

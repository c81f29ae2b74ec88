"""Routing of batches from the ranks of one group to those of another.  Pure: no worker, no channel."""

from rlinf_async.routing.batches import (
    get_batch_size,
    infer_batch_size,
    merge_batches,
    split_batch,
    validate_batch_size,
)
from rlinf_async.routing.decoupled import (
    DecoupledRouteEntry,
    build_batch_index,
    decoupled_build_recv_plan,
    decoupled_build_send_plan,
    split_channel_message,
)
from rlinf_async.routing.keys import build_route_channel_key, build_send_key
from rlinf_async.routing.mapper import CommMapper
from rlinf_async.routing.plans import RouteEntry, RoutePlan, build_recv_plan, build_send_plan

__all__ = [
    "CommMapper",
    "DecoupledRouteEntry",
    "RouteEntry",
    "RoutePlan",
    "build_batch_index",
    "build_recv_plan",
    "build_route_channel_key",
    "build_send_key",
    "build_send_plan",
    "decoupled_build_recv_plan",
    "decoupled_build_send_plan",
    "get_batch_size",
    "infer_batch_size",
    "merge_batches",
    "split_batch",
    "split_channel_message",
    "validate_batch_size",
]

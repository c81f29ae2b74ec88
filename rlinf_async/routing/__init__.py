"""Routing of batches from one group's ranks to another's, as pure functions without workers or channels."""

from rlinf_async.routing.batches import (
    get_batch_size as get_batch_size,
    infer_batch_size as infer_batch_size,
    merge_batches as merge_batches,
    split_batch as split_batch,
    validate_batch_size as validate_batch_size,
)
from rlinf_async.routing.decoupled import (
    DecoupledRouteEntry as DecoupledRouteEntry,
    DecoupledRoutePlan as DecoupledRoutePlan,
    build_batch_index as build_batch_index,
    decoupled_build_recv_plan as decoupled_build_recv_plan,
    decoupled_build_send_plan as decoupled_build_send_plan,
    split_channel_message as split_channel_message,
)
from rlinf_async.routing.keys import (
    ANY as ANY,
    build_route_channel_key as build_route_channel_key,
    build_send_key as build_send_key,
)
from rlinf_async.routing.mapper import CommMapper as CommMapper
from rlinf_async.routing.plans import (
    RouteEntry as RouteEntry,
    RoutePlan as RoutePlan,
    build_recv_plan as build_recv_plan,
    build_send_plan as build_send_plan,
)

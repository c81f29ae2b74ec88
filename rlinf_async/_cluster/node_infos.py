"""``NodeInfo`` of each node, from its daemon's facts, its enumerated hardware, and the configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlinf_async._client.client import NodeClient
from rlinf_async._core import codec, operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async.address import NodeInfo
from rlinf_async.configuration import ClusterConfig
from rlinf_async.errors import ConfigError, SerializationError
from rlinf_async.hardware import EXTENSION, Accelerator

logger = own_logger(__name__)


def nodes_from(peers: Sequence[dict[str, Any]]) -> tuple[NodeInfo, ...]:
    """Return the nodes that may run workers, by rank; the driver's own hidden node is omitted."""
    return tuple(
        _node_from(peer) for peer in sorted(peers, key=lambda peer: int(peer["node"])) if not peer.get("hidden")
    )


def _node_from(peer: dict[str, Any]) -> NodeInfo:
    facts = peer.get("facts") or {}
    gpus = facts.get("gpus") or []
    kind = str(facts.get("accelerator_type") or "NO_ACCEL") if gpus else "NO_ACCEL"
    return NodeInfo(
        node_rank=int(peer["node"]),
        name=str(peer["name"]),
        node_ip=_ip_of(peer.get("address")),
        num_cpus=int(facts.get("cpus") or 1),
        accelerators=tuple(str(gpu["id"]) for gpu in gpus),
        accelerator_type=kind,
        accelerator_model=f"{kind}:{gpus[0]['model']}" if gpus else "",
        python_interpreter_path=str(facts.get("executable") or ""),
        facts=facts,
        node_labels=tuple(str(label) for label in peer.get("labels") or ()),
        rehearsed=bool(gpus) and bool(facts.get("rehearsed")),
    )


def _ip_of(address: str | None) -> str:
    if not address:
        return "127.0.0.1"
    return address.rpartition(":")[0].strip("[]")


async def described(
    client: NodeClient, nodes: Sequence[NodeInfo], config: ClusterConfig | None
) -> tuple[NodeInfo, ...]:
    """Return the nodes with their configured labels and variables, and their hardware other than accelerators.

    Each node searches for such hardware if the configuration describes any, or if ``RLINF_EXT_MODULE`` names a module.

    Raises:
        ConfigError, LaunchError: a node's search fails.
    """
    groups = config.node_groups if config is not None else ()
    sections = [
        {"type": group.hardware.type, "configs": [each.to_mapping() for each in group.hardware.configs]}
        for group in groups
        if group.hardware is not None
    ]
    extension = os.environ.get(EXTENSION, "")
    found = {node.node_rank: () for node in nodes}
    if sections or extension or any(group.hardware_type not in (None, Accelerator.HW_TYPE) for group in groups):
        found = await _inventories(client, nodes, sections, extension)
    return tuple(
        replace(
            node,
            node_labels=tuple(dict.fromkeys([*node.node_labels, *_labels(config, node)])),
            env_vars=_common_variables(config, node),
            hardware_resources=found[node.node_rank],
        )
        for node in nodes
    )


async def _inventories(
    client: NodeClient, nodes: Sequence[NodeInfo], sections: Sequence[dict[str, Any]], extension: str
) -> dict[int, tuple[Any, ...]]:
    asked = {
        rank: client.request(operations.FindHardware(rank, list(sections), sys.path, extension, None), node=rank)
        for rank in (node.node_rank for node in nodes)
    }
    found = {}
    for rank, request in asked.items():
        pickled, warning = await request.async_wait()
        if warning:
            logger.warning(warning)
        try:
            # Build a codec body: the byte 0 and one pickle.
            found[rank] = tuple(codec.decode(b"\0" + bytes.fromhex(pickled)))
        except SerializationError as error:
            raise ConfigError(
                f"the hardware of node {rank}: {error}\n"
                f"  fix: the script must be able to import the module that {EXTENSION} names, too"
            ) from error
    return found


def _labels(config: ClusterConfig | None, node: NodeInfo) -> list[str]:
    return config.get_node_labels_by_rank(node.node_rank) if config is not None else []


def _common_variables(config: ClusterConfig | None, node: NodeInfo) -> dict[str, str]:
    """Return the variables on which all of a node's groups agree; none if they disagree, so that each sets its own."""
    try:
        return config.get_node_env_vars(node.node_rank) if config is not None else {}
    except ConfigError:
        return {}

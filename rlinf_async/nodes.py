"""What the daemons say of their nodes, as ``NodeInfo``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf_async.address import NodeInfo


def nodes_from(peers: Sequence[dict[str, Any]]) -> tuple[NodeInfo, ...]:
    """The nodes that may hold workers, by rank; the driver's own hidden node is not one."""
    return tuple(
        _node_from(peer) for peer in sorted(peers, key=lambda peer: int(peer["node"])) if not peer.get("hidden")
    )


def _node_from(peer: dict[str, Any]) -> NodeInfo:
    facts = peer.get("facts") or {}
    gpus = facts.get("gpus") or []
    model = f"NV_GPU:{gpus[0]['model']}" if gpus else ""
    return NodeInfo(
        node_rank=int(peer["node"]),
        name=str(peer["name"]),
        node_ip=_ip_of(peer.get("address")),
        num_cpus=int(facts.get("cpus") or 1),
        accelerators=tuple(str(gpu["id"]) for gpu in gpus),
        accelerator_type="NV_GPU" if gpus else "NO_ACCEL",
        accelerator_model=model,
        facts=facts,
    )


def _ip_of(address: str | None) -> str:
    """``10.0.0.1:4000`` → ``10.0.0.1``; a node without neighbours is reached by loopback."""
    if not address:
        return "127.0.0.1"
    return address.rpartition(":")[0].strip("[]")

"""Nodes as their daemons' facts describe them."""

from __future__ import annotations

from rlinf_async._cluster.node_infos import nodes_from

GPU = {"id": 0, "model": "H100"}


def test_a_node_has_the_kind_of_its_gpus_and_none_without() -> None:
    facts = [
        {"gpus": [GPU], "accelerator_type": "NV_GPU"},
        {"gpus": [GPU]},
        {"gpus": [], "accelerator_type": "NV_GPU"},
        None,
    ]
    peers = [{"node": rank, "name": f"node{rank}", "facts": each} for rank, each in enumerate(facts)]
    found = [(node.accelerator_type, node.accelerator_model) for node in nodes_from(peers)]
    assert found == [("NV_GPU", "NV_GPU:H100"), ("NO_ACCEL", "NO_ACCEL:H100"), ("NO_ACCEL", ""), ("NO_ACCEL", "")]

from __future__ import annotations

from rlinf_async.placement import FlexiblePlacementStrategy, NodePlacementStrategy, make_chart


def test_every_rank_is_on_its_devices_or_on_its_node(make_grouped):
    cluster = make_grouped([2, 0], gpu=0, arms=[1])
    placements = {
        "actor": FlexiblePlacementStrategy([[0, 1], [1]]).get_placement(cluster),
        "arm": FlexiblePlacementStrategy([[0]], "arms").get_placement(cluster),
        "agent": NodePlacementStrategy([1, 0, 1]).get_placement(cluster),
    }

    chart = make_chart(cluster, placements)

    assert chart.components == ("actor", "arm", "agent")
    assert chart.world_sizes == {"actor": 2, "arm": 1, "agent": 3}
    first, second = chart.nodes
    assert [(spot.name, spot.ranks) for spot in first.spots] == [
        ("NV_GPU 0", {"actor": [0]}),
        ("NV_GPU 1", {"actor": [0, 1]}),
        ("", {"agent": [1]}),
    ]
    assert [(spot.name, spot.ranks) for spot in second.spots] == [("Arm 0", {"arm": [0]}), ("", {"agent": [0, 2]})]
    assert (first.labels, second.labels) == (("gpu",), ("arms",))


def test_a_node_without_anything_is_still_there(make_cluster):
    (node,) = make_chart(make_cluster(0), {}).nodes

    assert [(spot.name, spot.ranks) for spot in node.spots] == [("", {})]

"""``Substitutes``: which node takes the place of a lost one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlinf_async._group.substitutes import Resident, Substitutes
from rlinf_async.address import NodeInfo
from rlinf_async.placement import Placement


def node(rank: int, gpus: int = 0, model: str = "NV_GPU:H200", labels: tuple[str, ...] = ()) -> NodeInfo:
    accelerators = tuple(f"GPU-{rank}{index}" for index in range(gpus))
    kind = "NV_GPU" if gpus else "NO_ACCEL"
    return NodeInfo(rank, f"node{rank}", "::", 8, accelerators, kind, model if gpus else "", node_labels=labels)


def placed(nodes: list[NodeInfo], on: int, devices: tuple[int, ...] = (), label: str = "cluster") -> Placement:
    first = sum(each.num_accelerators for each in nodes[:on])
    return Placement(
        rank=3,
        cluster_node_rank=on,
        placement_node_rank=1,
        local_accelerator_rank=devices[0] if devices else -1,
        accelerator_type=nodes[on].accelerator_type if devices else "NO_ACCEL",
        local_rank=1,
        local_world_size=2,
        visible_accelerators=tuple(nodes[on].accelerators[each] for each in devices),
        isolate_accelerator=True,
        local_hardware_ranks=devices,
        node_group_label=label,
        global_accelerator_ids=tuple(first + each for each in devices),
        hardware_type="Accelerator" if devices else "",
    )


def test_a_rank_without_devices_goes_where_the_fewest_ranks_are() -> None:
    nodes = [node(0), node(1), node(2), node(3)]
    residents = [Resident(0, False), Resident(2, False), Resident(2, False), Resident(3, False), Resident(3, False)]
    substitutes = Substitutes(nodes)
    assert substitutes.choose(placed(nodes, 1), {1}, residents) == 0
    assert substitutes.choose(placed(nodes, 1), {0, 1}, residents) == 2
    assert substitutes.choose(placed(nodes, 1), {0, 1, 2, 3}, residents) is None


def test_a_rank_stays_in_its_node_group() -> None:
    nodes = [node(0), node(1, labels=("sim",)), node(2, labels=("sim",)), node(3)]
    assert Substitutes(nodes).choose(placed(nodes, 1, label="sim"), {1}, [Resident(2, False)]) == 2


def test_ranks_with_devices_go_together_to_a_spare_node_and_have_the_same_of_its_devices() -> None:
    nodes = [node(0, 2), node(1, 2), node(2, 2, model="NV_GPU:A100"), node(3, 4), node(4, 2)]
    substitutes = Substitutes(nodes)
    residents = [Resident(0, True)]
    first, second = placed(nodes, 1, (1,)), placed(nodes, 1, (0, 1))
    assert substitutes.choose(first, {1}, residents) == 3
    moved = substitutes.moved(first, 3, neighbours=0)
    assert (moved.visible_accelerators, moved.global_accelerator_ids) == (("GPU-31",), (7,))
    assert (moved.cluster_node_rank, moved.local_accelerator_rank, moved.rank) == (3, 1, 3)
    assert (moved.local_rank, moved.local_world_size) == (0, 1)
    # The other one has shared devices with it, and does so again.
    assert substitutes.choose(second, {1}, [*residents, Resident(3, True)]) == 3
    # A second node is lost: not to the spare that has been taken.
    assert substitutes.choose(placed(nodes, 0, (0,)), {0, 1}, [Resident(3, True)]) == 4
    assert substitutes.choose(placed(nodes, 0, (0,)), {0, 1, 4}, [Resident(3, True)]) is None


def test_a_spare_that_is_lost_too_is_replaced_in_turn() -> None:
    nodes = [node(0, 1), node(1, 1), node(2, 1)]
    substitutes = Substitutes(nodes)
    assert substitutes.choose(placed(nodes, 0, (0,)), {0}, []) == 1
    moved = substitutes.moved(placed(nodes, 0, (0,)), 1, neighbours=0)
    assert substitutes.choose(moved, {0, 1}, []) == 2


@pytest.mark.parametrize(("to", "sees"), [(0, ()), (2, ("GPU-20", "GPU-21"))])
def test_a_rank_without_devices_of_its_own_sees_all_of_its_new_node(to: int, sees: tuple[str, ...]) -> None:
    nodes = [node(0), node(1, 1), node(2, 2)]
    placement = replace(placed(nodes, 1, (0,)), local_hardware_ranks=(), hardware_type="")
    moved = Substitutes(nodes).moved(placement, to, neighbours=2)
    assert (moved.accelerator_type, moved.visible_accelerators) == ("NV_GPU" if sees else "NO_ACCEL", sees)
    assert (moved.local_accelerator_rank, moved.local_rank) == (0 if sees else -1, 2)


def test_a_rank_with_devices_goes_to_no_node_without_them() -> None:
    nodes = [node(0), node(1, 1), node(2)]
    assert Substitutes(nodes).choose(placed(nodes, 1, (0,)), {1}, []) is None

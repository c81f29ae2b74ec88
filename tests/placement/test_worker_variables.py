from __future__ import annotations

import pytest

from rlinf_async.placement import (
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    worker_environment,
)


def environments(strategy, cluster, isolate_accelerator=True, **arguments):
    placements = strategy.get_placement(cluster, isolate_accelerator)
    return [
        worker_environment(
            placement,
            group="actor",
            name=f"actor:{placement.rank}",
            world_size=len(placements),
            master_addr="10.0.0.1",
            master_port=29501,
            run_id="0a1b2c3d",
            **arguments,
        )
        for placement in placements
    ]


def local_ranks(variables):
    return [(each["LOCAL_RANK"], each["LOCAL_WORLD_SIZE"]) for each in variables]


def test_a_gpu_worker_has_the_whole_contract(make_cluster):
    cluster = make_cluster(2, ["4", "6", "7"])

    variables = environments(PackedPlacementStrategy(1, 4), cluster, accelerator_model="NV_GPU:H200")[2]

    assert variables == {
        "GROUP_NAME": "actor",
        "WORKER_NAME": "actor:2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29501",
        "WORLD_SIZE": "4",
        "RANK": "2",
        "NODE_RANK": "1",
        "CLUSTER_NODE_RANK": "1",
        "LOCAL_ACCELERATOR_RANK": "1",
        "NODE_LOCAL_RANK": "1",
        "NODE_LOCAL_WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "CLUSTER_NAMESPACE": "0a1b2c3d",
        "CATCH_SYSTEM_FAILURE": "0",
        "VISIBLE_DEVICES": "6",
        "ACCELERATOR_TYPE": "NV_GPU",
        "ACCELERATOR_MODEL": "NV_GPU:H200",
        "ISOLATE_ACCELERATOR": "1",
        "LOCAL_HARDWARE_RANKS": "1",
        "NODE_GROUP_LABEL": "cluster",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "CUDA_VISIBLE_DEVICES": "6",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NCCL_CUMEM_ENABLE": "0",
        "MUJOCO_EGL_DEVICE_ID": "6",
        "EGL_DEVICE_ID": "6",
    }


def test_a_cpu_worker_counts_its_neighbours_and_has_no_device_variables(make_cluster):
    variables = environments(NodePlacementStrategy([0, 0, 1]), make_cluster(0, 0), catch_system_failure=True)

    assert local_ranks(variables) == [("0", "2"), ("1", "2"), ("0", "1")]
    assert [each["LOCAL_ACCELERATOR_RANK"] for each in variables] == ["-1"] * 3
    assert variables[0]["ACCELERATOR_TYPE"] == "NO_ACCEL"
    assert variables[0]["VISIBLE_DEVICES"] == variables[0]["LOCAL_HARDWARE_RANKS"] == ""
    assert variables[0]["CATCH_SYSTEM_FAILURE"] == "1"
    assert not {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NCCL_CUMEM_ENABLE", "EGL_DEVICE_ID"} & set(variables[0])


def test_without_isolation_the_local_rank_is_the_workers_own_device(make_cluster):
    variables = environments(
        PackedPlacementStrategy(2, 5, num_hardware_per_process=2), make_cluster(8), isolate_accelerator=False
    )

    assert local_ranks(variables) == [("2", "2"), ("4", "2")]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in variables] == ["0,1,2,3,4,5,6,7"] * 2
    assert [each["LOCAL_HARDWARE_RANKS"] for each in variables] == ["2,3", "4,5"]
    assert [each["EGL_DEVICE_ID"] for each in variables] == ["2", "4"]
    assert [each["ISOLATE_ACCELERATOR"] for each in variables] == ["0", "0"]


def test_without_isolation_workers_that_share_a_device_have_its_local_rank(make_cluster):
    variables = environments(FlexiblePlacementStrategy([[0], [1], [1]]), make_cluster(2), isolate_accelerator=False)

    assert local_ranks(variables) == [("0", "3"), ("1", "3"), ("1", "3")]
    assert [each["NODE_LOCAL_RANK"] for each in variables] == ["0", "1", "2"]


@pytest.mark.parametrize(("isolate", "expected"), [(True, [("0", "1"), ("0", "1")]), (False, [("0", "2"), ("1", "2")])])
def test_workers_placed_on_a_gpu_node_without_devices_of_their_own(make_cluster, isolate, expected):
    variables = environments(NodePlacementStrategy([0, 0]), make_cluster(4), isolate)

    assert local_ranks(variables) == expected
    assert [each["CUDA_VISIBLE_DEVICES"] for each in variables] == ["0,1,2,3"] * 2


def test_without_isolation_workers_with_robots_count_their_neighbours(make_grouped):
    cluster = make_grouped([2, 2], arms=[0, 1])

    variables = environments(FlexiblePlacementStrategy([[0], [0], [1]], "arms"), cluster, isolate_accelerator=False)

    assert local_ranks(variables) == [("0", "2"), ("1", "2"), ("0", "1")]
    assert [each["LOCAL_HARDWARE_RANKS"] for each in variables] == ["0", "0", "0"]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in variables] == ["0,1"] * 3
    assert [each["NODE_GROUP_LABEL"] for each in variables] == ["arms"] * 3


def test_uuids_stay_as_they_are_and_leave_the_egl_device_open(make_cluster):
    cluster = make_cluster(["GPU-5a3e", "MIG-77"])

    first, second = environments(PackedPlacementStrategy(0, 1), cluster)

    assert first["CUDA_VISIBLE_DEVICES"] == first["VISIBLE_DEVICES"] == "GPU-5a3e"
    assert second["CUDA_VISIBLE_DEVICES"] == "MIG-77"
    assert not {"EGL_DEVICE_ID", "MUJOCO_EGL_DEVICE_ID"} & set(first)

"""Environment variables of a worker, from its placement: ranks, rendezvous address, visible devices, rendering."""

from __future__ import annotations

from rlinf_async.configuration import ACCELERATOR
from rlinf_async.hardware import get_family
from rlinf_async.placement.placement import Placement


def worker_environment(
    placement: Placement,
    *,
    group: str,
    name: str,
    world_size: int,
    master_addr: str,
    master_port: int,
    run_id: str,
    accelerator_model: str = "",
    catch_system_failure: bool = False,
) -> dict[str, str]:
    """Return the environment variables that let a worker call ``torch.distributed.init_process_group()``, as ``env://``.

    ``LOCAL_RANK`` is the worker's argument for ``torch.cuda.set_device``:

    * 0 if the worker is isolated, because it numbers its visible devices from 0. ``LOCAL_WORLD_SIZE`` is 1.
    * Without isolation, the position of the worker's first device on the node. ``LOCAL_WORLD_SIZE`` is the number of
      the group's workers on the node.
    * If the worker has no device, its position among the group's workers on the node.

    Args:
        placement: the worker's placement.
        group: the group's name.
        name: the worker's name, such as ``"rollout:2"``.
        world_size: number of workers in the group.
        master_addr, master_port: address on which rank 0's store listens.
        run_id: id of the run, which the worker sees as its namespace.
        accelerator_model: the node's accelerator model, such as ``"NV_GPU:H200"``.
        catch_system_failure: if True, the worker prints its stacks when a signal ends it.
    """
    local_rank, local_world_size = _get_torch_local_rank(placement)
    variables = {
        "GROUP_NAME": group,
        "WORKER_NAME": name,
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        "WORLD_SIZE": str(world_size),
        "RANK": str(placement.rank),
        "NODE_RANK": str(placement.placement_node_rank),
        "CLUSTER_NODE_RANK": str(placement.cluster_node_rank),
        "LOCAL_ACCELERATOR_RANK": str(placement.local_accelerator_rank),
        "NODE_LOCAL_RANK": str(placement.node_local_rank),
        "NODE_LOCAL_WORLD_SIZE": str(placement.node_local_world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "CLUSTER_NAMESPACE": run_id,
        "CATCH_SYSTEM_FAILURE": "1" if catch_system_failure else "0",
        "VISIBLE_DEVICES": ",".join(placement.visible_accelerators),
        "ACCELERATOR_TYPE": placement.accelerator_type,
        "ACCELERATOR_MODEL": accelerator_model,
        "ISOLATE_ACCELERATOR": "1" if placement.isolate_accelerator else "0",
        "LOCAL_HARDWARE_RANKS": ",".join(map(str, placement.local_hardware_ranks)),
        "NODE_GROUP_LABEL": placement.node_group_label,
        # torch must connect to rank 0's store, which opens before the workers start, and never open its own store.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    family = get_family(placement.accelerator_type)
    if family is not None:
        variables |= family.get_variables(placement.visible_accelerators)
    if placement.accelerator_type == "NV_GPU":
        variables |= _get_rendering_variables(placement)
    return variables


def _get_torch_local_rank(placement: Placement) -> tuple[int, int]:
    if placement.isolate_accelerator and placement.visible_accelerators:
        return 0, 1
    if placement.hardware_type == ACCELERATOR:
        return placement.local_accelerator_rank, placement.local_world_size
    return placement.local_rank, placement.local_world_size


def _get_rendering_variables(placement: Placement) -> dict[str, str]:
    """Guess the rendering devices, which the node's daemon corrects (``Probes.rendering``)."""
    visible = placement.visible_accelerators
    if not visible:
        return {}
    first_id = visible[0 if placement.isolate_accelerator else placement.local_accelerator_rank]
    # EGL numbers all GPUs of the machine, regardless of CUDA_VISIBLE_DEVICES.
    return {"MUJOCO_EGL_DEVICE_ID": first_id, "EGL_DEVICE_ID": first_id} if first_id.isdecimal() else {}

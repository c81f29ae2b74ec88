"""Launches a group by requests to daemons: reserves its name, opens a rendezvous store, spawns workers, publishes."""

from __future__ import annotations

import asyncio
import os
import site
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rlinf_async._client.client import NodeClient
from rlinf_async._client.requests import DaemonRequest
from rlinf_async._cluster.launch_config import LaunchConfig
from rlinf_async._core import frames, operations, own_start, surroundings
from rlinf_async._core.own_logger import own_logger
from rlinf_async._core.worker_facts import pack_hardware
from rlinf_async._group.members import Members
from rlinf_async._worker import editor
from rlinf_async.address import NodeInfo, WorkerAddress
from rlinf_async.configuration import RESTARTS, RestartPolicy
from rlinf_async.errors import ClosedError, NodeLost
from rlinf_async.group import info_from
from rlinf_async.hardware import REHEARSAL, AcceleratorType, get_family
from rlinf_async.placement import Placement, worker_environment
from rlinf_async.profiling import INTERPRETER, ProfileConfig, window_plan, wrap_interpreter
from rlinf_async.profiling.windows import SECTION

logger = own_logger(__name__)

_UNDO_TIMEOUT_S: Final = 5.0

# Limit on the size of one environment variable; the kernel enforces it when a worker starts a program.
_MAX_VALUE_BYTES: Final = 128 * 1024


@dataclass(frozen=True)
class Plan:
    """Decisions about a launch, made before anything is started.

    Attributes:
        settings: interpreter and variables of each rank.
        hardware: assigned hardware of each rank, other than accelerators.
        config: the cluster's configuration as JSON, for the workers; empty if there is none.
        environment: the group's own variables, which override all others.
        script_environment: variables that the launching process has changed since its start.
        profiling: profiling configuration of this group; None if it is not profiled.
        close_grace: seconds that the workers have for their shutdown.
        policy: rule for restarting ranks.
        preload: modules to import before the workers are forked, as given by the user.
        own_modules: other modules that workers import at startup, including the module of the class.
    """

    name: str
    address: WorkerAddress
    placements: Sequence[Placement]
    settings: Sequence[LaunchConfig]
    hardware: Sequence[Sequence[Any]]
    nodes: Sequence[NodeInfo]
    run: str
    environment: dict[str, str]
    script_environment: own_start.Changes
    seed: int | None
    max_concurrency: int | None
    quiet: bool
    catch_system_failure: bool
    close_grace: float
    config: str = ""
    profiling: ProfileConfig | None = None
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    preload: Sequence[str] = ()
    own_modules: Sequence[str] = ()


async def launch(client: NodeClient, members: Members, plan: Plan) -> int:
    """Start a group's processes and send the waiting calls. Return the port of the group's store.

    A failed launch leaves nothing behind: its processes are killed, its name is freed, and all waiting calls fail with
    the error.
    """
    try:
        if not members.number:
            await _reserve(client, members)
        port = await open_store(client, members, plan)
        spawned = await spawn(client, members, plan, range(len(plan.placements)), port)
        roster = [spawned[rank] for rank in range(len(plan.placements))]
        await client.request(operations.Publish("group", plan.name, members.number, roster), node=0)
        infos = [info_from(entry["info"], entry["pid"]) for entry in roster]
        if members.closed:
            raise asyncio.CancelledError
        members.start([entry["endpoint"] for entry in roster], infos, [entry["log"] for entry in roster])
        members.look_for_losses()
        return port
    except BaseException as error:
        try:
            async with asyncio.timeout(_UNDO_TIMEOUT_S):
                await _undo(client, members, plan)
        except TimeoutError:
            logger.warning(
                "what had been started of group '%s' could not be ended within %g s", plan.name, _UNDO_TIMEOUT_S
            )
        finally:
            members.fail(error if isinstance(error, Exception) else _cancelled(plan.name))
        raise


async def _reserve(client: NodeClient, members: Members) -> None:
    request = client.request(operations.Reserve("group", members.name), node=0)
    try:
        members.number = await request.async_wait()
    except asyncio.CancelledError:
        # Still wait for the number, because ``_undo`` needs it to release the name.
        try:
            members.number = await request.async_wait()
        except asyncio.CancelledError:
            _release_once_reserved(client, request)
        raise


def reserve_now(client: NodeClient, name: str) -> int:
    """Reserve a name, and block until it is reserved, so that a taken name raises immediately."""
    request = client.request(operations.Reserve("group", name), node=0, what=f"the name of group '{name}'")
    try:
        return request.wait()
    except BaseException:  # a signal handler has raised
        _release_once_reserved(client, request)
        raise


def _release_once_reserved(client: NodeClient, request: DaemonRequest[int]) -> None:
    def release() -> None:
        if request._error is None:
            client.request(operations.Release("group", request._value), node=0)

    request._follow(release)


async def open_store(client: NodeClient, members: Members, plan: Plan) -> int:
    _check_open(members)
    node = plan.nodes[plan.placements[0].cluster_node_rank].node_rank
    return await client.request(operations.OpenStore(plan.name, members.number), node=node)


async def spawn(
    client: NodeClient, members: Members, plan: Plan, ranks: Sequence[int], port: int, restarts: Sequence[int] = ()
) -> dict[int, dict[str, Any]]:
    """Start the processes of these ranks. Return their roster entries.

    Args:
        port: port of the group's store.
        restarts: number of earlier restarts of each rank in the group; empty at the launch.
    """
    _check_open(members)
    alike: dict[tuple[int, LaunchConfig], list[Placement]] = {}
    for rank in ranks:
        placement = plan.placements[rank]
        alike.setdefault((placement.cluster_node_rank, plan.settings[rank]), []).append(placement)
    first = plan.nodes[plan.placements[0].cluster_node_rank]
    requests = {
        (node, setting): client.request(
            operations.Spawn(
                group=plan.name,
                number=members.number,
                workers=[_worker(plan, placement, first.node_ip, port, restarts) for placement in placements],
                env=plan.environment | (editor.environment() if node == client.node else {}),
                script_env=dict(plan.script_environment),
                node_env=dict(setting.env),
                python=setting.python,
                config=plan.config,
                seed=plan.seed,
                world_size=len(plan.placements),
                max_concurrency=plan.max_concurrency,
                quiet=plan.quiet,
                supervised=plan.policy.restarts,
                close_grace=plan.close_grace,
                preload=list(plan.preload),
                own_modules=list(plan.own_modules),
                **_surroundings(setting.python),
            ),
            node=node,
            what=f"{len(placements)} workers of '{plan.name}' on node {node}",
        )
        for (node, setting), placements in alike.items()
    }
    entries: dict[int, dict[str, Any]] = {}
    for key, request in requests.items():
        for placement, (number, pid, log) in zip(alike[key], await request, strict=True):
            entries[placement.rank] = {
                "endpoint": frames.endpoint(key[0], number),
                "pid": pid,
                "log": log,
                "info": _info(plan, placement, pid),
                "supervised": plan.policy.restarts,
                "group": members.number,
            }
    return entries


def _worker(
    plan: Plan, placement: Placement, master_addr: str, master_port: int, restarts: Sequence[int]
) -> dict[str, Any]:
    name = plan.address.get_child_address(placement.rank).get_name()
    environment = worker_environment(
        placement,
        group=plan.name,
        name=name,
        world_size=len(plan.placements),
        master_addr=master_addr,
        master_port=master_port,
        run_id=plan.run,
        accelerator_model=plan.nodes[placement.cluster_node_rank].accelerator_model,
        catch_system_failure=plan.catch_system_failure,
    )
    node = plan.nodes[placement.cluster_node_rank]
    if placement.accelerator_type == AcceleratorType.NO_ACCEL and (family := get_family(node.accelerator_type)):
        # The worker's node group ignores accelerators, so hide those of the node.
        environment |= family.get_variables([])
    if restarts:
        environment[RESTARTS] = str(restarts[placement.rank])
    if node.rehearsed:
        environment[REHEARSAL] = "1"
    worker = {"rank": placement.rank, "address": name, "env": environment, "info": _info(plan, placement, 0)}
    if plan.profiling is not None:
        environment[SECTION] = window_plan(plan.profiling).to_json()
        wrapped = wrap_interpreter(plan.profiling, INTERPRETER, name)
        worker["profiler"] = asdict(wrapped) if wrapped.tool else None
    return worker


def _info(plan: Plan, placement: Placement, pid: int) -> dict[str, Any]:
    node = plan.nodes[placement.cluster_node_rank]
    return {
        "address": plan.address.get_child_address(placement.rank).get_name(),
        "rank": placement.rank,
        "group_world_size": len(plan.placements),
        "cluster_node_rank": node.node_rank,
        "accelerator_type": placement.accelerator_type,
        "accelerator_model": node.accelerator_model,
        "accelerator_rank": placement.local_accelerator_rank,
        "node_ip": node.node_ip,
        "node_port": 0,
        "available_accelerators": list(placement.global_accelerator_ids),
        "node_name": node.name,
        "pid": pid,
        "hardware_infos": pack_hardware(plan.hardware[placement.rank]),
    }


def _surroundings(python: str | None) -> dict[str, Any]:
    """Return this process's working directory, import path and script, for use by its workers.

    For another interpreter, omit path entries that belong to this interpreter.
    """
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    module = getattr(getattr(main, "__spec__", None), "name", None)  # set by ``python -m``
    cwd = surroundings.working_directory()
    path = [str(Path(entry).absolute()) if entry else cwd for entry in sys.path]
    if python is not None and python != sys.executable:
        path = [entry for entry in path if not _belongs_to_python(entry)]
    script = str(Path(script).absolute()) if script and not script.startswith("<") else None  # "<stdin>" is not a file
    return {"cwd": cwd, "sys_path": path, "script": script, "module": module}


def _belongs_to_python(entry: str) -> bool:
    """True if a path entry belongs to this interpreter (standard library or site-packages)."""
    library = Path(sysconfig.get_path("stdlib"))
    if Path(entry) == library.with_name(f"python{sys.version_info.major}{sys.version_info.minor}.zip"):
        return True
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = [*paths, *site.getsitepackages(), site.getusersitepackages()]
    return any(Path(entry).is_relative_to(folder) for folder in folders)


async def _undo(client: NodeClient, members: Members, plan: Plan) -> None:
    if client.closed is not None or not members.number:
        return
    nodes = {placement.cluster_node_rank for placement in plan.placements} - set(client.lost_nodes)
    close = operations.CloseGroup(plan.name, members.number, plan.close_grace)
    requests: list[DaemonRequest[Any]] = [client.request(close, node=node) for node in nodes]
    requests.append(client.request(operations.Release("group", members.number), node=0))
    for request in requests:
        try:
            await request.async_wait()
        except (NodeLost, ClosedError):
            continue


def _check_open(members: Members) -> None:
    # The daemons may already have ended the group. A later request would begin it again, and nothing would end it.
    if members.closed:
        raise _cancelled(members.name)


def _cancelled(name: str) -> Exception:
    return ClosedError(f"group '{name}' was closed while it was being launched")


def script_environment() -> own_start.Changes:
    changes = own_start.changed_variables()
    for name, value in list(changes.items()):
        if len(value or b"") > _MAX_VALUE_BYTES:
            del changes[name]
            logger.warning(
                "the workers do not get $%s, which this process has set: it has %d bytes, and a variable takes at most "
                "%d when a program starts; hand the value over as an argument, or write it to a file",
                os.fsdecode(name), len(value or b""), _MAX_VALUE_BYTES,
            )  # fmt: skip
    return changes


def base_environment(extra: dict[str, str] | None) -> dict[str, str]:
    """Return the group's own variables. Raise TypeError for types other than str, ValueError for invalid variables."""
    for name, value in (extra or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env= takes strings, got {name!r}: {value!r} ({type(value).__name__})")
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"env= has a variable that cannot be: {name!r} (no '=' in names, no zero bytes)")
        if name in own_start.OWN and os.environ.get(name) != value:
            raise ValueError(f"env= has {name}, which the framework sets for each worker: leave it out")
        if len(value) > _MAX_VALUE_BYTES:
            raise ValueError(f"env= has {len(value)} bytes for {name!r}; a variable takes at most {_MAX_VALUE_BYTES}")
    # ``env={**os.environ, ...}`` also has this process's place in the run, which is not the worker's.
    return {name: value for name, value in (extra or {}).items() if name not in own_start.OWN}

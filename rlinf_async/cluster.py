"""``Cluster``: this process's way into a run, or the run itself."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final

from rlinf_async import client as clients
from rlinf_async.address import NodeInfo, WorkerAddress
from rlinf_async.client import NodeClient
from rlinf_async.core import codec
from rlinf_async.core.frames import PROTOCOL
from rlinf_async.errors import ClosedError, ConfigError
from rlinf_async.group import CLOSE_GRACE, WorkerGroup, public_methods, start_closing
from rlinf_async.handle import Handle
from rlinf_async.launch import Plan, base_environment, launch
from rlinf_async.loop_thread import LoopThread
from rlinf_async.members import Members
from rlinf_async.nodes import nodes_from
from rlinf_async.output import show_output
from rlinf_async.placement import default_strategy
from rlinf_async.wire.credentials import RunAuthority
from rlinf_async.wire.lifeline import Lifeline
from rlinf_async.wire.mesh import birth, start_nodes
from rlinf_async.wire.unix import connect
from rlinf_async.work import Work, blocking
from rlinf_async.worker import base
from rlinf_async.worker.base import GroupSpec

START_TIMEOUT: Final = 60.0
STOP_GRACE: Final = 5.0
CLOSE_DEADLINE: Final = 8.0
"""Seconds for all groups; then their node is ended as it is."""

logger = logging.getLogger(__name__)


class Cluster:
    """The nodes of a run, and the groups that this process launches on them.

    Where it comes from depends on where it is made: under ``rlinf-launch`` it joins the run, inside a worker it is the
    worker's own run, anywhere else it starts this machine's node by itself and ends it when it is closed or when this
    process ends, however it ends.

    Inside a running event loop everything lives on that loop, and nothing blocks it; in a plain script a background
    thread has a loop, and the constructor returns when the cluster is ready.  No signal handler, no atexit hook, no
    singleton: several clusters in one process work.

    Example:
        async with Cluster(num_nodes=1) as cluster:
            group = MyWorker.create_group().launch(cluster, name="workers")
            print(await group.hello())

    Args:
        num_nodes: how many nodes the script needs; fewer is an error, more are left alone.  None or 0 takes all.
        cluster_cfg: the ``cluster`` section of a configuration; its ``num_nodes`` counts.
        distributed_log_dir: where workers' logs go (a node started here only).
        local_nodes: start this many nodes on this machine, which behave as that many machines: development without SSH.
        start_timeout: seconds for the nodes to be up.
        log_to_driver: show what the workers print, each line with its ``[group:rank@node]``.

    Raises:
        LaunchError: the node could not be started, with what it said.
        ConfigError: there are fewer nodes than ``num_nodes``.
    """

    def __init__(
        self,
        num_nodes: int | None = None,
        cluster_cfg: Any = None,
        distributed_log_dir: str | None = None,
        *,
        local_nodes: int | None = None,
        start_timeout: float = START_TIMEOUT,
        log_to_driver: bool = True,
    ) -> None:
        self._wanted = _wanted_nodes(num_nodes, cluster_cfg)
        self._start_timeout = start_timeout
        self._log_dir = distributed_log_dir
        self._local_nodes = local_nodes
        self._groups: list[Members] = []
        self._lifelines: list[Lifeline] = []
        self._nodes: tuple[NodeInfo, ...] | None = None
        self._thread: LoopThread | None = None
        self._closing: Work[None] | None = None
        self._attached = base.client is not None
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if base.client is not None:
            self._client = base.client
        else:
            if running is None:
                self._thread = LoopThread()
            loop = running if self._thread is None else self._thread.loop
            assert loop is not None
            self._client = NodeClient(loop)
            if log_to_driver:
                self._client.on_event.setdefault("output", []).append(show_output)
        self._pid = os.getpid()
        self._started = self._client.run(self._start(), what="the start of the cluster")
        if running is None:
            try:
                self._started.wait()
            except BaseException:
                self.close()
                raise

    def __repr__(self) -> str:
        if self._nodes is None:
            state = "starting"
        else:
            nodes = len(self._nodes)
            accelerators = sum(node.num_accelerators for node in self._nodes)
            state = f"{nodes} node{'s' * (nodes != 1)}, {accelerators} accelerators | {len(self._groups)} groups"
        return f"<Cluster {self._client.welcome.get('run', '')} [{state}]>"

    # -- starting -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        if not self._attached:
            path = os.environ.get("RLINF_NODE_SOCKET")
            if path is None:
                path = await self._start_here()
            facts = {
                "role": "driver",
                "pid": os.getpid(),
                "protocol": PROTOCOL,
                "python": ".".join(map(str, sys.version_info[:3])),
            }
            self._client.attach(connect(path), facts)
        welcome = await self._client.ready.async_wait(self._start_timeout)
        nodes = nodes_from(welcome["nodes"])
        if self._wanted and len(nodes) < self._wanted:
            raise ConfigError(
                f"num_nodes={self._wanted}, but this run has {len(nodes)} ({', '.join(node.name for node in nodes)}): "
                f"start it with `rlinf-launch --hosts FILE` (or --local-nodes {self._wanted} to try it on one machine)"
            )
        self._nodes = nodes[: self._wanted] if self._wanted else nodes
        if not self._attached:
            clients.opened(self._client)

    async def _start_here(self) -> str:
        """Starts this machine's node, or several that behave as machines; the path of the first one's socket."""
        run = secrets.token_hex(4)
        count = self._local_nodes or 1
        authority = RunAuthority(run) if count > 1 else None
        births = []
        for node in range(count):
            name = "localhost" if count == 1 else f"local-{node}"
            line = await Lifeline.start(
                [sys.executable, "-m", "launcher.daemon"],
                name=name,
                env=_environment(run),
            )
            self._lifelines.append(line)
            credentials = authority.issue(node) if authority is not None else None
            births.append(
                birth(
                    run,
                    marker=line.marker,
                    node=node,
                    num_nodes=count,
                    name=name,
                    bind="127.0.0.1" if count > 1 else None,
                    ca=credentials.ca if credentials else None,
                    cert=credentials.cert if credentials else None,
                    key=credentials.key if credentials else None,
                    log_dir=self._log_dir,
                )
            )
        peers = await start_nodes(self._lifelines, births, timeout=self._start_timeout)
        return str(peers[0]["socket"])

    def __await__(self) -> Generator[Any, Any, Cluster]:
        """Waits until the nodes are up."""
        yield from self._started.async_wait().__await__()
        return self

    async def __aenter__(self) -> Cluster:
        try:
            return await self
        except BaseException:
            await self.aclose()
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def client(self) -> NodeClient:
        """This process's seat at its node."""
        return self._client

    # -- facts --------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Sequence[NodeInfo]:
        """The nodes that may hold workers, by rank.

        Raises:
            RuntimeError: the cluster is still starting.
        """
        if self._nodes is None:
            if self._started.done():
                self._started._result()
            raise RuntimeError("the cluster is still starting: `await cluster` first, or use `async with Cluster(...)`")
        return self._nodes

    @property
    def num_nodes(self) -> int:
        return len(self.nodes)

    @property
    def num_accelerators(self) -> int:
        return sum(node.num_accelerators for node in self.nodes)

    @property
    def accelerator_ranks(self) -> list[list[int]]:
        """For every node the cluster-wide ids of its accelerators."""
        ranks: list[list[int]] = []
        first = 0
        for node in self.nodes:
            ranks.append(list(range(first, first + node.num_accelerators)))
            first += node.num_accelerators
        return ranks

    @property
    def run_id(self) -> str:
        return str(self._client.welcome.get("run", ""))

    @property
    def log_dir(self) -> str:
        """Where the logs of this machine's workers are."""
        return str(self._client.welcome.get("log_dir", ""))

    def get_node_info(self, node_rank: int) -> NodeInfo:
        """Raises:
        ValueError: there is no such node.
        """
        if not 0 <= node_rank < len(self.nodes):
            raise ValueError(f"there is no node {node_rank}: the cluster has {len(self.nodes)}")
        return self.nodes[node_rank]

    def get_node_ip(self, node_rank: int) -> str:
        return self.get_node_info(node_rank).node_ip

    def find_free_port(self) -> Any:
        """A port that is free on this node; in a coroutine a ``Work`` of it."""
        return blocking(self._client.ask("free_port"))

    def status(self, node: int | None = None) -> Any:
        """What a node's daemon has at the moment, as plain data; in a coroutine a ``Work`` of it."""
        return blocking(self._client.ask("status", node=clients.HERE if node is None else node))

    def find_group(self, worker_cls: type, name: str, timeout: float | None = None) -> Any:
        """The group of that name, whoever launched it; see ``WorkerGroup.from_group_name``."""
        return WorkerGroup.from_group_name(worker_cls, name, cluster=self, timeout=timeout)

    # -- groups -------------------------------------------------------------------------------------------------

    def launch_group(
        self,
        spec: GroupSpec,
        *,
        placement: Any = None,
        name: str | None = None,
        max_concurrency: int | None = None,
        isolate_gpu: bool = True,
        catch_system_failure: bool | None = None,
        disable_distributed_log: bool = False,
        env: dict[str, str] | None = None,
        seed: int | None = None,
    ) -> WorkerGroup:
        """What ``create_group(...).launch(cluster, ...)`` does; see there."""
        if self._closing is not None:
            raise ClosedError("this cluster is closed: no group can be launched on it")
        if max_concurrency is not None and not 1 <= max_concurrency < 2**31:
            raise ValueError(f"max_concurrency must be between 1 and 2**31-1, got {max_concurrency!r}")
        public_methods(spec.worker_cls)
        address = self._address(name, spec.worker_cls)
        title = address.get_name()
        if any(group.name == title and not (group.closed or group.failed) for group in self._groups):
            raise ValueError(f"a group named '{title}' exists already: close it, or give this one another name=")
        construct = codec.encode(
            ((spec.worker_cls, *spec.args), spec.kwargs),
            describe=f"argument of {spec.worker_cls.__name__}.create_group()",
            root=("args", "kwargs"),
        )
        strategy = placement if placement is not None else default_strategy(self)
        placements = strategy.get_placement(self, isolate_accelerator=isolate_gpu)
        plan = Plan(
            name=title,
            address=address,
            placements=placements,
            nodes=self.nodes,
            run=self.run_id,
            environment=base_environment(env),
            seed=seed,
            max_concurrency=max_concurrency,
            quiet=disable_distributed_log,
            catch_system_failure=bool(catch_system_failure),
        )
        reserved = self._reserve_now(title)
        members = Members(self._client, title, len(placements))
        everyone = members.callee(range(members.size))
        ready = Handle(everyone, "__init__")
        members.call(everyone, ready, "__init__", [construct])
        self._groups = [*(group for group in self._groups if not group.closed), members]
        members.launching = self._client.run(launch(self._client, members, plan, reserved=reserved))
        return WorkerGroup(members, spec.worker_cls, ready=ready)

    def _address(self, name: str | None, worker_cls: type) -> WorkerAddress:
        """A named group is a root of its own; an unnamed one inside a worker is the worker's child."""
        if name is not None:
            if not name or name in (".", "..") or not name.isprintable() or "/" in name or len(name) > 200:
                raise ValueError(f"{name!r} cannot be a group's name: it is shown, and names a folder of log files")
            return WorkerAddress(name)
        if base.identity is not None:
            return base.identity.address
        return WorkerAddress(f"worker_group_{worker_cls.__name__}")

    def _reserve_now(self, name: str) -> bool:
        """Where this thread may block, a name that is taken is an error at once."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._client.ask("reserve", {"name": name}, node=0).wait()
            return True
        return False

    # -- the end ------------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        try:
            if self._client.closed is None and self._client.endpoint:
                async with asyncio.timeout(CLOSE_DEADLINE):
                    for members in reversed(self._groups):
                        await start_closing(members, CLOSE_GRACE).async_wait()
        except TimeoutError:
            logger.warning("groups could not be closed in order within %g s: ending their node", CLOSE_DEADLINE)
        finally:
            if not self._attached:
                await self._client.settle_tasks()
                self._client.close()
                await asyncio.gather(*(line.stop(STOP_GRACE) for line in self._lifelines))

    def _start_closing(self) -> Work[None]:
        if self._closing is None:
            self._closing = self._client.run(self._close(), what="the closing of the cluster")
        return self._closing

    async def aclose(self) -> None:
        """Closes the groups in reverse order, then the nodes that this cluster started.  Idempotent.

        Everything is closed when it returns or raises; an error means that it could not be done in order.
        """
        if self._pid != os.getpid():
            return
        await self._start_closing().async_wait()
        if self._thread is not None and not self._thread.loop.is_closed():
            await asyncio.get_running_loop().run_in_executor(None, self._thread.stop)

    def close(self) -> Any:
        """The same; blocks without a running loop, and returns a ``Work`` inside a coroutine."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            return self._start_closing()
        if self._pid != os.getpid():  # a forked child: the nodes are its parent's
            return None
        try:
            self._start_closing().wait()
        finally:
            if self._thread is not None and not self._thread.loop.is_closed():
                self._thread.stop()
        return None


def _wanted_nodes(num_nodes: int | None, cluster_cfg: Any) -> int | None:
    configured = None
    if cluster_cfg is not None:
        section = cluster_cfg.get("cluster", cluster_cfg)
        configured = section.get("num_nodes")
    if num_nodes is not None and (not isinstance(num_nodes, int) or num_nodes < 0):
        raise ConfigError(f"num_nodes must be a number of nodes, got {num_nodes!r}")
    if num_nodes and configured and num_nodes != configured:
        raise ConfigError(f"num_nodes={num_nodes}, but cluster_cfg says num_nodes: {configured}")
    return num_nodes or configured or None


def _environment(run: str) -> dict[str, str]:
    """What the daemon is born with; it must find the same ``launcher`` and ``rlinf_async`` as this process."""
    environment = {**os.environ, "RLINF_RUN_ID": run}
    home = Path(__file__).resolve().parents[1]
    found_by_path = any(Path(entry or ".").resolve() == home for entry in sys.path)
    if found_by_path and home.name not in ("site-packages", "dist-packages"):
        # A checkout that is not installed.
        path = [str(home), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(entry for entry in path if entry)
    return environment

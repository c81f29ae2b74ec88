"""``Cluster``: connects a driver to a launched run, or starts a run; gives access to its nodes, groups and status."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import os
import secrets
import sys
import threading
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, ClassVar, Final, TypeVar, cast

from rlinf_async import settings
from rlinf_async._client import registry
from rlinf_async._client.client import NodeClient
from rlinf_async._client.loop_thread import LoopThread
from rlinf_async._client.requests import OWN_NODE
from rlinf_async._client.tasks import Tasks
from rlinf_async._cluster.launch import Plan, base_environment, launch, reserve_now, script_environment
from rlinf_async._cluster.launch_config import (
    check_local_nodes,
    fail_fast_wanted,
    groups_of,
    hardware_for,
    metrics_wanted,
    read_config,
    setting_for,
    trace_wanted,
    wanted_nodes,
)
from rlinf_async._cluster.node_infos import described, nodes_from
from rlinf_async._cluster.output import show_debugger, show_output
from rlinf_async._cluster.own_nodes import declared_gpus, start_own_nodes
from rlinf_async._cluster.preload_names import imported_at_once, log_refusal, named_modules
from rlinf_async._cluster.supervision import Supervision
from rlinf_async._cluster.sys_variables import ClusterEnvVar, get_full_env_var_name, get_sys_env_var
from rlinf_async._core import clock, codec, dialect, operations, process, surroundings
from rlinf_async._core.descriptors import explained_shortage
from rlinf_async._core.encoded import Encoded
from rlinf_async._core.frames import PROTOCOL
from rlinf_async._core.names import check_group_name
from rlinf_async._core.own_logger import own_logger
from rlinf_async._group.members import Members
from rlinf_async._group.substitutes import Resident, Substitutes
from rlinf_async._group.wait_all import fold
from rlinf_async._inspection import responder
from rlinf_async._recorder.user_metrics import METRICS, Metrics
from rlinf_async._trace import recorder
from rlinf_async._waits import loop_watch, slow_waits
from rlinf_async._waits.thread_gate import awaiting_loop, may_wait, must_await
from rlinf_async._wire.lifeline import Lifeline
from rlinf_async._wire.local_socket import connect
from rlinf_async._wire.terminal import Terminal
from rlinf_async._worker import context
from rlinf_async._worker.spec import GroupSpec
from rlinf_async.address import NodeInfo, WorkerAddress
from rlinf_async.configuration import (
    ClusterConfig,
    NodeGroup,
    RestartPolicy,
    did_you_mean,
    get_path_env_merge_mode,
    merge_worker_env_vars,
)
from rlinf_async.errors import ClosedError, ConfigError, ForkedProcessError, LaunchError, LoopNotRunning
from rlinf_async.group import WorkerGroup, public_methods, start_closing
from rlinf_async.handle import Handle
from rlinf_async.hardware import load_extension
from rlinf_async.outcome import CallDeadline
from rlinf_async.placement import check_strategy, default_strategy
from rlinf_async.profiling import ProfileConfig, get_profiling_env_vars_for_worker, modify_profile_context
from rlinf_async.work import DictOrWork, IntOrWork, NoneOrWork, ValueOrWork, Work, blocking
from rlinf_async.worker import Worker

W = TypeVar("W")

# Approximate number of files that a driver opens for its own cluster: its loop, a node's lifeline, a socket.
_DRIVER_DESCRIPTORS: Final = 32
_START_TIMEOUT_S: Final = 60.0

logger = own_logger(__name__)


# This façade has 49 methods, with the names that RLinf's programs call. Launching, closing and supervision are
# implemented in ``_cluster/`` and ``_group/``.
class Cluster:
    """The nodes of a run, and the groups that this process launches on them.

    Under ``rlinf-launch`` it joins the run, and inside a worker it represents the worker's own run. Anywhere else it
    starts a node on this machine, which ends when the cluster is closed or when this process exits for any reason.

    Inside a running event loop all work runs on that loop, and nothing blocks it; in a plain script a background thread
    runs a loop, and the constructor returns when the cluster is ready. It installs no signal handler and no exit hook
    (except for pending output to a terminal), and a process may have several clusters.

    Example:
        async with Cluster(num_nodes=1) as cluster:
            group = MyWorker.create_group().launch(cluster, name="workers")
            print(await group.hello())

    Args:
        num_nodes: number of nodes that the script needs. Fewer nodes are an error, and additional ones stay unused.
            None or 0 uses all nodes.
        cluster_cfg: the ``cluster`` section of a configuration, or a configuration that contains it: a mapping,
            OmegaConf's ``DictConfig``, the path of a YAML file, or a ``ClusterConfig``. It defines the node groups,
            with their hardware, variables and interpreters; its ``num_nodes`` applies, too.
        distributed_log_dir: folder for the workers' logs; applies only to nodes started here.
        local_nodes: number of nodes to start on this machine; they behave like separate machines, for development
            without SSH.
        fake_gpus: number of GPUs to declare on each node started here, for a rehearsal, regardless of its real GPUs.
            Workers get the environment variables of such devices, torch sees no GPU, and collectives use Gloo. By
            default ``$RLINF_FAKE_GPUS``.
        start_timeout: seconds within which all nodes must start.
        log_to_driver: show the workers' output, with each line prefixed with ``[group:rank@node]``.
        trace: file on this machine for a trace of the run, for https://ui.perfetto.dev; True chooses a file in the log
            folder. By default the value of ``rlinf-launch --trace`` or ``$RLINF_TRACE``, or else the configuration's
            ``tracer``.
        fail_fast: if True, and a call has failed but no code awaits its error for a second
            (``RLINF_UNOBSERVED_ERROR_S``), every plain ``wait()`` without a timeout in this process ends, with that
            error as its cause. By default the value of ``rlinf-launch --fail-fast``, ``$RLINF_FAIL_FAST`` or the
            configuration's ``fail_fast``, or else False.
        metrics: address on node 0 where Prometheus can read the run's metrics, such as ``"127.0.0.1:9090"``; port 0
            chooses a free port (see ``metrics_address``). By default the configuration's ``metrics``, or else no
            metrics are served; see docs/metrics.md.

    Raises:
        LaunchError: the node could not be started; the error contains its output.
        ConfigError: the configuration or a setting in the environment is invalid, or there are fewer nodes than
            ``num_nodes``.
        RuntimeError: a child process spawned by multiprocessing calls this while it imports the script.
    """

    metrics: ClassVar[Metrics] = METRICS
    """Gauges and counters that user code defines in this process; see docs/metrics.md."""

    def __init__(
        self,
        num_nodes: int | None = None,
        cluster_cfg: Any = None,
        distributed_log_dir: str | None = None,
        *,
        local_nodes: int | None = None,
        fake_gpus: int | None = None,
        start_timeout: float = _START_TIMEOUT_S,
        log_to_driver: bool = True,
        trace: str | os.PathLike[str] | bool | None = None,
        fail_fast: bool | None = None,
        metrics: str | None = None,
    ) -> None:
        process.check_is_no_import("Cluster() was called")
        settings.check()
        load_extension(os.environ)  # defines kinds of hardware that the configuration may name
        if cluster_cfg is None and context.identity is not None and context.identity.config:
            cluster_cfg = json.loads(context.identity.config)
        self._config = read_config(cluster_cfg)
        self._wanted = wanted_nodes(num_nodes, self._config)
        self._start_timeout = start_timeout
        self._trace = trace_wanted(trace, self._config, os.environ)
        self._metrics = metrics_wanted(metrics, self._config)
        self._metrics_address = ""
        fails_fast = fail_fast_wanted(fail_fast, self._config, os.environ)
        self._log_dir = distributed_log_dir
        check_local_nodes(local_nodes)
        self._local_nodes = local_nodes
        self._groups: list[Members] = []
        self._supervised: set[str] = set()  # names in ``supervision`` whose group has been launched
        self._lifelines: list[Lifeline] = []
        self._terminal: Terminal | None = None
        self._nodes: tuple[NodeInfo, ...] | None = None
        self._node_groups: tuple[NodeGroup, ...] = ()
        self._thread: LoopThread | None = None
        self._closing: Work[None] | None = None
        # Several threads may launch or close; reentrant, as a signal handler may close in the middle of a close.
        self._lock = threading.RLock()
        self._was_cut_off = False
        self._attached = context.client is not None
        self._responder_facts: dict[str, Any] = {}
        self._verdict: Work[None] | None = None
        joins = self._attached or bool(os.environ.get("RLINF_NODE_SOCKET"))
        self._fake_gpus = declared_gpus(fake_gpus, joins=joins, environ=os.environ)
        running = awaiting_loop()
        self._client = self._make_client(running, log_to_driver) if context.client is None else context.client
        if fails_fast:
            self._client.unobserved.fail_fast()
        self._started = self._client.run(self._start_explained(), what="the start of the cluster")
        if running is None:
            try:
                self._started.wait()
            except BaseException:
                self.close()
                raise

    def _make_client(self, running: asyncio.AbstractEventLoop | None, log_to_driver: bool) -> NodeClient:
        with explained_shortage("this machine", "a cluster", _DRIVER_DESCRIPTORS):
            surroundings.open_standard_descriptors()
            surroundings.check()
            if running is None:
                self._thread = LoopThread()
        if running is None:
            atexit.register(self.close)
        loop = running if self._thread is None else self._thread.loop
        assert loop is not None
        client = self._client = NodeClient(loop)  # created before anything can fail, because close() uses it
        if self._thread is None:
            client.user_loop = loop
            loop_watch.live_on(loop)
        recorder.attach(client, "driver")
        self._responder_facts = responder.attach(client)
        slow_waits.add_listener(self)
        client.events.on("not_preloaded", log_refusal)
        if log_to_driver:
            self._terminal = Terminal()
            client.events.on("output", functools.partial(show_output, self._terminal))
        client.events.on("debugger", functools.partial(show_debugger, client))
        return client

    def __repr__(self) -> str:
        if self._nodes is None:
            state = "starting"
        else:
            nodes = len(self._nodes)
            accelerators = sum(node.num_accelerators for node in self._nodes)
            state = f"{nodes} node{'s' * (nodes != 1)}, {accelerators} accelerators | {len(self._groups)} groups"
        return f"<Cluster {self._client.welcome.get('run', '')} [{state}]>"

    # -- start --------------------------------------------------------------------------------------------------

    async def _start_explained(self) -> None:
        try:
            with explained_shortage("this machine", "a cluster", _DRIVER_DESCRIPTORS):
                await self._start()
        except BaseException:
            self._start_closing()  # ``await Cluster(...)`` gives its caller nothing to close
            raise

    async def _start(self) -> None:
        notes: list[str] | None = None
        if not self._attached:
            path = os.environ.get("RLINF_NODE_SOCKET")
            if not path:
                path, notes = await self._start_here()
            facts = {
                "role": "driver",
                "pid": os.getpid(),
                "protocol": PROTOCOL,
                "python": ".".join(map(str, sys.version_info[:3])),
                **self._responder_facts,
            }
            try:
                sock = connect(path)
            except (FileNotFoundError, ConnectionError) as error:
                raise LaunchError(
                    f"no daemon listens at RLINF_NODE_SOCKET={path} ({error.strerror}): its run has ended\n"
                    "  fix: unset RLINF_NODE_SOCKET, or start the script by rlinf-launch"
                ) from error
            self._client.attach(sock, facts)
        welcome = await self._client.ready.async_wait(self._start_timeout)
        self._metrics_address = await self._serve_metrics()
        if notes is not None or self._metrics_address:
            self._introduce_run(notes or [], self._metrics_address)
        nodes = nodes_from(welcome["nodes"])
        if self._wanted and len(nodes) < self._wanted:
            raise ConfigError(
                f"num_nodes={self._wanted}, but this run has {len(nodes)} ({', '.join(node.name for node in nodes)}): "
                f"start it with `rlinf-launch --hosts FILE` (to try it on one machine: `rlinf-launch --local-nodes "
                f"{self._wanted}`, or Cluster(local_nodes={self._wanted}))"
            )
        await self._set_lease([node["node"] for node in welcome["nodes"]])
        nodes = await described(self._client, nodes[: self._wanted] if self._wanted else nodes, self._config)
        self._node_groups = groups_of(self._config, nodes)
        declared = sum(node.num_accelerators for node in nodes if node.rehearsed)
        if declared and dialect.is_rlinf and not self._attached:
            logger.warning("a rehearsal: all computes on the CPU, because %d accelerators are only declared", declared)
        self._nodes = nodes
        if not self._attached:
            if self._trace.enable:
                await recorder.open_trace(self._client, self._trace.output_file)
            registry.activate(self._client)

    async def _serve_metrics(self) -> str:
        """Make node 0 serve metrics if requested. Return the address with the chosen port, or an empty string."""
        if self._metrics is None or self._attached:
            return ""
        operation = operations.ServeMetrics(self._metrics.address)
        return await self._client.request(operation, node=0, what="the address of the metrics")

    async def _set_lease(self, nodes: list[int]) -> None:
        """Set the configured limit, if any, on how long nodes may be silent before other nodes consider them lost."""
        if self._attached or self._config is None or self._config.lease_s is None:
            return
        operation = operations.SetLease(self._config.lease_s)
        requests = [self._client.request(operation, node=node, what="the lease of nodes") for node in nodes]
        for answer in requests:
            await answer

    def _introduce_run(self, notes: list[str], metrics: str) -> None:
        if self._terminal is None:
            for note in notes:
                logger.warning("%s", note)
            return
        places = f"logs in {self.log_dir}" + (f", metrics at http://{metrics}/metrics" if metrics else "")
        lines = [f"rlinf run {self.run_id}: {places}", *(f"warning: {note}" for note in notes)]
        self._terminal.write(sys.stderr, "".join(f"{line}\n" for line in lines))

    async def _start_here(self) -> tuple[str, list[str]]:
        return await start_own_nodes(
            secrets.token_hex(4),
            self._lifelines,
            count=self._local_nodes or 1,
            log_dir=self._log_dir,
            fake_gpus=self._fake_gpus,
            timeout=self._start_timeout,
        )

    def __await__(self) -> Generator[Any, Any, Cluster]:
        try:
            yield from self._started.async_wait().__await__()
        except Exception as error:  # wait for the end of its nodes: ``await Cluster()`` gives its caller none to close
            try:
                yield from self.aclose().__await__()
            except Exception as closing:  # which must not hide why the start has failed
                error.add_note(f"its nodes were not closed in order: {closing}")
            raise
        return self

    async def __aenter__(self) -> Cluster:
        try:
            return await self
        except BaseException:
            await self.aclose()
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        if exc_info[:1] == (None,):
            self._warn_of_forgotten_calls()
        await self.aclose()

    def __enter__(self) -> Cluster:
        if must_await():
            self._undo()
            raise RuntimeError(
                "`with Cluster(...)` would block the event loop that runs on this thread: write "
                "`async with Cluster(...) as cluster:` here"
            )
        return self

    def __exit__(self, *exc_info: object) -> None:
        if exc_info[:1] == (None,):
            self._warn_of_forgotten_calls()
        self.close()

    def _warn_of_forgotten_calls(self) -> None:
        if self._client.pid != process.pid or self._client.closed is not None:
            return
        calls = [call for members in self._groups if not members.closed for call in members.forgotten_calls()]
        if calls:
            are = "1 call is still open and is" if len(calls) == 1 else f"{len(calls)} calls are still open and are"
            logger.warning(
                "%s cancelled, as the cluster closes: %s (`await` or `.wait()` for what is to end before; "
                "`.cancel()` ends a call without this warning)",
                are,
                fold(calls, most=3),
            )

    def _undo(self) -> None:
        """Close an unused cluster from within its loop; do so immediately if its start has not run a step yet.

        The loop may end right afterwards, for example when ``asyncio.run`` fails, and would cancel a closing task
        before its first step: tests/test_messages.py::test_with_cluster_in_a_coroutine_says_async_with
        """
        if self._attached or self._lifelines or self._client.endpoint:
            self.close()
            return
        self._started.cancel()
        self._client.close()
        if self._terminal is not None:
            self._terminal.close()

    # -- facts --------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Sequence[NodeInfo]:
        """Nodes that can host workers, in rank order.

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
        """Number of nodes that can host workers."""
        return len(self.nodes)

    @property
    def num_accelerators(self) -> int:
        """Total number of accelerators on all nodes."""
        return sum(node.num_accelerators for node in self.nodes)

    @property
    def accelerator_ranks(self) -> list[list[int]]:
        """Cluster-wide ids of each node's accelerators."""
        ranks: list[list[int]] = []
        first = 0
        for node in self.nodes:
            ranks.append(list(range(first, first + node.num_accelerators)))
            first += node.num_accelerators
        return ranks

    @property
    def run_id(self) -> str:
        """Name of the run, as used in the paths of its logs and as the argument of ``rlinf-ctl --run``."""
        return str(self._client.welcome.get("run", ""))

    @property
    def log_dir(self) -> str:
        """Folder with the logs of this machine's workers."""
        return str(self._client.welcome.get("log_dir", ""))

    @property
    def metrics_address(self) -> str:
        """Address of the metrics with the chosen port, such as ``"127.0.0.1:41231"``; empty if none are served."""
        return self._metrics_address

    def get_node_info(self, node_rank: int) -> NodeInfo:
        """Return the facts about a node.

        Raises:
            ValueError: the cluster has no such node.
        """
        if not 0 <= node_rank < len(self.nodes):
            raise ValueError(f"there is no node {node_rank}: the cluster has {len(self.nodes)}")
        return self.nodes[node_rank]

    @property
    def config(self) -> ClusterConfig | None:
        """Configuration from ``cluster_cfg``; None if there is none."""
        return self._config

    @property
    def node_groups(self) -> Sequence[NodeGroup]:
        """Node groups: the built-in ``cluster`` and ``node``, the configured groups, and those from host labels."""
        return self._node_groups if self.nodes else ()

    def get_node_group(self, label: str = "cluster") -> NodeGroup | None:
        """Return the node group with that name; None if it does not exist."""
        return next((group for group in self.node_groups if group.label == label), None)

    def get_node_ip(self, node_rank: int) -> str:
        """Return the address at which other nodes reach a node."""
        return self.get_node_info(node_rank).node_ip

    def get_alive_nodes(self) -> list[NodeInfo]:
        """Return the nodes that are not lost."""
        return [node for node in self.nodes if node.node_rank not in self._client.lost_nodes]

    def find_free_port(self, max_port_num: int | None = None) -> IntOrWork:
        """Return a free port on this node, at most ``max_port_num``.

        In a coroutine, return a ``Work`` that resolves to it.
        """
        operation = operations.FreePort() if max_port_num is None else operations.LeasePort(max_port_num)
        port: IntOrWork = blocking(self._client.request(operation, what="a free port"))
        return port

    @staticmethod
    def has_initialized() -> bool:
        """Return True if this process has an open cluster."""
        return registry.any_active()

    get_full_env_var_name = staticmethod(get_full_env_var_name)
    get_sys_env_var = staticmethod(get_sys_env_var)
    merge_worker_env_vars = staticmethod(merge_worker_env_vars)
    get_path_env_merge_mode = staticmethod(get_path_env_merge_mode)

    def status(self, node: int | None = None) -> DictOrWork[Any]:
        """Return the current state of a node's daemon as plain data.

        In a coroutine, return a ``Work`` that resolves to it.
        """
        request = self._client.request(operations.NodeStatus(), node=OWN_NODE if node is None else node)
        status: DictOrWork[Any] = blocking(request)
        return status

    def why(self) -> ValueOrWork:
        """Return a ``Verdict`` on this run: which waits are open, and whether they will end.

        In a coroutine, return a ``Work`` that resolves to it. This takes a second or two.
        ``print(await cluster.why())`` prints the same text as ``rlinf-ctl stuck``.
        """
        # Imported late, because starting a cluster does not need the verdict's modules.
        from rlinf_async._inspection.asking import VERDICT, why

        return blocking(self._client.run(why(self._client), what=VERDICT, abandonable=True))

    def _on_long_wait(self) -> None:
        from rlinf_async._inspection.asking import VERDICT, log_verdict

        pending = self._verdict
        if (pending is None or pending.done()) and self._client.closed is None and self._client.ready.done():
            with contextlib.suppress(ClosedError, ForkedProcessError, LoopNotRunning):
                self._verdict = self._client.run(log_verdict(self._client), what=VERDICT)

    def find_group(self, worker_cls: type[W], name: str, timeout: float | None = None) -> WorkerGroup[W]:
        """Return the group with that name, whichever process launched it; see ``WorkerGroup.from_group_name``."""
        return WorkerGroup.from_group_name(worker_cls, name, cluster=self, timeout=timeout)

    # -- groups -------------------------------------------------------------------------------------------------

    def _launch(
        self,
        spec: GroupSpec[W],
        *,
        placement: Any = None,
        name: str | None = None,
        max_concurrency: int | None = None,
        isolate_gpu: bool = True,
        catch_system_failure: bool | None = None,
        disable_distributed_log: bool = False,
        env: dict[str, str] | None = None,
        seed: int | None = None,
        profiling: ProfileConfig | None = None,
        call_timeout: float | None = None,
        restarts: tuple[Any, Any, Any, Any] = (None, None, None, None),
        close_grace: float | None = None,
        preload: Sequence[str] | None = None,
    ) -> WorkerGroup[W]:
        if self._closing is not None:
            raise ClosedError("this cluster is closed: no group can be launched on it")
        if max_concurrency is not None and not 1 <= max_concurrency < 2**31:
            raise ValueError(f"max_concurrency must be between 1 and 2**31-1, got {max_concurrency!r}")
        if close_grace is not None and not 0 <= close_grace <= settings.CLOSE_GRACE_S.maximum:
            most = settings.CLOSE_GRACE_S.maximum
            raise ValueError(f"close_grace must be between 0 and {most:g} seconds, got {close_grace!r}")
        deadline = CallDeadline.of(call_timeout)
        if catch_system_failure is None:
            catch_system_failure = get_sys_env_var(ClusterEnvVar.CATCH_FAILURE) == "1"
        asked = named_modules(preload)
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
        strategy = check_strategy(placement) if placement is not None else default_strategy(self)
        placements = strategy.get_placement(self, isolate_accelerator=isolate_gpu)
        plan = Plan(
            name=title,
            address=address,
            placements=placements,
            settings=[setting_for(self._config, placement) for placement in placements],
            hardware=[hardware_for(self.node_groups, placement) for placement in placements],
            config=json.dumps({"cluster": self._config.values}) if self._config is not None else "",
            nodes=self.nodes,
            run=self.run_id,
            environment=base_environment(env),
            script_environment=script_environment(),
            seed=seed,
            max_concurrency=max_concurrency,
            quiet=disable_distributed_log,
            catch_system_failure=catch_system_failure,
            close_grace=settings.CLOSE_GRACE_S() if close_grace is None else close_grace,
            profiling=self._profiling_of(title, profiling),
            policy=RestartPolicy.of(*restarts, self._supervision_of(title, strategy)),
            preload=asked,
            own_modules=imported_at_once(construct.head) if asked or preload is None else (),
        )
        return self._launch_members(spec.worker_cls, plan, construct, deadline)

    def _launch_members(
        self, worker_cls: type[W], plan: Plan, construct: Encoded, deadline: CallDeadline | None
    ) -> WorkerGroup[W]:
        title, placements = plan.name, plan.placements
        members = Members(self._client, title, len(placements))
        members.placements = list(placements)
        members.close_grace = plan.close_grace
        everyone = members.callee(range(members.size))
        ready = Handle(everyone, "__init__")
        if plan.policy.restarts:
            hook = worker_cls.on_restart is not Worker.on_restart  # type: ignore[attr-defined]
            members.supervisor = Supervision(
                self._client, members, plan, construct.to_bytes(), self._substitutes, self._residents,
                functools.partial(setting_for, self._config), hook=hook,
            )  # fmt: skip
        try:
            members.number = reserve_now(self._client, title) if may_wait() else 0
            members.call(everyone, ready, "__init__", [construct], repeats=plan.policy.restarts)
        except BaseException:
            if members.number:  # there is no group yet whose close would release the name
                self._client.request(operations.Release("group", members.number), node=0)
            raise
        members.deadlines.begin(deadline, ready)
        with self._lock:
            self._groups = [*(group for group in self._groups if not group.closed), members]
        members.launching = self._client.run(self._start_group(members, plan))
        return WorkerGroup(members, worker_cls, ready=ready)

    @functools.cached_property
    def _substitutes(self) -> Substitutes:
        return Substitutes(self.nodes)

    def _residents(self) -> list[Resident]:
        return [
            Resident(placement.cluster_node_rank, bool(placement.local_hardware_ranks))
            for group in self._groups
            if not group.closed
            for rank, placement in enumerate(group.placements)
            if placement.cluster_node_rank not in self._client.lost_nodes
            and group.deaths.get(rank, {"returns": True}).get("returns")
        ]

    async def _start_group(self, members: Members, plan: Plan) -> None:
        port = await launch(self._client, members, plan)
        if members.supervisor is not None:
            members.supervisor.port = port

    def _supervision_of(self, group: str, strategy: Any) -> RestartPolicy | None:
        if self._config is None:
            return None
        policies = self._config.supervision
        name = group if group in policies else getattr(strategy, "component", "")
        self._supervised.add(name)
        return policies.get(name)

    def _warn_of_unknown_groups(self) -> None:
        names = set(() if self._config is None or self._attached else self._config.supervision) - self._supervised
        for name in sorted(names):
            hint = did_you_mean(name, [group.name for group in self._groups])
            logger.warning("cluster.supervision.%s: no group or component of that name was launched%s", name, hint)

    def _address(self, name: str | None, worker_cls: type) -> WorkerAddress:
        """Return the group's address: a named group is a root; an unnamed group launched by a worker is its child."""
        if name is not None:
            check_group_name(name)
            return WorkerAddress(name)
        if context.identity is not None:
            return context.identity.address
        name = f"worker_group_{worker_cls.__name__}"
        check_group_name(name)
        return WorkerAddress(name)

    def _profiling_of(self, group: str, profiling: ProfileConfig | None) -> ProfileConfig | None:
        if profiling is not None and profiling.worker_groups is None:
            return profiling if profiling.enabled else None  # the profiling was given explicitly for this group
        if profiling is None and self._config is not None:
            profiling = self._config.profiling
        return profiling if profiling is not None and profiling.profiles_worker_group(group) else None

    modify_profile_context = staticmethod(modify_profile_context)
    get_profiling_env_vars_for_worker = staticmethod(get_profiling_env_vars_for_worker)

    # -- close ------------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        timeout = settings.CLOSE_TIMEOUT_S() + sum(group.close_grace for group in self._groups if not group.closed)
        self._warn_of_unknown_groups()
        try:
            if self._client.closed is None and self._client.endpoint:
                async with asyncio.timeout(timeout):
                    for members in reversed(self._groups):
                        await start_closing(members).async_wait()
        except TimeoutError:
            logger.warning("groups could not be closed in order within %g s: ending their node", timeout)
        finally:
            # Close from the outside in: first the workers, while their daemons can still report on them; then the
            # trace, which gets their last records; then the tasks that wait for daemons, before their socket; and last
            # all daemons at once. This also runs if a group could not be closed cleanly, or if this task is cancelled,
            # because ending the daemons ends everything else.
            # tests/test_embedding.py::test_closing_ends_although_the_daemon_is_frozen
            # tests/test_failures.py::test_closing_after_a_death_raises_nothing
            if not self._attached:
                await recorder.close_trace(self._client)
                await self._client.settle_tasks()
                lost = set(self._client.lost_nodes)
                self._client.close()
                await asyncio.gather(
                    *(
                        line.stop_lost(is_here=True) if node in lost else line.stop(settings.NODE_STOP_GRACE_S())
                        for node, line in enumerate(self._lifelines)
                    )
                )
                if self._terminal is not None:
                    await self._terminal.aclose()

    def _start_closing(self) -> Work[None]:
        closing = self._closing
        if closing is None or self._was_interrupted(closing):  # else another thread may hold the lock until its end
            with self._lock:
                closing = self._closing
                if closing is None or self._was_interrupted(closing):
                    closing = self._closing = self._client.run(self._close(), what="the closing of the cluster")
                    closing._follow(self._seal)
        return closing

    def _was_interrupted(self, closing: Work[None]) -> bool:
        return closing.done() and closing._has_failed() and any(line.exit_code is None for line in self._lifelines)

    def _seal(self) -> None:
        # A closing task that is cancelled, even before its first step, must not leave the nodes running.
        for line in self._lifelines:
            line.seal()

    def _end_without_loop(self, error: ClosedError) -> None:
        """End the nodes by cutting their lifelines, as closing in order needs the loop; block until they have ended."""
        if self._was_cut_off:
            return
        self._was_cut_off = True
        logger.warning("the cluster's nodes are cut off, not closed in order: %s", str(error).partition(":")[0])
        # Cut all lifelines before waiting for the first node, so that the nodes end in parallel, within one deadline.
        # tests/test_stopped_loops.py::test_closing_from_elsewhere_ends_the_processes_although_the_loop_stands_still
        self._seal()
        self._client.end_without_loop(error)
        until = clock.monotonic() + settings.CLOSE_TIMEOUT_S()
        for line in self._lifelines:
            line.end_without_loop(max(0.0, until - clock.monotonic()))
        if self._terminal is not None:
            self._terminal.close()

    async def aclose(self) -> None:
        """Close the groups in reverse order, then the nodes that this cluster started. Idempotent.

        Everything is closed when this returns or raises; an error means that the order could not be kept.
        """
        if self._client.pid != process.pid:  # the nodes belong to the parent of this forked child
            return
        if self._was_cut_off and running_loop() is not self._client.user_loop:
            return
        try:
            await self._start_closing().async_wait()
        except LoopNotRunning as error:
            await asyncio.get_running_loop().run_in_executor(None, self._end_without_loop, error)
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._end_thread, self._thread)

    def close(self) -> NoneOrWork:
        """Close the cluster, as ``aclose`` does; blocks, or returns a ``Work`` in a coroutine."""
        return cast(NoneOrWork, self._close_here())

    def _close_here(self) -> Work[None] | None:
        if self._client.pid != process.pid:
            return None
        running = awaiting_loop()
        if running is not None:
            if self._client.user_loop in (None, running):
                return self._start_closing()
            return _in_loop(running, self.aclose(), "the closing of the cluster")
        if self._was_cut_off:
            return None
        try:
            self._start_closing().wait()
        except LoopNotRunning as error:
            self._end_without_loop(error)
        finally:
            if self._thread is not None:
                self._end_thread(self._thread)
        return None

    def _end_thread(self, thread: LoopThread) -> None:
        atexit.unregister(self.close)
        with self._lock:  # a second stop of the loop would wait for a step that the loop does not run any more
            try:
                if not thread.loop.is_closed():
                    self._client.end_loop(thread)
            finally:
                # After an interrupt, end_loop() cancels the closing every second, even in its last steps.
                if self._client.closed is None or any(line.exit_code is None for line in self._lifelines):
                    self._end_without_loop(ClosedError("the closing of the cluster was interrupted"))


def _in_loop(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], what: str) -> Work[Any]:

    def on_loop(callback: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(callback)

    work = Tasks(loop, on_loop).run(coroutine, what, abandonable=False)
    work._loop = loop
    return work

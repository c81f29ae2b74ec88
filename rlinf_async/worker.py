"""``Worker``: base class of users' workers: identity, groups, device locks, ports, timers; the rest is in mixins."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, ParamSpec, TypeVar, cast

from rlinf_async._client import registry
from rlinf_async._core import operations
from rlinf_async._core.own_logger import own_logger
from rlinf_async._group.each import PerRank
from rlinf_async._group.restart_rounds import Restart
from rlinf_async._recorder.user_metrics import METRICS, Metrics
from rlinf_async._worker import context
from rlinf_async._worker.accelerator_util import AcceleratorUtil
from rlinf_async._worker.background import BackgroundTask
from rlinf_async._worker.context import Identity
from rlinf_async._worker.device_lock import DeviceLock
from rlinf_async._worker.joining import can_join, join
from rlinf_async._worker.logs import NAME, Logging
from rlinf_async._worker.messaging import Messaging
from rlinf_async._worker.profiling import Profiling
from rlinf_async._worker.routing import Routing
from rlinf_async._worker.spec import GroupSpec
from rlinf_async._worker.timers import TimedSpan, Timers, caller_name, timed
from rlinf_async.address import WorkerAddress, WorkerInfo
from rlinf_async.channel import Channel
from rlinf_async.configuration import RESTARTS
from rlinf_async.hardware import is_rehearsal
from rlinf_async.work import BoolOrWork, IntOrWork, blocking

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
W = TypeVar("W", bound="Worker")


class Worker(Messaging, Routing, Logging, Profiling):
    """A process of its own, one rank of a group.

    Derive from it, call ``super().__init__()`` without arguments, and launch a group; every public method can then be
    called on all ranks at once.  User code has the process's main thread: ``def`` methods run one at a time in the
    order of their calls, ``async def`` methods start in that order and run concurrently, ``async def`` generators
    stream.  While a ``def`` method runs no coroutine continues, and a called one begins afterwards, unless it is marked
    with ``concurrent``.

    The process has MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK and related variables in its environment, so
    that ``torch.distributed.init_process_group()`` works without arguments.

    Example:
        class Rollout(Worker):
            def __init__(self, scale):
                super().__init__()
                self.scale = scale

            async def rollout(self, n):
                return [self._rank * self.scale] * n

        group = Rollout.create_group(2.0).launch(cluster, name="rollout")
        results = await group.rollout(3)
    """

    PID: ClassVar[int | None] = None
    current_worker: ClassVar[Worker | None] = None
    logger: ClassVar[logging.Logger] = own_logger(NAME)
    accelerator_type: ClassVar[str] = "NO_ACCEL"
    torch_platform: ClassVar[Any] = None
    """torch module of a worker's devices, ``torch.cuda`` for NVIDIA's; None without any, and outside of workers."""
    torch_device_type: ClassVar[str | None] = None

    metrics: ClassVar[Metrics] = METRICS
    """Gauges and counters of your own, which Prometheus reads if the cluster serves metrics: docs/metrics.md."""

    global_accelerator_ids: list[int]
    """Ids of the worker's devices, counted over the whole cluster."""
    _rank: int
    """Rank in the group."""
    _world_size: int
    """Number of ranks in the group."""
    _group_name: str
    """Name from ``launch(name=)``."""
    _worker_name: str
    """Name of the worker, ``rollout:3``."""
    _logger: logging.Logger
    """Logger whose lines have the worker's name."""
    _lock: threading.Lock
    """Lock between the threads of this worker, for user code; the framework does not take it."""
    _cluster_node_rank: int
    """Position of its node in the hosts list."""
    _node_group: str
    """Label of the node group that it was placed in, by default ``cluster``."""
    _local_rank: int
    """``LOCAL_RANK``: index of its own device among the visible ones."""
    _local_world_size: int
    """``LOCAL_WORLD_SIZE``, the counterpart of ``LOCAL_RANK``."""
    _node_local_rank: int
    """Place among the group's ranks on its node."""
    _node_local_world_size: int
    """Number of the group's ranks on its node."""
    _local_accelerator_rank: int
    """Position of its first device on its node; -1 if the node has none."""
    _accelerator_type: str
    """Family of its devices, such as ``NV_GPU``, or ``NO_ACCEL``."""
    _accelerator_model: str
    """Model of its devices as reported by their driver."""
    _isolate_gpu: bool
    """True if it sees only its own devices."""
    _master_address: str
    """``MASTER_ADDR``, address of the group's store for ``torch.distributed``."""
    _master_port: int
    """``MASTER_PORT``, port of that store."""
    _restarts: int
    """Number of earlier restarts of its rank (``launch(restart=)``)."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Worker:
        worker = super().__new__(cls)
        if context.identity is not None:
            worker._take_identity(context.identity)
        elif not can_join():
            raise _no_worker(cls)
        return worker

    def __init__(
        self,
        parent_address: WorkerAddress | None = None,
        world_size: int | None = None,
        rank: int | None = None,
    ) -> None:
        """Initialize the worker; a launched worker passes no arguments, and is complete before this runs.

        In a subprocess that a worker has started by itself (with multiprocessing, for example) all three arguments make
        that process a worker too: it can exchange messages with the others, whose address for it is the path ``send(x,
        "group", [parent's rank, rank])``.  Messages sent before it has joined wait for it.

        Args:
            parent_address: address of the worker that has started this process.  A launched worker may give it alone;
                it must then be the address of the worker that has launched it.
            world_size: number of subprocesses of that worker that join.
            rank: rank of this process among them.

        Raises:
            RuntimeError: this process was neither launched nor started by a worker, or is another worker already.
            Exception: as ``joining.join``: the run refuses the process.
        """
        me = context.identity
        if parent_address is None or world_size is None or rank is None:
            if me is None:
                raise _no_worker(type(self))
            if (world_size, rank) != (None, None):
                raise TypeError("a worker in a subprocess is given parent_address, world_size and rank: all, or none")
            if parent_address not in (None, me.address.get_parent_address()):
                raise ValueError(
                    f"worker {me.address} is no child of {parent_address}: it must be launched there, without name="
                )
        elif me is None:
            self._take_identity(join(parent_address, world_size, rank))
        elif me.address != parent_address.get_child_address(rank):
            child = parent_address.get_child_address(rank)
            raise RuntimeError(f"this process is worker {me.address} already: {child} must be a process of its own")

    def _take_identity(self, me: Identity) -> None:
        environment = me.environment
        self._rank = me.info.rank
        self._world_size = me.world_size
        self._group_name = me.group_name
        self._worker_name = me.address.get_name()
        self._worker_address = me.address
        self._worker_info = me.info
        self._local_rank = int(environment.get("LOCAL_RANK", -1))
        self._local_world_size = int(environment.get("LOCAL_WORLD_SIZE", -1))
        self._node_local_rank = int(environment.get("NODE_LOCAL_RANK", -1))
        self._node_local_world_size = int(environment.get("NODE_LOCAL_WORLD_SIZE", -1))
        self._cluster_node_rank = me.info.cluster_node_rank
        self._local_accelerator_rank = me.info.accelerator_rank
        self._accelerator_type = me.info.accelerator_type
        self._accelerator_model = me.info.accelerator_model
        self._isolate_gpu = environment.get("ISOLATE_ACCELERATOR", "1") == "1"
        self._node_group = environment.get("NODE_GROUP_LABEL", "cluster")
        self._master_address = environment.get("MASTER_ADDR", "")
        self._master_port = int(environment.get("MASTER_PORT", 0))
        self.global_accelerator_ids = list(me.info.available_accelerators)
        self._lock = threading.Lock()
        self._timers = Timers()
        self._device_lock: DeviceLock | None = None
        self._logger = own_logger(f"{NAME}.{self._worker_name}")
        self._restarts = int(environment.get(RESTARTS, 0))
        self._take_platform()
        Worker.PID = os.getpid()
        Worker.current_worker = self
        Worker.logger = self._logger

    def _meet_at(self, address: str, port: int) -> None:
        """Set the address of the group's store after rank 0 has moved to another node."""
        os.environ.update({"MASTER_ADDR": address, "MASTER_PORT": str(port)})
        self._master_address, self._master_port = address, port

    def _take_platform(self) -> None:
        Worker.accelerator_type = self._accelerator_type
        try:
            Worker.torch_platform = AcceleratorUtil.get_torch_platform(self._accelerator_type)
            Worker.torch_device_type = AcceleratorUtil.get_device_type(self._accelerator_type)
        except ImportError as error:
            self._logger.warning("torch cannot use the devices of this worker: %s", error)

    def __repr__(self) -> str:
        return f"{self._group_name}(rank={self._rank})"

    def on_restart(self, restart: Restart) -> None:
        """Hook on every rank after ranks of its group were restarted, before the waiting calls.

        Override it, by ``def`` or ``async def``; by default it does nothing.  A group rebuilds here the objects that
        its ranks share: ``torch.distributed.destroy_process_group()``, if there was one, and ``init_process_group()``.

        A death ends the hooks that are running: a coroutine is cancelled, and in other methods the present wait raises
        ``PeerLost``, whose ``returns`` is true, or torch's error.  Once that rank is back the hooks are called again,
        on all ranks.  The deadline of a hook is that of the group's calls.

        Args:
            restart: number of restarts of each rank, the restarted ranks, and the number of this attempt, from which
                the ranks can make common keys and names.
        """

    def on_close(self) -> Any:
        """Hook on every rank when its group is closed, after its open calls have ended.

        Override it, by ``def`` or ``async def``; by default it does nothing.  Together with exit functions, ``__del__``
        and remaining threads it has the time of ``launch(close_grace=)`` or ``RLINF_CLOSE_GRACE_S``.  A process that is
        killed, or has lost its daemon, does not run it.
        """

    # -- groups -------------------------------------------------------------------------------------------------

    @classmethod
    def create_group(cls: Callable[P, W], *args: P.args, **kwargs: P.kwargs) -> GroupSpec[W]:
        """Return a group of this class, to be launched; the arguments are those of the class's constructor.

        Type checkers check the arguments, and know the ``WorkerGroup`` of this class that ``launch`` returns.

        Args:
            args, kwargs: arguments of every rank's constructor.

        Returns:
            A ``GroupSpec``, whose ``launch(cluster, ...)`` starts the workers; it may launch several groups.

        Raises:
            TypeError: an argument is ``each(...)``, which is for calls of a launched group.
        """
        if any(isinstance(value, PerRank) for value in (*args, *kwargs.values())):
            raise TypeError("each() is for calls of a group: every rank's constructor gets the same arguments")
        return GroupSpec(cast(type[W], cls), args, kwargs)

    # -- identity -----------------------------------------------------------------------------------------------

    @property
    def has_accelerator(self) -> bool:
        """True if this worker can put tensors on a device; in a rehearsal, which only declares devices, it cannot."""
        is_placed = self._accelerator_type != "NO_ACCEL" and self._local_accelerator_rank >= 0
        return is_placed and not is_rehearsal(os.environ)

    @property
    def worker_address(self) -> WorkerAddress:
        """Address of this worker: its group and ranks."""
        return self._worker_address

    @property
    def worker_info(self) -> WorkerInfo:
        """Facts about this worker: its node, process and devices."""
        return self._worker_info

    @property
    def hardware_type(self) -> str:
        """Kind of hardware that the worker was placed on: a family of accelerators, or for example ``"Franka"``."""
        return str(self.hardware_infos[0].type) if self.hardware_infos else self._accelerator_type

    @property
    def hardware_infos(self) -> list[Any]:
        """Descriptions of this worker's hardware, for example of robots."""
        return list(self._worker_info.hardware_infos)

    def get_name(self) -> str:
        """Return the name of this worker, ``"rollout:2"``."""
        return self._worker_name

    @staticmethod
    def check_worker_alive(worker_name: str) -> BoolOrWork:
        """Return True if the worker of that name, such as ``"rollout:3"``, has been launched and has not ended.

        Raises:
            ValueError: the text is not a worker's name.
            NodeLost: node 0, which knows it, is lost.

        Returns:
            A bool; in a coroutine a ``Work`` for it.
        """
        address = WorkerAddress.from_name(worker_name)
        group = address.get_parent_address()
        if group is None:
            raise ValueError(f"{worker_name!r} is no worker's name: those are group:rank")
        client = context.client or registry.current()
        operation = operations.IsAlive(group.get_name(), address.rank)
        return blocking(client.request(operation, node=0, what=f"whether worker {worker_name} lives"))

    def get_parent_rank(self) -> int:
        """Return the rank of the worker that has launched this one; 0 for a worker that a driver has launched."""
        return self._worker_address.get_parent_rank()

    # -- tasks --------------------------------------------------------------------------------------------------

    def background(self, coroutine: Coroutine[Any, Any, Any]) -> BackgroundTask:
        """Run a coroutine as a task that belongs to this worker, from any method or the constructor.

        It runs on the loop of the worker's ``async def`` methods.  If it raises, this rank has failed: the process
        ends, open calls fail with ``WorkerDied``, whose verdict has the task, its error and the line that started it,
        and ``launch(restart=)`` applies.  Closing the group cancels it.

        Example:
            def __init__(self):
                super().__init__()
                self.background(self.refresh())      # async def refresh(self): ...

        Returns:
            A ``BackgroundTask``: ``cancel()`` ends it, from any thread.

        Raises:
            TypeError: the argument is not a coroutine.
            ClosedError: the worker is ending.
            RuntimeError: this process was not launched as a worker.
        """
        return context.require_background().begin(coroutine, sys._getframe(1))

    # -- shared resources -----------------------------------------------------------------------------------------

    @property
    def device_lock(self) -> DeviceLock:
        """Lock on this worker's devices, which one worker of the run can hold at a time."""
        if self._device_lock is None:
            self._device_lock = DeviceLock(context.require_client(), self._worker_name, self.global_accelerator_ids)
        return self._device_lock

    def acquire_free_port(self, max_port_num: int | None = None) -> IntOrWork:
        """Return a free port of this node that no other process gets while this worker lives.

        Args:
            max_port_num: highest allowed port.

        Returns:
            The port; in a coroutine a ``Work`` for it.

        Raises:
            ValueError: ``max_port_num`` is not a port, or is below 1024.
            RuntimeError: no port is free.
        """
        request = context.require_client().request(operations.LeasePort(max_port_num), what="a free port")
        port: IntOrWork = blocking(request)
        return port

    # -- channels -----------------------------------------------------------------------------------------------

    def create_channel(
        self,
        channel_name: str | None = None,
        maxsize: int = 0,
        distributed: bool = False,
        node_rank: int = 0,
        local: bool = False,
        *,
        name: str | None = None,
        node_id: int | None = None,
        max_bytes: int = 0,
    ) -> Channel:
        """Create a channel, as ``Channel.create``; ``name`` and ``node_id`` are older names of ``channel_name`` and
        ``node_rank``."""
        if node_id is not None and node_rank not in (0, node_id):
            raise TypeError(f"a channel has one node: node_rank={node_rank} or node_id={node_id}")
        return Channel.create(
            _one_name(channel_name, name),
            maxsize,
            distributed,
            node_rank if node_id is None else node_id,
            local,
            max_bytes=max_bytes,
        )

    def connect_channel(
        self, channel_name: str | None = None, *, name: str | None = None, timeout: float | None = None
    ) -> Channel:
        """Connect to a channel, as ``Channel.connect``."""
        return Channel.connect(_one_name(channel_name, name), timeout=timeout)

    # -- time ---------------------------------------------------------------------------------------------------

    def worker_timer(self, tag: str | None = None, trace: bool = True) -> TimedSpan:
        """Return a context manager that adds its time in seconds to ``tag``, by default the calling function's name."""
        return self._timers.span(tag or caller_name(), self._group_name if trace else None)

    @staticmethod
    def timer(tag: str | None = None, trace: bool = True) -> Callable[[F], F]:
        """Decorate a method, ``def``, ``async def`` or async generator: its wall time is added to ``tag``."""
        return timed(tag, trace)

    @property
    def _timer_metrics(self) -> dict[str, float]:
        return self._timers.seconds

    def pop_execution_time(self, tag: str) -> float:
        """Return the seconds recorded under ``tag``, and reset them.

        Raises:
            ValueError: nothing was recorded under it.
        """
        return self._timers.pop(tag)

    def pop_execution_times(self) -> dict[str, float]:
        """Return the seconds by tag, and reset them."""
        return self._timers.pop_all()


def _no_worker(cls: type[Worker]) -> RuntimeError:
    return RuntimeError(
        "You may have mistakenly initialized the Worker class directly without create_group and launch: use "
        f"{cls.__name__}.create_group(...).launch(cluster)"
    )


def _one_name(channel_name: str | None, name: str | None) -> str:
    given = [given for given in (channel_name, name) if given is not None]
    if len(given) != 1:
        raise TypeError("a channel needs one name: channel_name or name")
    return given[0]

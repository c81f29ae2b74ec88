"""``Worker``: the base class of users' workers: identity, groups, device locks, ports, timers; mixins add the rest."""

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
    """The base class of workers; each worker is a separate process, and one rank of a group.

    Derive a class from it, call ``super().__init__()`` without arguments, and launch a group; every public method can
    then be called on all ranks at once. User code runs in the process's main thread. ``def`` methods run one at a time
    in the order of their calls, ``async def`` methods start in that order and run concurrently, and ``async def``
    generators stream their items. While a ``def`` method runs, no coroutine continues and no newly called one starts,
    except methods marked ``concurrent``.

    The process's environment contains MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK and related variables, so
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
    """The torch module for a worker's devices, such as ``torch.cuda``; None if it has none, and outside workers."""
    torch_device_type: ClassVar[str | None] = None

    metrics: ClassVar[Metrics] = METRICS
    """Gauges and counters that user code defines; Prometheus can read them if metrics are served (docs/metrics.md)."""

    global_accelerator_ids: list[int]
    """Ids of the worker's devices, numbered across the whole cluster."""
    _rank: int
    """Rank in the group."""
    _world_size: int
    """Number of ranks in the group."""
    _group_name: str
    """Name of the group, from ``launch(name=)``."""
    _worker_name: str
    """Name of the worker, such as ``rollout:3``."""
    _logger: logging.Logger
    """Logger whose lines contain the worker's name."""
    _lock: threading.Lock
    """Lock between this worker's threads, for user code; the framework does not use it."""
    _cluster_node_rank: int
    """Position of the worker's node in the list of hosts."""
    _node_group: str
    """Label of the node group in which the worker was placed, by default ``cluster``."""
    _local_rank: int
    """``LOCAL_RANK``: index of the worker's own device among the visible devices."""
    _local_world_size: int
    """``LOCAL_WORLD_SIZE``: the number of workers among which ``LOCAL_RANK`` counts."""
    _node_local_rank: int
    """Position among the group's ranks on the worker's node."""
    _node_local_world_size: int
    """Number of the group's ranks on the worker's node."""
    _local_accelerator_rank: int
    """Position of the worker's first device on its node; -1 if it has none."""
    _accelerator_type: str
    """Family of the worker's devices, such as ``NV_GPU``, or ``NO_ACCEL``."""
    _accelerator_model: str
    """Model of the worker's devices, as reported by their driver."""
    _isolate_gpu: bool
    """True if the worker sees only its own devices."""
    _master_address: str
    """``MASTER_ADDR``: address of the group's store for ``torch.distributed``."""
    _master_port: int
    """``MASTER_PORT``: port of the group's store."""
    _restarts: int
    """Number of earlier restarts of this rank (``launch(restart=)``)."""

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
        """Initialize the worker. A launched worker passes no arguments; its attributes are set before this runs.

        In a subprocess that a worker has started by itself, for example with multiprocessing, passing all three
        arguments makes the process a worker, too. It can then exchange messages with other workers, which address it by
        the path ``send(x, "group", [parent's rank, rank])``. Messages sent to it earlier wait until it has joined.

        Args:
            parent_address: address of the worker that started this process. A launched worker may pass only this
                argument, which must be the address of the worker that launched it.
            world_size: number of that worker's subprocesses that join.
            rank: rank of this process among them.

        Raises:
            RuntimeError: this process was neither launched nor started by a worker, or is already another worker.
            Exception: the run refuses the process; see ``joining.join``.
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
        """Hook that runs on every rank after ranks of its group have been restarted, before waiting calls are sent.

        Override it with ``def`` or ``async def``; by default it does nothing. Use it to rebuild objects that the ranks
        share, for example with ``torch.distributed.destroy_process_group()``, if there was a group, and
        ``init_process_group()``.

        If a rank dies during the hooks, they are ended: a coroutine is cancelled, and in a ``def`` method the current
        wait raises torch's error, or ``PeerLost`` with ``returns`` true. Once that rank has been restarted, the hooks
        are called again on all ranks. A hook has the same deadline as the group's calls.

        Args:
            restart: each rank's number of restarts, the restarted ranks, and the number of this attempt, from which the
                ranks can derive common keys and names.
        """

    def on_close(self) -> Any:
        """Hook that runs on every rank when its group is closed, after its open calls have ended.

        Override it with ``def`` or ``async def``; by default it does nothing. Together with exit functions, ``__del__``
        and remaining threads, it may take as long as ``launch(close_grace=)`` or ``RLINF_CLOSE_GRACE_S`` allows. A
        process that is killed, or has lost its daemon, does not run it.
        """

    # -- groups -------------------------------------------------------------------------------------------------

    @classmethod
    def create_group(cls: Callable[P, W], *args: P.args, **kwargs: P.kwargs) -> GroupSpec[W]:
        """Return a group of this class, ready to launch; takes the arguments of the class's constructor.

        Type checkers check the arguments, and know that ``launch`` returns a ``WorkerGroup`` of this class.

        Args:
            args, kwargs: arguments of every rank's constructor.

        Returns:
            A ``GroupSpec``, whose ``launch(cluster, ...)`` starts the workers; it may launch several groups.

        Raises:
            TypeError: an argument is ``each(...)``, which is allowed only in calls to a launched group.
        """
        if any(isinstance(value, PerRank) for value in (*args, *kwargs.values())):
            raise TypeError("each() is for calls of a group: every rank's constructor gets the same arguments")
        return GroupSpec(cast(type[W], cls), args, kwargs)

    # -- identity -----------------------------------------------------------------------------------------------

    @property
    def has_accelerator(self) -> bool:
        """True if this worker can put tensors on a device; False in a rehearsal, which only declares devices."""
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
        """Kind of hardware on which the worker was placed: a family of accelerators, or a kind such as ``"Franka"``."""
        return str(self.hardware_infos[0].type) if self.hardware_infos else self._accelerator_type

    @property
    def hardware_infos(self) -> list[Any]:
        """Descriptions of this worker's hardware, for example of robots."""
        return list(self._worker_info.hardware_infos)

    def get_name(self) -> str:
        """Return the name of this worker, such as ``"rollout:2"``."""
        return self._worker_name

    @staticmethod
    def check_worker_alive(worker_name: str) -> BoolOrWork:
        """Return whether the worker with this name, such as ``"rollout:3"``, has been launched and has not ended.

        Raises:
            ValueError: the string is not a worker's name.
            NodeLost: node 0, which has this information, is lost.

        Returns:
            A bool. In a coroutine, a ``Work`` that resolves to it.
        """
        address = WorkerAddress.from_name(worker_name)
        group = address.get_parent_address()
        if group is None:
            raise ValueError(f"{worker_name!r} is no worker's name: those are group:rank")
        client = context.client or registry.current()
        operation = operations.IsAlive(group.get_name(), address.rank)
        return blocking(client.request(operation, node=0, what=f"whether worker {worker_name} lives"))

    def get_parent_rank(self) -> int:
        """Return the rank of the worker that launched this one; 0 for a worker that a driver launched."""
        return self._worker_address.get_parent_rank()

    # -- tasks --------------------------------------------------------------------------------------------------

    def background(self, coroutine: Coroutine[Any, Any, Any]) -> BackgroundTask:
        """Run a coroutine as a task that belongs to this worker, from any method or the constructor.

        It runs on the loop of the worker's ``async def`` methods. If it raises, this rank has failed: the process ends,
        open calls fail with ``WorkerDied``, whose verdict contains the task, its error and the line that started it,
        and the policy of ``launch(restart=)`` applies. Closing the group cancels the task.

        Example:
            def __init__(self):
                super().__init__()
                self.background(self.refresh())      # async def refresh(self): ...

        Returns:
            A ``BackgroundTask``, which any thread can ``cancel()``.

        Raises:
            TypeError: the argument is not a coroutine.
            ClosedError: the worker is ending.
            RuntimeError: this process was not launched as a worker.
        """
        return context.require_background().begin(coroutine, sys._getframe(1))

    # -- shared resources -----------------------------------------------------------------------------------------

    @property
    def device_lock(self) -> DeviceLock:
        """Lock on this worker's devices; at most one worker of the run can hold it at a time."""
        if self._device_lock is None:
            self._device_lock = DeviceLock(context.require_client(), self._worker_name, self.global_accelerator_ids)
        return self._device_lock

    def acquire_free_port(self, max_port_num: int | None = None) -> IntOrWork:
        """Return a free port on this node, which no other process will get while this worker is alive.

        Args:
            max_port_num: highest allowed port.

        Returns:
            The port. In a coroutine, a ``Work`` that resolves to it.

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
        """Create a channel, as ``Channel.create`` does; ``name`` and ``node_id`` are older names of ``channel_name``
        and ``node_rank``."""
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
        """Connect to a channel, as ``Channel.connect`` does."""
        return Channel.connect(_one_name(channel_name, name), timeout=timeout)

    # -- time ---------------------------------------------------------------------------------------------------

    def worker_timer(self, tag: str | None = None, trace: bool = True) -> TimedSpan:
        """Return a context manager that adds its duration to the timer ``tag``, by default the caller's name."""
        return self._timers.span(tag or caller_name(), self._group_name if trace else None)

    @staticmethod
    def timer(tag: str | None = None, trace: bool = True) -> Callable[[F], F]:
        """Decorate a ``def``, ``async def`` or async generator method to add its wall time to the timer ``tag``."""
        return timed(tag, trace)

    @property
    def _timer_metrics(self) -> dict[str, float]:
        return self._timers.seconds

    def pop_execution_time(self, tag: str) -> float:
        """Return the seconds recorded under ``tag``, and reset them.

        Raises:
            ValueError: no time was recorded under the tag.
        """
        return self._timers.pop(tag)

    def pop_execution_times(self) -> dict[str, float]:
        """Return a dict that maps each tag to its recorded seconds, and reset the timers."""
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

"""``Worker``: what users derive their classes from."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

from rlinf_async.address import WorkerAddress, WorkerInfo
from rlinf_async.channel import Channel
from rlinf_async.client import NodeClient
from rlinf_async.each import each
from rlinf_async.work import Work, blocking
from rlinf_async.worker.exchange import Exchange
from rlinf_async.worker.options import CollectiveGroupOptions
from rlinf_async.worker.timers import Span, Timers, caller_name, timed

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Identity:
    """Who a worker process is; set by the runtime before the user's class is constructed."""

    info: WorkerInfo
    world_size: int
    group_name: str
    environment: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def address(self) -> WorkerAddress:
        return self.info.address


identity: Identity | None = None
"""Of this process; None in a driver."""

client: NodeClient | None = None
"""Of this worker process; None in a driver."""

exchange: Exchange | None = None
"""Of this worker process; None in a driver."""


class Launcher(Protocol):
    """What can launch a group: a ``Cluster``."""

    def launch_group(self, spec: GroupSpec, **options: Any) -> Any: ...


@dataclass(frozen=True)
class GroupSpec:
    """A class and its constructor's arguments; nothing is launched before ``launch``.

    Example:
        group = MyWorker.create_group(config).launch(cluster, name="rollout")
    """

    worker_cls: type[Worker]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def launch(
        self,
        cluster: Launcher,
        placement_strategy: Any = None,
        name: str | None = None,
        max_concurrency: int | None = None,
        isolate_gpu: bool = True,
        catch_system_failure: bool | None = None,
        disable_distributed_log: bool = False,
        *,
        placement: Any = None,
        env: dict[str, str] | None = None,
        seed: int | None = None,
    ) -> Any:
        """Starts one worker per rank and returns the ``WorkerGroup`` at once; ``await group`` waits until it is ready.

        Args:
            cluster: where to launch.
            placement_strategy: which rank goes where (``placement`` is the same thing); by default one worker per
                accelerator, or one worker on node 0 where there is none.
            name: what others call the group by; by default ``worker_group_<class>``, and inside a worker the
                worker's own address, so that ranks become ``group:0:1``.
            max_concurrency: how many coroutine methods run at once in one worker (1000).
            isolate_gpu: a worker sees only its own devices.
            disable_distributed_log: do not show the workers' output in the driver.
            env: more environment variables for the workers.
            seed: rank r starts with the random seed ``seed + r`` (random, numpy, torch); by default unpredictable.

        Raises:
            ValueError: the name is taken, a public method has a name that the group needs itself, or
                ``max_concurrency`` is out of range.
            ConfigError: the placement asks for more than the cluster has.
        """
        if placement is not None and placement_strategy is not None:
            raise ValueError("give either placement_strategy= or placement=, they are the same thing")
        return cluster.launch_group(
            self,
            placement=placement if placement is not None else placement_strategy,
            name=name,
            max_concurrency=max_concurrency,
            isolate_gpu=isolate_gpu,
            catch_system_failure=catch_system_failure,
            disable_distributed_log=disable_distributed_log,
            env=env,
            seed=seed,
        )


class Worker:
    """A process of its own, one rank of a group.

    Derive from it, call ``super().__init__()`` without arguments, and launch a group; every public method can then be
    called on all ranks at once.  User code has the process's main thread: ``def`` methods run one at a time in the
    order in which they were called, ``async def`` methods start in that order and run concurrently, ``async def``
    generators stream.

    The process has MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK and the like in its environment, so that
    ``torch.distributed.init_process_group()`` works without arguments.

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
    logger: ClassVar[logging.Logger] = logging.getLogger("RLinf")
    accelerator_type: ClassVar[str] = "NO_ACCEL"
    torch_platform: ClassVar[Any] = None
    """``torch.cuda`` in a worker that has an NVIDIA device, else None."""
    torch_device_type: ClassVar[str | None] = None

    _rank: int
    _world_size: int

    def __new__(cls, *args: Any, **kwargs: Any) -> Worker:
        if identity is None:
            raise RuntimeError(
                "You may have mistakenly initialized the Worker class directly without create_group and launch: use "
                f"{cls.__name__}.create_group(...).launch(cluster)"
            )
        worker = super().__new__(cls)
        worker._take_identity(identity)
        return worker

    def __init__(
        self,
        parent_address: WorkerAddress | None = None,
        world_size: int | None = None,
        rank: int | None = None,
    ) -> None:
        """Everything is in place before this runs; the arguments are RLinf's, for workers in plain subprocesses."""
        if parent_address is not None or world_size is not None or rank is not None:
            raise NotImplementedError("a worker in a plain subprocess cannot join a run in this version")

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
        self._logger = logging.getLogger(f"RLinf.{self._worker_name}")
        Worker.PID = os.getpid()
        Worker.current_worker = self

    def __repr__(self) -> str:
        return f"{self._group_name}(rank={self._rank})"

    # -- groups -------------------------------------------------------------------------------------------------

    @classmethod
    def create_group(cls, *args: Any, **kwargs: Any) -> GroupSpec:
        """A group of this class, to be launched; the arguments are those of the class's constructor."""
        if any(isinstance(value, each) for value in (*args, *kwargs.values())):
            raise TypeError("each() is for calls of a group: every rank's constructor gets the same arguments")
        return GroupSpec(cls, args, kwargs)

    # -- who am I -----------------------------------------------------------------------------------------------

    @property
    def has_accelerator(self) -> bool:
        return self._accelerator_type != "NO_ACCEL" and self._local_accelerator_rank >= 0

    @property
    def worker_address(self) -> WorkerAddress:
        return self._worker_address

    @property
    def worker_info(self) -> WorkerInfo:
        return self._worker_info

    @property
    def hardware_type(self) -> str:
        return self._accelerator_type

    def get_name(self) -> str:
        return self._worker_name

    def get_parent_rank(self) -> int:
        return self._worker_address.get_parent_rank()

    # -- messages -----------------------------------------------------------------------------------------------

    def send(
        self,
        object: Any,
        dst_group_name: str,
        dst_rank: int | list[int] | tuple[int, ...],
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        piggyback_payload: Any = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Sends any object to another worker, which calls ``recv``.

        It is done when the object may be changed.  Up to 64 MiB of messages to one worker are accepted before that
        has asked for them.  What one worker sends to another arrives in the order in which it was sent.  Tensors may
        stand at any depth of the object; each arrives on its own type of device, where the receiver has one.

        Args:
            object: whatever pickle or cloudpickle can take, with tensors.
            dst_group_name: the receiver's group; where it does not exist yet, it is waited for.
            dst_rank: its rank; or the path of ranks to a worker that another one has launched.
            async_op: return the ``Work`` also where it could be waited for.
            piggyback_payload: something that goes along; then the receiver gets a pair.
            timeout: seconds after which it is given up, and not sent at all; counted while somebody waits for it.

        Returns:
            None; in a coroutine, and with ``async_op``, a ``Work``.

        Raises:
            SerializationError: something in the object cannot travel.
            DeadlineExceeded: the time is over, or for too long there was no such group; lists those that there are.
            ValueError: the group has no such rank.
            PeerLost: the receiver has died, or its node is lost.
        """
        return _outcome(
            _exchange().send(object, dst_group_name, dst_rank, options, piggyback_payload, timeout), async_op
        )

    def recv(
        self,
        src_group_name: str,
        src_rank: int | list[int] | tuple[int, ...],
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Receives what another worker sends to this one; the arguments are those of ``send``.

        Several that wait at once are served in the order in which they were called.  If the wait is cancelled, nothing
        is lost: the next ``recv`` gets the message.

        Returns:
            The object, or ``(object, piggyback_payload)`` where the sender has given one; in a coroutine, and with
            ``async_op``, a ``Work`` of it.

        Raises:
            DeadlineExceeded, ValueError, PeerLost: as ``send``.
            ValueError: the sender has used ``send_tensor``.  That message is gone; those that follow are not affected.
        """
        return _outcome(_exchange().recv(src_group_name, src_rank, options, timeout), async_op)

    def send_tensor(
        self,
        tensor: Any,
        dst_group_name: str,
        dst_rank: int | list[int] | tuple[int, ...],
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Sends one contiguous tensor to a worker that has a tensor like it in place for it: ``recv_tensor``.

        It is done when it has been received there, because only then is it known to fit.

        Raises:
            ValueError: the tensor is not contiguous; or it was not received, because the receiver's tensor has another
                dtype, shape or type of device, or the receiver has used ``recv``.
            AssertionError: it is no tensor.
        """
        return _outcome(_exchange().send_tensor(tensor, dst_group_name, dst_rank, options, timeout), async_op)

    def recv_tensor(
        self,
        tensor: Any,
        src_group_name: str,
        src_rank: int | list[int] | tuple[int, ...],
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Receives into ``tensor`` what another worker sends with ``send_tensor``.

        What stands in the tensor is undefined until this is done, and after an error.

        Raises:
            ValueError: what was sent has another dtype, shape or type of device, or was sent by ``send``.  That message
                is gone; those that follow are not affected.
            AssertionError: ``tensor`` is none.
        """
        return _outcome(_exchange().recv_tensor(tensor, src_group_name, src_rank, options, timeout), async_op)

    def broadcast(
        self,
        object: Any = None,
        groups: list[tuple[str, Any]] | None = None,
        src: tuple[str, Any] | None = None,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Gives one worker's object to all members; each of them calls this with the same ``groups`` and ``src``.

        Between machines it travels once per machine.  Broadcasts among the same members keep their order; they have
        nothing to do with what those send to each other.

        Args:
            object: what the source gives; the others' does not matter.
            groups: ``(group name, ranks)`` pairs; ranks are an int, a list of ints, the path (a tuple) to a worker that
                another one has launched, or a list of paths.
            src: the source's group and rank; by default the first member.

        Returns:
            The object on every member, on the source itself the very same; in a coroutine, and with ``async_op``, a
            ``Work`` of it.

        Raises:
            ValueError: ``groups`` is empty; this worker, or the source, is not in it.
            TypeError: ``groups`` or ``src`` is not as said above.
            PeerLost: a member has died.
        """
        return _outcome(_exchange().broadcast(object, groups, src, options, timeout), async_op)

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
        """As ``Channel.create``; ``name`` and ``node_id`` are older names of the first and the fourth argument."""
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
        """As ``Channel.connect``."""
        return Channel.connect(_one_name(channel_name, name), timeout=timeout)

    # -- logging ------------------------------------------------------------------------------------------------

    def log_debug(self, msg: str) -> None:
        self._logger.debug(msg, stacklevel=2)

    def log_info(self, msg: str) -> None:
        self._logger.info(msg, stacklevel=2)

    def log_warning(self, msg: str) -> None:
        self._logger.warning(msg, stacklevel=2)

    def log_error(self, msg: str) -> None:
        self._logger.error(msg, stacklevel=2)

    def log_on_first_rank(self, msg: str) -> None:
        if self._rank == 0:
            self._logger.info(msg, stacklevel=2)

    def log_on_last_rank(self, msg: str) -> None:
        if self._rank == self._world_size - 1:
            self._logger.info(msg, stacklevel=2)

    # -- time ---------------------------------------------------------------------------------------------------

    def worker_timer(self, tag: str | None = None, trace: bool = True) -> Span:
        """Adds the wall time of a ``with`` block to ``tag`` (default: the calling function's name), in seconds."""
        return self._timers.span(tag or caller_name())

    @staticmethod
    def timer(tag: str | None = None, trace: bool = True) -> Callable[[F], F]:
        """Decorates a method, ``def``, ``async def`` or async generator: its wall time is added to ``tag``."""
        return timed(tag)

    @property
    def _timer_metrics(self) -> dict[str, float]:
        return self._timers.seconds

    def pop_execution_time(self, tag: str) -> float:
        """Seconds recorded under ``tag``, which is then empty.

        Raises:
            ValueError: nothing was recorded under it.
        """
        return self._timers.pop(tag)

    def pop_execution_times(self) -> dict[str, float]:
        """Seconds by tag; then all are empty."""
        return self._timers.pop_all()


def _one_name(channel_name: str | None, name: str | None) -> str:
    given = [given for given in (channel_name, name) if given is not None]
    if len(given) != 1:
        raise TypeError("a channel needs one name: channel_name or name")
    return given[0]


def _exchange() -> Exchange:
    if exchange is None:
        raise RuntimeError("only a worker has others to send to: this process is none (a forked child of one, perhaps)")
    return exchange


def _outcome(work: Work[Any], async_op: bool) -> Any:
    return work if async_op else blocking(work)

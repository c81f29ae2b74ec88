"""``GroupSpec``: a worker group that is not yet launched, as returned by ``Worker.create_group``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, cast

from rlinf_async._core.type_variables import W_co
from rlinf_async.configuration import did_you_mean
from rlinf_async.group import WorkerGroup
from rlinf_async.profiling import ProfileConfig


class Launcher(Protocol):
    """The interface for launching groups, which ``Cluster`` implements."""

    @property
    def _launch(self) -> Callable[..., Any]: ...


F = TypeVar("F", bound=Callable[..., Any])


def _with_hints(function: F) -> F:
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def hinting(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in known:
                takes = ", ".join(list(known)[1:])
                raise TypeError(f"{function.__name__}() has no argument {name!r}{did_you_mean(name, known)}: {takes}")
        return function(*args, **kwargs)

    return cast(F, hinting)


@dataclass(frozen=True)
class GroupSpec(Generic[W_co]):
    """A worker class with its constructor's arguments; ``launch`` starts the workers.

    Example:
        group = MyWorker.create_group(config).launch(cluster, name="rollout")
    """

    worker_cls: type[W_co]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @_with_hints
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
        profiling: ProfileConfig | None = None,
        call_timeout: float | None = None,
        restart: str | None = None,
        max_restarts: int | None = None,
        restart_window: float | None = None,
        order: str | None = None,
        close_grace: float | None = None,
        preload: Sequence[str] | None = None,
    ) -> WorkerGroup[W_co]:
        """Start one worker per rank and return the ``WorkerGroup`` immediately; ``await group`` waits until it is
        ready.

        Args:
            cluster: the cluster to launch on; it must be open.
            placement_strategy: determines the number of ranks and where they run, such as ``NodePlacementStrategy([0] *
                4)`` or ``ComponentPlacement(...).get_strategy("rollout")``. By default, one worker per accelerator; if
                the cluster has none, one worker on node 0.
            name: name by which other processes find the group. By default ``worker_group_<class>``; inside a worker,
                the worker's own address, so that ranks become ``group:0:1``.
            max_concurrency: maximum number of coroutine methods that run concurrently in one worker (1000).
            isolate_gpu: restrict each worker to its own devices.
            catch_system_failure: make workers log their threads' stacks not only when they crash, but also on SIGTERM,
                SIGQUIT, SIGUSR1 and SIGUSR2; by default ``RLINF_CATCH_FAILURE`` (1 or 0).
            disable_distributed_log: hide the workers' output in the driver.
            placement: another name for ``placement_strategy``; giving both raises ``ValueError``.
            env: environment variables for the workers. They override this process's own changes to its environment,
                which its workers get on every node.
            seed: rank r starts with the random seed ``seed + r`` (random, numpy, torch); by default unpredictable.
            profiling: configuration of the workers' profiler; by default the cluster's. If it has no ``worker_groups``,
                it applies to this group.
            call_timeout: seconds that each call of the group may take once the workers are constructed; by default
                ``RLINF_CALL_TIMEOUT_S``, 0 for no deadline. A late call fails with ``DeadlineExceeded`` and is
                cancelled: coroutines get ``CancelledError``, while a running ``def`` method completes and its result is
                dropped. The error is raised once the daemons have reported on the ranks (``RLINF_WAIT_ANSWER_S``). For
                a stream, the timeout applies to each item.
            restart: which processes to restart when a worker has died: ``"rank"`` restarts only the dead rank,
                ``"group"`` all ranks, ``"never"`` none. A restarted rank keeps its address, devices, environment and
                constructor arguments (the driver keeps a copy of them). Unanswered calls fail with ``WorkerDied``;
                later calls wait for the restart, as do messages to and from the rank. The default is the policy for
                this group or component in the configuration's ``cluster.supervision``, or else ``"never"``.
            max_restarts: maximum number of restarts of a rank, or of the group, within the window (3); after one more
                death it is lost. Each restart is preceded by a pause of 0.1 s, which doubles, up to 10 s, each time the
                rank has lived less than 10 s.
            restart_window: window in seconds (600).
            order: which calls wait while a rank restarts. With ``"group"`` (the default, unless
                ``cluster.supervision`` says otherwise) all calls wait, so that every rank gets the group's calls in the
                same order. With ``"rank"``, which requires ``restart="rank"``, only calls to the restarting rank wait:
                a call to several ranks is sent immediately to the running ranks, and to the others once they have
                restarted. ``on_restart`` runs once all ranks are back, and all calls wait while it runs.
            close_grace: seconds that the workers have for ``on_close`` and exit functions when the group is closed
                (``RLINF_CLOSE_GRACE_S``); a worker that finishes earlier exits immediately.
            preload: names of modules, such as ``["vllm"]``, that each node imports once before it forks the workers,
                and does not import again at restarts. The class's module and the modules that workers import at startup
                are also preloaded; ``[]`` preloads nothing. If importing a module starts a thread, opens a device or
                has another effect that workers cannot inherit, each worker imports it by itself, and a log message says
                so.

        Raises:
            ValueError: the name is taken, a public method has a reserved name, ``max_concurrency``, ``call_timeout`` or
                ``close_grace`` is out of range, or ``preload`` has an invalid module name.
            ConfigError: the placement asks for more than the cluster has, or a restart option is invalid.
        """
        if not hasattr(cluster, "_launch"):
            raise TypeError(f"launch(cluster, ...): the first argument is the Cluster, got {cluster!r}")
        if placement is not None and placement_strategy is not None:
            raise ValueError("give either placement_strategy= or placement=, they are the same thing")
        group: WorkerGroup[W_co] = cluster._launch(
            self,
            placement=placement if placement is not None else placement_strategy,
            name=name,
            max_concurrency=max_concurrency,
            isolate_gpu=isolate_gpu,
            catch_system_failure=catch_system_failure,
            disable_distributed_log=disable_distributed_log,
            env=env,
            seed=seed,
            profiling=profiling,
            call_timeout=call_timeout,
            restarts=(restart, max_restarts, restart_window, order),
            close_grace=close_grace,
            preload=preload,
        )
        return group

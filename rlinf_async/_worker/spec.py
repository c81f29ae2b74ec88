"""``GroupSpec``: a worker group that is not launched yet, as ``Worker.create_group`` returns it."""

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
    """Launcher of groups: a ``Cluster``."""

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
        """Start one worker per rank and return the ``WorkerGroup`` at once; ``await group`` waits until it is ready.

        Args:
            cluster: cluster to launch on, which must be open.
            placement_strategy: number of ranks and their places: ``NodePlacementStrategy([0] * 4)``, or
                ``ComponentPlacement(...).get_strategy("rollout")``; by default one worker per accelerator, or one
                worker on node 0 if there is none.
            name: name of the group for other processes; by default ``worker_group_<class>``, and inside a worker the
                worker's own address, so that ranks become ``group:0:1``.
            max_concurrency: number of coroutine methods that run at once in one worker (1000).
            isolate_gpu: restrict each worker to its own devices.
            catch_system_failure: make workers log the stacks of their threads at SIGTERM, SIGQUIT, SIGUSR1 and SIGUSR2,
            too, not only when they crash; the default is ``RLINF_CATCH_FAILURE``, 1 or 0.
            disable_distributed_log: do not show the workers' output in the driver.
            placement: another name for ``placement_strategy``; giving both raises ``ValueError``.
            env: environment variables for the workers; they override the variables that this process has set, changed
                or deleted since its start, which its workers get on every node.
            seed: rank r starts with the random seed ``seed + r`` (random, numpy, torch); by default unpredictable.
            profiling: configuration of the workers' profiler; by default that of the cluster's configuration.  Without
                ``worker_groups`` it applies to this group.
            call_timeout: seconds that each call of the group may take once the workers are constructed; by default
                ``RLINF_CALL_TIMEOUT_S``, 0 for no deadline.  A late call fails with ``DeadlineExceeded`` and is
                cancelled: coroutines get ``CancelledError``, a ``def`` method that has begun runs to its end, and its
                result is dropped; the error waits for the daemons' reports on the ranks (``RLINF_WAIT_ANSWER_S``).  A
                stream has this long for each item.
            restart: processes to restart when a worker has died: ``"rank"``, that one; ``"group"``, all ranks;
            ``"never"``, none. A restarted rank has the same address, devices, environment and constructor arguments, of
            which the driver keeps a copy. Unanswered calls fail with ``WorkerDied``; later calls wait for the restart,
            and so do messages to and from the rank. The default is the policy in the configuration's
            ``cluster.supervision`` for this group or component, else ``"never"``.
            max_restarts: restarts of a rank, or of the group, within the window (3); with one more death it is lost. A
            pause precedes each restart: 0.1 s, and twice as long each time, up to 10 s, for a rank that has not lived
            for 10 s.
            restart_window: seconds for which a restart counts (600).
            order: calls that wait while a rank is away: with ``"group"`` (the default, unless ``cluster.supervision``
            says otherwise) those to all ranks, so that every rank gets the group's calls in one order; with ``"rank"``,
            which needs ``restart="rank"``, only those to that rank. A call to several ranks is then sent at once to the
            present ones, and to the others when they are back; ``on_restart`` runs once no rank is away, and only
            meanwhile all calls wait.
            close_grace: seconds that the workers have for ``on_close`` and exit functions when the group is closed
                (``RLINF_CLOSE_GRACE_S``); a worker that finishes earlier exits at once.
            preload: names of modules, ``["vllm"]``, that each node imports once, before it forks the workers, and not
                again for a restart.  The module of the class and the modules that workers import at their start are
                preloaded, too; ``[]`` preloads nothing.  A module whose import starts a thread, opens a device or
                leaves another trace that workers cannot inherit is imported by each worker, and the log says so.

        Raises:
            ValueError: the name is taken, a public method has a name that the group needs itself, or
                ``max_concurrency``, ``call_timeout`` or ``close_grace`` is out of range, or ``preload`` has a name that
                no module can have.
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

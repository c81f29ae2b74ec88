"""``GroupSpec``: a worker group that is not launched yet, as ``Worker.create_group`` returns it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlinf_async.profiling import ProfileConfig


class Launcher(Protocol):
    """What can launch a group: a ``Cluster``."""

    @property
    def _launch(self) -> Callable[..., Any]: ...


@dataclass(frozen=True)
class GroupSpec:
    """A class and its constructor's arguments; nothing is launched before ``launch``.

    Example:
        group = MyWorker.create_group(config).launch(cluster, name="rollout")
    """

    worker_cls: type[Any]
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
        profiling: ProfileConfig | None = None,
        call_timeout: float | None = None,
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
            profiling: whether, when and how the workers are profiled; by default as the cluster's configuration says.
                Without ``worker_groups`` it is for this group.
            call_timeout: seconds that each call of the group may take once the workers are constructed; by default
                ``RLINF_CALL_TIMEOUT_S``, 0 for no deadline.  Then it fails with ``DeadlineExceeded`` and is cancelled:
                coroutines get ``CancelledError``, a ``def`` method that has begun runs to its end, and what it answers
                is dropped; the error waits for what daemons say of the ranks (``RLINF_WAIT_ANSWER_S``).  Of a stream it
                is the time that its consumer waits for the next item.
            seed: rank r starts with the random seed ``seed + r`` (random, numpy, torch); by default unpredictable.

        Raises:
            ValueError: the name is taken, a public method has a name that the group needs itself, or
                ``max_concurrency`` or ``call_timeout`` is out of range.
            ConfigError: the placement asks for more than the cluster has.
        """
        if placement is not None and placement_strategy is not None:
            raise ValueError("give either placement_strategy= or placement=, they are the same thing")
        return cluster._launch(
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
        )

"""``Cluster`` under RLinf's name: every ``Cluster()`` of a process returns the same object."""

from __future__ import annotations

import os
import threading
from typing import Any, ClassVar, Self

from rlinf_async import cluster
from rlinf_async._cluster.launch_config import read_config
from rlinf_async._core import process


class Cluster(cluster.Cluster):
    """``rlinf_async.Cluster`` as one object per process: RLinf's programs construct it wherever they need it.

    Example:
        Cluster(cluster_cfg=cfg.cluster)       # starts or joins the run
        Cluster()                              # the same object, here and in each worker

    Raises:
        RuntimeError: the process already has a cluster with other nodes or another configuration.
    """

    _only: ClassVar[Cluster | None] = None
    _making: ClassVar[Any] = threading.RLock()
    _is_made = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        with Cluster._making:
            only = Cluster._only
            if only is None or (only._is_made and (only._closing is not None or only._client.pid != process.pid)):
                only = Cluster._only = super().__new__(cls)
        return only  # type: ignore[return-value]  # no class is derived from this one

    def __init__(
        self,
        num_nodes: int | None = None,
        cluster_cfg: Any = None,
        distributed_log_dir: str | None = None,
        **options: Any,
    ) -> None:
        # Two threads may construct the first cluster at once: the second one waits here, and gets the same cluster.
        # tests/rlinf/test_under_rlinfs_names.py::test_two_threads_that_come_first_at_once_share_a_cluster
        with Cluster._making:
            if not self._is_made:
                super().__init__(num_nodes, cluster_cfg, distributed_log_dir, **options)
                self._is_made = True
                return
        if cluster_cfg is not None and read_config(cluster_cfg) != self._config:
            raise RuntimeError(
                f"Cluster(cluster_cfg=...): this process has {self!r} already, whose configuration is another one; "
                "RLinf's programs have one cluster (several: `from rlinf_async import Cluster`)"
            )
        if num_nodes and num_nodes != self.num_nodes:
            raise RuntimeError(f"Cluster(num_nodes={num_nodes}): this process has {self!r} already")


def _renew_lock() -> None:
    # After a fork the lock may be held by a thread that does not exist in the child.
    Cluster._making = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)

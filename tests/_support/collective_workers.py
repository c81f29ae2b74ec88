"""Workers that sit in collectives of torch."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rlinf_async import Worker
from rlinf_async._worker.collective_watch import CollectiveWatch


class Collective(Worker):
    """A Gloo group that the test makes, and ranks that do not come to it."""

    def initialize(self, attempt: str = "", absent: int = -1) -> int:
        if self._rank == absent:
            raise ValueError("not this time")
        where = {}
        if attempt:
            port = int(os.environ["MASTER_PORT"])
            store = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=False)
            where = {"store": dist.PrefixStore(attempt, store), "rank": self._rank, "world_size": self._world_size}
        dist.init_process_group("gloo", timeout=timedelta(seconds=30), **where)
        return dist.get_world_size()

    def destroy(self) -> None:
        dist.destroy_process_group()

    def hello(self) -> int:
        return self._rank

    def pid(self) -> int:
        return os.getpid()

    def meet(self, how: str = "all_reduce", absent: int = -1, late: float = 0.0, after: float = 0.0) -> float:
        """What the ranks' ones add up to; ``absent`` raises instead, ``after`` seconds, or comes ``late`` seconds after
        the others."""
        if self._rank == absent:
            if not late:
                time.sleep(after)
                raise ValueError("not this time")
            time.sleep(late)
        return self._meet(how)

    def _meet(self, how: str) -> float:
        one = torch.ones(1)
        if how == "all_reduce":
            dist.all_reduce(one)
        elif how == "wait":
            dist.all_reduce(one, async_op=True).wait()
        elif how == "recv":
            dist.recv(one, self._world_size - 1)
        elif how == "monitored_barrier":
            dist.monitored_barrier()
        elif how == "object":
            dist.all_gather_object([None] * self._world_size, self._rank)
        return float(one)

    def fail(self, seconds: float) -> None:
        time.sleep(seconds)
        raise ValueError("not this time")

    def compute(self, seconds: float, absent: int) -> int:
        if self._rank == absent:
            raise ValueError("not this time")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
        return os.getpid()

    def meet_again_and_again(self, absent: int) -> None:
        """Whatever is aborted, it goes into the next collective."""
        if self._rank == absent:
            raise ValueError("not this time")
        with contextlib.suppress(RuntimeError):
            self.meet()
        dist.destroy_process_group()
        while not dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                self.initialize("anew")

    def be_freed_by_a_peer_and_compute(self, seconds: float) -> int:
        """Rank 0 waits for rank 1, which waits for rank 2, which raises; rank 0 aborts when it is free already."""
        one = torch.ones(1)
        if self._rank == 2:
            raise ValueError("not this time")
        if self._rank == 1:
            with contextlib.suppress(RuntimeError):
                dist.broadcast(one, 2)
            return 0
        is_free, abort = threading.Event(), CollectiveWatch._abort

        def abort_late(*arguments: Any) -> None:
            assert is_free.wait(10)
            abort(*arguments)

        CollectiveWatch._abort = abort_late  # type: ignore[method-assign]
        try:
            dist.broadcast(one, 1)
        except RuntimeError:
            is_free.set()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                pass
            return os.getpid()
        finally:
            CollectiveWatch._abort = abort  # type: ignore[method-assign]
        return -1

    def meet_and_compute(self, seconds: float, absent: int) -> int:
        """Computes when it has been freed."""
        try:
            self.meet(absent=absent)
        except RuntimeError:
            return self.compute(seconds, -1)
        return 0

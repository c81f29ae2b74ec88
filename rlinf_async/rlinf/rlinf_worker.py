"""``Worker`` under RLinf's names, and routing functions that only use attributes of RLinf's workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rlinf_async import worker
from rlinf_async._messaging import route_work
from rlinf_async._worker.context import require_exchange
from rlinf_async.work import IntOrWork, Work, blocking


class Worker(worker.Worker):
    """``rlinf_async.Worker`` with the attribute that RLinf's programs pass to its routing functions."""

    manager_proxy: ClassVar[None] = None
    _manager_proxy: ClassVar[None] = None
    """An unused attribute: RLinf reaches its managers through it, but here they are parts of the daemons."""


class AsyncRouteWork(route_work.AsyncRouteWork):
    """One ``Work`` for several parts.

    Args:
        works: the parts.
        finalize_fn: computes the result from the results of the parts.
    """

    def __init__(self, works: Sequence[Work[Any]], finalize_fn: Callable[[list[Any]], Any]) -> None:
        super().__init__(f"an AsyncRouteWork of {len(works)} parts")
        self.begin(works, finalize_fn)


def get_group_world_size(manager_proxy: Any, group_name: str) -> IntOrWork:
    """Return the number of ranks in a group; wait for the group if it does not exist yet.

    Args:
        manager_proxy: accepted for RLinf's programs and ignored.
    """
    del manager_proxy
    size: IntOrWork = blocking(require_exchange().find_group(group_name))
    return size

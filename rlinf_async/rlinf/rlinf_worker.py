"""``Worker`` under RLinf's names, and the routing calls that take what only its workers have."""

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
    """RLinf's way to its managers, which are parts of the daemons here."""


class AsyncRouteWork(route_work.AsyncRouteWork):
    """One ``Work`` of several.

    Args:
        works: the parts.
        finalize_fn: makes the result out of the parts' results.
    """

    def __init__(self, works: Sequence[Work[Any]], finalize_fn: Callable[[list[Any]], Any]) -> None:
        super().__init__(f"an AsyncRouteWork of {len(works)} parts")
        self.begin(works, finalize_fn)


def get_group_world_size(manager_proxy: Any, group_name: str) -> IntOrWork:
    """Return the number of ranks of a group, for which it waits where the group does not exist yet.

    Args:
        manager_proxy: RLinf's, of no account here.
    """
    del manager_proxy
    size: IntOrWork = blocking(require_exchange().find_group(group_name))
    return size

"""Name resolution for groups: asks node 0 for a group's ranks (``Roster``), waits for missing ones, caches rosters."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from rlinf_async import settings
from rlinf_async._client import peer_activity
from rlinf_async._client.client import NodeClient
from rlinf_async._client.name_lookup import end_lookup
from rlinf_async._client.requests import DaemonRequest
from rlinf_async._core import operations
from rlinf_async._core.root_cause import fold_ranks
from rlinf_async._inspection.state.run_report import Target, TargetKind
from rlinf_async._waits import slow_waits
from rlinf_async.work import Work


class Roster:
    """The ranks of one group. The entry of a rank that has not joined is None."""

    def __init__(self, group: str, entries: list[dict[str, Any] | None]) -> None:
        self.group = group
        self._entries = entries

    @property
    def size(self) -> int:
        return len(self._entries)

    def lacks(self, rank: int) -> bool:
        """True if the rank may still join."""
        return 0 <= rank < len(self._entries) and self._entries[rank] is None

    def has(self, rank: int, endpoint: int) -> bool:
        entry = self._entries[rank] if 0 <= rank < len(self._entries) else None
        return entry is not None and entry["endpoint"] == endpoint

    def is_supervised(self, rank: int) -> bool:
        entry = self._entries[rank]
        return entry is not None and bool(entry.get("supervised"))

    def find(self, rank: int) -> tuple[int, str, int]:
        """Return a rank's endpoint, node name and pid. A ValueError for an unknown rank lists the ranks."""
        if not 0 <= rank < len(self._entries):
            ranks = fold_ranks(range(len(self._entries)))
            raise ValueError(f"group '{self.group}' has no rank {rank}: its ranks are {ranks}")
        entry = self._entries[rank]
        if entry is None:
            raise ValueError(f"rank {rank} of group '{self.group}' is not there")
        return entry["endpoint"], entry["info"]["node_name"], entry["pid"]


OnRoster = Callable[[Roster | None, Exception | None], None]


_Key = tuple[str, int | None, int]


def _key(group: str, rank: int, after: int) -> _Key:
    """Return the key shared by equal lookups; includes the rank for subprocesses, because they join rank by rank."""
    return group, rank if after or ":" in group else None, after


class _Lookup:
    __slots__ = ("is_answered", "number", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[OnRoster] = deque()
        self.number = -1
        self.is_answered = False


class GroupRosters:
    """The known rosters by group name, and the lookups of unknown names, whose callers are answered in order."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._rosters: dict[str, Roster] = {}
        self.lookups: dict[_Key, _Lookup] = {}  # operations check directly whether it is empty, to save a call
        self._patience = settings.NAME_TIMEOUT_S()

    def find(self, group: str, on_roster: OnRoster, rank: int = 0, after: int = 0) -> Roster | None:
        """Return a group's roster if it is known; otherwise return None, and call ``on_roster`` once it is.

        The roster includes the given rank, if that rank can exist. If ``after`` is the endpoint of an ended process of
        the rank, the roster lists the rank's next process; if the rank does not return, the roster is unchanged.

        If no such group appears within ``settings.NAME_TIMEOUT_S``, the error lists the existing groups; if the group
        is closed, the error says so immediately.
        """
        is_new = False
        key = _key(group, rank, after)
        with self._lock:
            if not after:
                # Other operations may still wait for the rank's return, although its new process introduced itself
                # before the group's owner announced the return. This lookup queues behind those operations.
                # tests/_messaging/test_moments.py::
                # test_those_who_wait_for_a_rank_keep_their_order_when_it_speaks_before_its_return_is_told
                key = next((other for other in self.lookups if other[:2] == (group, rank)), key)
            lookup = self.lookups.get(key)
            roster = self._rosters.get(group)
            if lookup is None and (roster is None or roster.lacks(rank) or (after and roster.has(rank, after))):
                lookup = self.lookups[key] = _Lookup()
                is_new = True
            if lookup is not None:
                lookup.waiting.append(on_roster)
        if lookup is None:
            return roster
        if is_new:
            operation = operations.Find("group", group, key[1], after)
            request = self._client.request(operation, node=0, what=f"a group named '{group}'")
            lookup.number = request.number
            request._follow(lambda: self._found(key, lookup, request))
            if not after:  # the group's owner always reports the outcome of a restart
                self._client.later(self._patience, lambda: self._time_out(key, lookup))
        return None

    def leave(self, on_roster: OnRoster) -> None:
        with self._lock:
            for lookup in self.lookups.values():
                if on_roster in lookup.waiting:
                    lookup.waiting.remove(on_roster)

    def is_pending(self, group: str, rank: int, endpoint: int) -> bool:
        # The lookup that waits for the return of the process at ``endpoint`` itself does not count.
        return any(name == group and of in (None, rank) and after != endpoint for name, of, after in list(self.lookups))

    def forget(self, group: str) -> None:
        """Drop an ended group's roster, because the same name may later belong to another group."""
        with self._lock:
            self._rosters.pop(group, None)

    def late(self, group: str, seconds: float, on_roster: Callable[[Exception], object], lookup: int = -1) -> None:
        """Call ``on_roster`` with a timeout error that lists the existing groups, and cancel the ``lookup``."""
        late = end_lookup(self._client, "group", f"group named '{group}' within {seconds:g} s", lookup)

        def said() -> None:
            on_roster(late._result())

        late._follow(said)

    def _found(self, key: _Key, lookup: _Lookup, request: DaemonRequest[list[Any]]) -> None:
        try:
            roster, error = Roster(key[0], request._result()), None
        except Exception as failure:
            roster, error = None, failure
        self._answer(key, lookup, roster, error)

    def _time_out(self, key: _Key, lookup: _Lookup) -> None:
        if not lookup.is_answered:
            self.late(
                key[0], self._patience, lambda error: self._answer(key, lookup, None, error), lookup=lookup.number
            )

    def _answer(self, key: _Key, lookup: _Lookup, roster: Roster | None, error: Exception | None) -> None:
        with self._lock:
            if lookup.is_answered:
                return
            lookup.is_answered = True
        self._call_back(key, lookup, roster, error)

    def _call_back(self, key: _Key, lookup: _Lookup, roster: Roster | None, error: Exception | None) -> None:
        # Call back one by one, and remove the lookup last: a new caller must queue behind the waiting callers instead
        # of finding the roster and overtaking them.
        while True:
            with self._lock:
                if not lookup.waiting:
                    del self.lookups[key]
                    if roster is not None:
                        self._rosters[key[0]] = roster
                    return
                on_roster = lookup.waiting.popleft()
            try:
                on_roster(roster, error)
            except BaseException:  # those behind it, and later callers, would wait for ever
                self._call_back(key, lookup, roster, error)
                raise


class GroupSearch(Work[int]):
    """A search for a group; its result is the group's world size."""

    _kind = "name"

    def __init__(self, client: NodeClient, group: str, names: GroupRosters) -> None:
        super().__init__()
        self._client = client
        self._group = group
        self._names = names

    def _expire(self) -> None:
        assert self._timeout is not None
        self._names.late(self._group, self._timeout, lambda error: self._settle(error=error))

    def _describe(self) -> str:
        return f"a group named '{self._group}'"

    def _peer_activity(self) -> Work[str]:
        return peer_activity.name(self._client, self._group)

    def _needs(self) -> slow_waits.Needs:
        return [Target(TargetKind.NAME, name=self._group)], True

"""``RestartBudget``: restarts that a group has left, and the pause before each: plain state."""

from __future__ import annotations

from collections import deque
from typing import Final

from rlinf_async.configuration import RestartPolicy

# Pause before a restart; doubled each time for a rank that has lived less than ``MAX_PAUSE_S`` since the last one.
FIRST_PAUSE_S: Final = 0.1

MAX_PAUSE_S: Final = 10.0


class RestartBudget:
    """Count of the restarts of each rank (or of the whole group, as rank -1) within the policy's window."""

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self._restarts: dict[int, deque[float]] = {}
        self._last: dict[int, tuple[float, float]] = {}

    def spend(self, rank: int, now: float) -> float | None:
        """Count a restart. Return the seconds to wait before it; None if no restart is left."""
        spent = self._restarts.setdefault(rank, deque())
        while spent and now - spent[0] >= self.policy.window:
            spent.popleft()
        if len(spent) >= self.policy.max_restarts:
            return None
        back_at, pause = self._last.get(rank, (-MAX_PAUSE_S, 0.0))
        lived = now - back_at
        pause = FIRST_PAUSE_S if lived >= MAX_PAUSE_S or not pause else min(MAX_PAUSE_S, 2 * pause)
        self._last[rank] = now + pause, pause
        spent.append(now)
        return pause

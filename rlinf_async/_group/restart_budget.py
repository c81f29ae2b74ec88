"""``RestartBudget``: plain state of a group's remaining restarts, and of the pause before each restart."""

from __future__ import annotations

from collections import deque
from typing import Final

from rlinf_async.configuration import RestartPolicy

# Pause before a restart; doubled each time for a rank that lived less than ``MAX_PAUSE_S`` since its last restart.
FIRST_PAUSE_S: Final = 0.1

MAX_PAUSE_S: Final = 10.0


class RestartBudget:
    """Counts each rank's restarts (the whole group's as rank -1) within the policy's window."""

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self._restarts: dict[int, deque[float]] = {}
        self._last: dict[int, tuple[float, float]] = {}

    def spend(self, rank: int, now: float) -> float | None:
        """Count a restart. Return the number of seconds to wait before it; None if no restart is left."""
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

"""``WindowPlan``: a worker's steps to profile, and its back end; passed as JSON in an environment variable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

SECTION: Final = "RLINF_PROFILING"
"""Environment variable of a profiled worker with its ``WindowPlan`` as JSON."""

TORCH: Final = "torch"
"""Name of the back end that runs inside the worker, ``torch.profiler``."""


@dataclass(frozen=True)
class WindowPlan:
    """The steps in which a worker opens a profiling window, and the back end's options.

    Attributes:
        backend: ``"torch"``, or the name of the tool under which the worker runs.
        steps: steps that have a window; None means all.
        directory: folder for traces written by the worker itself.
        options: keyword arguments of ``torch.profiler.profile``.
    """

    backend: str
    steps: tuple[int, ...] | None = None
    directory: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def has_step(self, step: int) -> bool:
        return self.steps is None or step in self.steps

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WindowPlan:
        facts = json.loads(text)
        steps = facts["steps"]
        return cls(**{**facts, "steps": None if steps is None else tuple(steps)})

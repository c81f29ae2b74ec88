"""``WindowPlan``: steps that a worker profiles, and its back end; passed on as JSON in an environment variable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

SECTION: Final = "RLINF_PROFILING"
"""Name of a profiled worker's environment variable with its ``WindowPlan`` as JSON."""

TORCH: Final = "torch"
"""Name of the back end that runs inside the worker, ``torch.profiler``."""


@dataclass(frozen=True)
class WindowPlan:
    """The steps in which a worker opens a profiling window, and the back end's options.

    Attributes:
        backend: ``"torch"``, or the name of the tool around the worker.
        steps: steps that have a window; None for all.
        directory: folder for traces that the worker itself writes.
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

"""Import paths of the examples' modules."""

from __future__ import annotations

import sys
from pathlib import Path

for example in ("", "embodiment", "reasoning"):
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / example))

"""The examples are scripts with modules beside them, which become importable here; no two have the same name."""

from __future__ import annotations

import sys
from pathlib import Path

for example in ("", "embodiment", "reasoning"):
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / example))

"""The examples are scripts with modules beside them: those of the embodiment example become importable here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "embodiment"))

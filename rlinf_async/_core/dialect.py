"""The dialect of this process: public calls follow this framework's rules, or RLinf's rules under RLinf's names."""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "RLINF_RLINF"  # environment variable set by `rlinf-launch --rlinf` and `python -m rlinf_async.rlinf`

is_rlinf = False


def is_wanted() -> bool:
    return os.environ.get(VARIABLE, "") not in ("", "0")

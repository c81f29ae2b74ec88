"""Dialect of this process: public calls follow this framework's rules, or RLinf's under RLinf's names."""

from __future__ import annotations

import os
from asyncio import _get_running_loop as running_loop  # None where there is none, and no exception
from typing import Final

VARIABLE: Final = "RLINF_RLINF"
"""Variable of a run under RLinf's names, from `rlinf-launch --rlinf` or `python -m rlinf_async.rlinf`."""

is_rlinf = False


def must_await() -> bool:
    """True in a coroutine, which awaits where other code blocks; RLinf's rules let a coroutine block as well."""
    return not is_rlinf and running_loop() is not None


def is_wanted() -> bool:
    """True if the environment asks for RLinf's names."""
    return os.environ.get(VARIABLE, "") not in ("", "0")

"""Entry point of ``rlinf-ctl``: an operator's commands on the runs of this user."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``rlinf-ctl`` with the words after its name; returns the exit code."""
    del argv
    sys.stderr.write("rlinf-ctl: no command\n")
    return 2

"""Prints workers' lines of output in the driver, each prefixed with its worker's name."""

from __future__ import annotations

import sys
from typing import Any

from rlinf_async._wire.terminal import Terminal


def show_output(terminal: Terminal, facts: dict[str, Any]) -> None:
    """Queues the lines of one worker for the stream of the same name here."""
    stream = sys.stderr if facts["stream"] == "stderr" else sys.stdout
    prefix = f"[{facts['who']}] "
    rank = facts["who"].rpartition("@")[0].rpartition(":")[2]
    where = f": rank {rank}'s log has all of it: {facts['log']}"
    terminal.write(stream, "".join(f"{prefix}{line}\n" for line in facts["lines"]), prefix, where)

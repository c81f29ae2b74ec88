"""The workers' output in the driver: every line with who said it."""

from __future__ import annotations

import sys
from typing import Any


def show_output(facts: dict[str, Any]) -> None:
    """Writes the lines of one worker to the stream of the same name here."""
    stream = sys.stderr if facts["stream"] == "stderr" else sys.stdout
    prefix = f"[{facts['who']}] "
    text = "".join(f"{prefix}{line}\n" for line in facts["lines"])
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        # The user closed the stream; the log files have it all.
        return

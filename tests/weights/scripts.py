"""Scripts of several ranks, run beside a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(script: str, store: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name(script)), str(store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr

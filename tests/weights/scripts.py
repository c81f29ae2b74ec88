"""Scripts of several ranks, run beside a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def run(module: str, store: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", f"tests.weights.{module}", str(store)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr

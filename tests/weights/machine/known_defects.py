"""Planted defects, and the programs that find each: ``python -m tests.weights.machine.known_defects [NAME ...]``.

A patch in ``defects`` is applied to a copy of the packages, where the machine plays its programs until one breaks a
promise.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.simulation import known_defects

DEFECTS: Final = Path(__file__).parent / "defects"


def names() -> list[str]:
    return sorted(path.stem for path in DEFECTS.glob("*.patch"))


def apply(name: str, checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return known_defects.apply(str(DEFECTS / name), checkout, *options)


def find(name: str) -> str:
    """Return the first promise that is broken, or nothing."""
    with tempfile.TemporaryDirectory(prefix="rlinf-defect-") as folder:
        known_defects.copy_to(Path(folder))
        if (applied := apply(name, Path(folder))).returncode:
            raise SystemExit(f"{name} does not apply any more:\n{applied.stderr}")
        command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-c", os.devnull, "-p", "no:cacheprovider"]
        command += ["--confcutdir=tests/weights/machine", "tests/weights/machine/test_machine.py", "-k", "programs"]
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": folder}, capture_output=True, text=True
        )
        if done.returncode > 1:
            raise SystemExit(f"{name} was not looked for:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        broken = re.search(r"^[ |]*E? +(\w*Error: .*)", done.stdout, re.MULTILINE)
        return "" if not done.returncode else broken[1][:160] if broken else done.stdout[-2000:]


if __name__ == "__main__":
    for each in sys.argv[1:] or names():
        print(f"{each}: {find(each) or 'NOT FOUND'}", flush=True)

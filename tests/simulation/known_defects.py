"""Known defects, put back one by one, and the seed that finds each: ``python -m tests.simulation.known_defects``.

A patch in ``tests/simulation/defects`` is one that was mended.  It is applied to a copy of both packages, and the first
seed whose program breaks a promise there has found it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]
DEFECTS: Final = Path(__file__).parent / "defects"
_COPIED: Final = ("rlinf_async", "launcher", "tests")


def names() -> list[str]:
    return sorted(path.stem for path in DEFECTS.glob("*.patch"))


def apply(name: str, checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Puts a defect back into a copy of the packages."""
    command = ["git", "apply", "-p1", *options, str(DEFECTS / f"{name}.patch")]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True)


def copy_to(folder: Path) -> None:
    """A copy of the packages that can be imported from there."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in _COPIED:
        shutil.copytree(CHECKOUT / name, folder / name, ignore=ignore)
    (folder / "rlinf_launcher").symlink_to("launcher")


def find(name: str, seeds: int, timeout: float) -> dict[str, object]:
    """Plays seeds with a defect until one shows it."""
    with tempfile.TemporaryDirectory(prefix="rlinf-defect-") as folder:
        copy_to(Path(folder))
        if (applied := apply(name, Path(folder))).returncode:
            raise SystemExit(f"{name} does not apply any more:\n{applied.stderr}")
        began = time.monotonic()
        command = [sys.executable, "-P", "-m", "tests.simulation", "0", str(seeds), "--first"]
        environment = {**os.environ, "PYTHONPATH": folder}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)
        lines = done.stdout.splitlines()
        found = next((line for line in lines if line.startswith("seed ")), None)
        seed = None if found is None else int(found.split(":")[0].removeprefix("seed "))
        broken = next((line.strip() for line in lines if line.startswith("  [")), "")
        return {"defect": name, "seed": seed, "seconds": round(time.monotonic() - began, 1), "broken": broken[:160]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.known_defects", description=__doc__)
    parser.add_argument("names", nargs="*", default=None)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--timeout", type=float, default=600.0)
    flags = parser.parse_args()
    for name in flags.names or names():
        print(json.dumps(find(name, flags.seeds, flags.timeout)), flush=True)


if __name__ == "__main__":
    main()

"""``make gpu-bundle``: a folder with all that ``make gpu`` needs on a machine without a network.

The machine has Python 3.12 with torch, numpy and most pure packages; the folder has this checkout, the wheels of the
rest, and ``run.sh``, which needs nothing else and passes its arguments on to ``tests.gpu.run``.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.gpu.run import CHECKOUT

MISSING: Final = (
    *("cffi", "cryptography", "omegaconf", "pycparser", "shtab"),
    *("pytest", "pytest-asyncio", "pytest-xdist"),
    *("farama-notifications", "glfw", "gymnasium", "mujoco", "mujoco-core"),
)
"""Packages that the machine lacks; ``constraints.txt`` has their versions."""

PYTHON: Final = "3.12"
PLATFORMS: Final = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
LIMIT_BYTES: Final = 60 << 20

RUN: Final = """\
#!/bin/sh
# Runs the GPU proof of the checkout beside this file, with the arguments of `make gpu`; PYTHON=... is the interpreter.
set -e
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
if [ ! -e "$here/site" ]; then
    export PIP_ROOT_USER_ACTION=ignore
    "$python" -m pip install -q --no-index --no-deps --target "$here/site.new" "$here"/wheels/*.whl
    ln -s ../checkout/launcher "$here/site.new/rlinf_launcher"
    mv "$here/site.new" "$here/site"
fi
export PYTHONPATH="$here/site:$here/checkout"
cd "$here/checkout"
exec "$python" -m tests.gpu.run --report "$here/gpu-report" "$@"
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="make gpu-bundle", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=CHECKOUT / "gpu-bundle", help="made anew")
    folder: Path = parser.parse_args(arguments).folder
    if folder.exists() and not (folder / "run.sh").exists():
        parser.error(f"{folder} exists and is no bundle: name another folder, or remove it")
    shutil.rmtree(folder, ignore_errors=True)
    copy_checkout(folder / "checkout")
    download(folder / "wheels")
    script = folder / "run.sh"
    script.write_text(RUN)
    script.chmod(0o755)
    sizes = {path: path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    for path in sorted((folder / "wheels").iterdir()):
        print(f"{sizes[path] / 1e6:8.2f} MB  {path.relative_to(folder)}")
    whole = sum(sizes.values())
    print(f"{whole / 1e6:8.2f} MB  {folder}, {len(sizes)} files")
    if whole > LIMIT_BYTES:
        sys.exit(f"the bundle has {whole >> 20} MiB, and at most {LIMIT_BYTES >> 20} MiB travel")


def copy_checkout(target: Path) -> None:
    """Copy what git knows of, and new files that it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        source = CHECKOUT / name
        if source.is_file():  # and was not removed since
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def pinned() -> list[str]:
    """Return the missing packages with their versions.

    Raises:
        KeyError: ``constraints.txt`` does not have one.
    """
    found = dict(re.findall(r"^([\w.-]+)==(\S+)", (CHECKOUT / "constraints.txt").read_text(), re.MULTILINE))
    return [f"{name}=={found[name]}" for name in MISSING]


def download(target: Path) -> None:
    platforms = [option for platform in PLATFORMS for option in ("--platform", platform)]
    command = [
        sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version", PYTHON,
        "--implementation", "cp", *platforms, "-d", str(target), *pinned(),
    ]  # fmt: skip
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()

"""``python -m rlinf_async``: prints the installed versions, and how to get started."""

import argparse
import importlib.metadata
import platform
import sys

from rlinf_async import __version__

_USAGE = """\
rlinf_async is a package to be imported: `from rlinf_async import Cluster, Worker`. Its commands are

  rlinf-launch   starts a script with its nodes, on this machine or on many; rlinf-launch --help
  rlinf-ctl      looks at runs and ends them; rlinf-ctl --help"""


def main() -> int:
    """Print the usage or, with ``--version``, the versions, without importing the packages. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m rlinf_async",
        description=_USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the versions that a bug report needs")
    if not parser.parse_args().version:
        parser.print_help()
        return 0
    lines = [f"rlinf_async {__version__}", f"Python {platform.python_version()}", _installed("torch")]
    sys.stdout.write("\n".join([*lines, _installed("grpcio")]) + "\n")
    return 0


def _installed(name: str) -> str:
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{name} is not installed: pip install {name}"


if __name__ == "__main__":
    sys.exit(main())

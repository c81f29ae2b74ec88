"""``python -m rlinf_async.rlinf train.py ARGS``: runs an unmodified RLinf program on this framework."""

from __future__ import annotations

import os
import sys

from rlinf_async._core import import_hook
from rlinf_async._core.own_start import interpreter_flags


def main(words: list[str]) -> int:
    """Replace this process with Python; this package provides ``rlinf.scheduler`` to the script or module that it
    runs."""
    if not words or words[0] in ("-h", "--help"):
        sys.stderr.write("usage: python -m rlinf_async.rlinf [-m] train.py [args ...]\n")
        return 0 if words else 2
    environment = {**os.environ, **import_hook.variables(os.environ)}
    return os.execve(sys.executable, [sys.executable, *interpreter_flags(), *words], environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

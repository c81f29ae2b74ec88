"""Exec wrapper of the user's script: sets PDEATHSIG, so that the kernel kills it when the launcher dies.

    python -I -S die_with_parent.py PARENT PROGRAM [ARGUMENT ...]

The parent-death signal survives exec, so the user's program itself needs no change.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if os.getppid() != parent:  # the parent died before prctl, so its death sends no signal
        sys.exit(1)
    try:
        os.execv(program[0], program)
    except OSError as error:
        sys.exit(f"rlinf-launch: {program[0]} cannot be run: {error.strerror}")


if __name__ == "__main__":
    main()

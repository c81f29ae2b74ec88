"""The guardian of a daemon that does not do its part."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, time
from rlinf_launcher.daemon import guardian
guardian._ORDERLY_END_S = 0.1
def daemon(line, tell):
    print(os.getpid(), flush=True)
    time.sleep(600) if sys.argv[1] == "hangs" else sys.stdin.read()
    return 7
guardian.guard(daemon)
"""


@pytest.mark.parametrize(("daemon", "code"), [("hangs", 128 + 9), ("ends", 7)])
def test_a_lifeline_that_is_cut_ends_a_daemon_that_hangs_as_well(daemon: str, code: int) -> None:
    command = [sys.executable, "-c", PROGRAM, daemon]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guardian:
        try:
            assert guardian.stdin is not None
            assert guardian.stdout is not None
            guardian.stdin.write(b"{}\n")
            guardian.stdin.flush()
            guardian.stdout.readline()
            guardian.stdin.close()
            guardian.stdin = None
            assert guardian.wait(20) == code
        finally:
            guardian.kill()

"""Child processes that no daemon knows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rlinf_launcher.daemon.child_processes import children_of

PROGRAM = """
import subprocess, sys
with subprocess.Popen(["sleep", "60"]) as below:
    print(below.pid, flush=True)
    sys.stdin.read()
    below.kill()
"""


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """Yield the pids of a child of this process, and of its child."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        yield child.pid, int(child.stdout.readline())


def test_children_and_theirs_are_found_with_their_ages(family: tuple[int, int]) -> None:
    child, below = family
    found = {each.pid: each for each in children_of({os.getpid()})[os.getpid()]}
    assert {child, below} <= found.keys()
    assert 0.0 <= found[below].age <= found[child].age + 0.02 < 30.0
    assert found[child].cpu > 0.0


def test_what_is_known_itself_has_its_own_children(family: tuple[int, int]) -> None:
    child, below = family
    found = children_of({os.getpid(), child})
    assert child not in [each.pid for each in found.get(os.getpid(), ())]
    assert [each.pid for each in found[child]] == [below]


def test_what_has_ended_is_no_child() -> None:
    ended = os.fork()
    if not ended:
        os._exit(0)
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    try:
        assert ended not in [each.pid for each in children_of({os.getpid()}).get(os.getpid(), ())]
    finally:
        os.waitpid(ended, 0)

"""Births of workers that fail, in a process of their own, which may be forked."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

PROGRAM = """
    import errno, os, signal, socket
    from rlinf_async._worker import template

    fork, forks = os.fork, 0

    def failing_fork():
        global forks
        forks += 1
        if forks == {at}:
            {fails}
        return fork()

    template._run_worker = lambda spec, fds: os._exit(0)
    os.fork = failing_fork
    orders = [template.Order({{}}, []) for _ in range(2)]
    control = socket.socket()
    if {at} == 0:
        {fails}
    print([list(answer.items()) for answer in template._fork_twice(control, orders)])
"""
NO_FILES = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))"
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
LIMIT = r"fork: Resource temporarily unavailable \(a limit of processes: `ulimit -u`, or pids.max of a cgroup\)"
MEMORY = "fork: Cannot allocate memory"
FILES = r"fork: Too many open files \(it may open 3 files: `ulimit -n`\)"


@pytest.mark.parametrize(
    ("at", "fails", "told"),
    [
        (2, KILL, [r"the process \d+ that was to fork the worker was killed by signal 9 before it did"] * 2),
        (3, KILL, [r"\d+", r"the process \d+ that was to fork the worker was killed by signal 9 before it did"]),
        (2, "os._exit(3)", [r"the process \d+ that was to fork the worker exited with code 3 before it did"] * 2),
        (1, "raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))", [LIMIT] * 2),
        (3, "raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))", [r"\d+", LIMIT]),
        (2, "raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))", [MEMORY, r"\d+"]),
        (0, NO_FILES, [FILES] * 2),
    ],
)
def test_a_worker_that_is_not_born_is_told_with_the_reason_alone(at: int, fails: str, told: list[str]) -> None:
    program = dedent(PROGRAM).format(at=at, fails=fails)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    answers = ast.literal_eval(done.stdout)
    assert [name for ((name, _),) in answers] == ["pid" if text == r"\d+" else "error" for text in told]
    for ((_, value),), text in zip(answers, told, strict=True):
        assert re.fullmatch(text, str(value)), value


AS_NOBODY = """
    import os, sys
    from rlinf_async._core import main_module
    from rlinf_async._worker import template

    if not os.getuid():
        os.setresuid(65534, 65534, 65534)
    spec = {"cwd": "/", "sys_path": [sys.argv[1] + "/lib", "/usr"], "script": sys.argv[1] + "/run.py", "module": None}
    template._follow_script(spec)
    print(sys.path[0], main_module.script.why_not())
"""


def test_folders_of_the_scripts_that_this_user_may_not_read_are_none(tmp_path: Path) -> None:
    private = tmp_path / "private"
    (private / "lib").mkdir(parents=True)
    (private / "run.py").touch()
    private.chmod(0)
    command = [sys.executable, "-c", dedent(AS_NOBODY), str(private)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    private.chmod(0o700)
    assert done.stdout == f"/usr there is no file {private}/run.py on this node to import it from\n", done.stderr

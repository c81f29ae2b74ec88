"""Errors for too few file descriptors: host, limit, need and fix."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from rlinf_async._core.descriptors import explained_shortage, limit_met
from rlinf_async.errors import LaunchError

ROOT = Path(__file__).parents[2]

SCRIPT = """
    from rlinf_async import Cluster, LaunchError, NodePlacementStrategy
    from tests._support.workers import Plain

    try:
        with Cluster(log_to_driver=False) as cluster:
            group = Plain.create_group().launch(cluster, placement=NodePlacementStrategy([0] * 8), name="many")
            group.hello().wait()
    except LaunchError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        (9, "this machine: too few file descriptors for a cluster: about 32 are needed, and process "),
        (40, "localhost: too few file descriptors for 8 workers of group 'many': about 72 are needed, and process "),
    ],
)
def test_a_launch_without_descriptors_names_host_limit_need_and_fix(limit: int, told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", dedent(SCRIPT)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.startswith(told), done.stderr
    assert f" may have {limit}" in done.stdout
    assert "\n  fix: `ulimit -n " in done.stdout


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_shortage_that_is_wrapped_already_is_explained_too(number: int) -> None:
    wrapped = LaunchError("a worker could not be watched")
    wrapped.__cause__ = OSError(number, os.strerror(number))
    told = pytest.raises(LaunchError, match=r"node7: .* 3 workers.* 27 are needed")
    with told as caught, explained_shortage("node7", "3 workers", 27):
        raise wrapped
    assert "fix: `" in str(caught.value)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EMFILE, "x"), r" \(it may open \d+ files: `ulimit -n`\)"),
        (OSError(errno.ENFILE, "x"), r" \(the system has no file left: `sysctl fs.file-max`\)"),
        (OSError(errno.ENOMEM, "x"), ""),
        (OSError("x"), ""),
        (MemoryError(), ""),
    ],
)
def test_a_limit_is_named_only_by_an_error_that_is_about_it(error: BaseException, told: str) -> None:
    assert re.fullmatch(told, limit_met(error))


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), LaunchError("other")])
def test_other_errors_are_left_alone(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, explained_shortage("node7", "3 workers", 27):
        raise error
    assert caught.value is error

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rlinf_async.errors import LaunchError
from rlinf_launcher.daemon import templates
from rlinf_launcher.daemon.templates import Template, Templates, template_command

NODE = {"HOME": "/root", "OMP_NUM_THREADS": "2", "LD_LIBRARY_PATH": "/lib"}


class Made:
    """A template that only tells which environment it was given."""

    dead = False

    def __init__(self, python: str, environment: Mapping[str, str], *rest: Any) -> None:
        self.environment = dict(environment)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("wanted", "own"),
    [
        (NODE, None),
        ({**NODE, "HOME": "/x", "NEW": "1"}, None),
        ({**NODE, "OMP_NUM_THREADS": "4"}, {**NODE, "OMP_NUM_THREADS": "4"}),
        ({"HOME": "/root", "OMP_NUM_THREADS": "2"}, {"HOME": "/root", "OMP_NUM_THREADS": "2"}),
    ],
)
def test_only_variables_that_are_read_at_a_start_and_differ_need_another_template(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[str, str], own: dict[str, str] | None
) -> None:
    monkeypatch.setattr(templates, "Template", Made)
    with closing(Templates("python", NODE, open_files=1024)) as kept:
        usual: Any = kept.get()
        found: Any = kept.get(wanted)
        assert (found is usual) == (own is None)
        assert found.environment == (own or NODE)
        assert kept.get(wanted) is found


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Template]:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o700)
    with closing(Template(str(program), {}, 1024)) as template:
        yield template


async def test_a_description_that_the_kernel_takes_in_no_packet_names_its_largest_variables(idle: Template) -> None:
    idle.watch(asyncio.get_running_loop())
    idle._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    with pytest.raises(LaunchError, match=r"and 32768 pass; its largest variables, in bytes: \$BIG \(100003\), \$A"):
        await idle.fork({"env": {"A": "\udcff", "BIG": "x" * 100_000}, "script_env": {b"\xff": b"\xff"}}, [])
    assert not idle.dead
    assert idle._patience is None


def test_an_isolated_interpreter_finds_this_package() -> None:
    *flags, _, start = template_command(["-I", "-O"])
    assert flags == ["-I", "-O", "-P"]
    compile(start, "-c", "exec")
    assert template_command(["-O"])[-2:] == ["-m", "rlinf_async._worker.template"]
    assert str(Path(sys.modules["rlinf_async"].__file__ or "").parents[1]) in start

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from rlinf_async import settings
from rlinf_async._core import frames, operations
from rlinf_async.configuration import RESTARTS
from rlinf_async.errors import LaunchError
from rlinf_launcher.daemon import preloads as preloads_module, templates
from rlinf_launcher.daemon.fork_server import MARKER, PACKET_BYTES, ForkServer, control_pair
from rlinf_launcher.daemon.preloads import PreloadRequest, Preloads, Refusal, wanted_by
from rlinf_launcher.daemon.templates import Template, Templates, template_command

NODE = {"HOME": "/root", "OMP_NUM_THREADS": "2", "LD_LIBRARY_PATH": "/lib"}


class Made:
    """A template that only records its environment."""

    dead = is_closed = has_ended = False
    users = 0

    def __init__(self, python: str, environment: Mapping[str, str], *rest: Any) -> None:
        self.environment = dict(environment)

    def end(self) -> None:
        self.has_ended = True

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("wanted", "own"),
    [
        (NODE, None),
        ({**NODE, "HOME": "/x", "NEW": "1"}, None),
        ({**NODE, "OMP_NUM_THREADS": "4"}, {**NODE, "OMP_NUM_THREADS": "4"}),
        ({"HOME": "/root", "OMP_NUM_THREADS": "2"}, {"HOME": "/root", "OMP_NUM_THREADS": "2"}),
    ],
)
def test_only_variables_read_at_start_need_another_template(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[str, str], own: dict[str, str] | None
) -> None:
    monkeypatch.setattr(templates, "Template", Made)
    with closing(Templates("python", NODE, open_files=1024)) as kept:
        usual: Any = kept.get()
        found: Any = kept.get(wanted)
        assert (found is usual) == (own is None)
        assert found.environment == (own or NODE)
        assert kept.get(wanted) is found
        preloaded = kept._preloads._made[(), None] = Made("python", {})  # type: ignore[index, assignment]
    assert usual.is_closed
    assert found.is_closed
    assert preloaded.is_closed


async def test_of_many_environments_the_templates_longest_unused_end_unawaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "Template", Made)
    monkeypatch.setattr(templates, "MOST_KEPT", 2)
    request = wanted(spawn(own_modules=[]))
    with closing(Templates("python", NODE, open_files=1024)) as kept:
        made: list[Any] = [kept.get({"OMP_NUM_THREADS": str(number)}) for number in range(3)]
        async with kept.preloaded(made[0], request, lambda _: None):
            async with kept.preloaded(made[2], request, lambda _: None):
                pass
            # A blocking wait for the process would stop the daemon's loop.
            assert [(each.has_ended, each.is_closed) for each in made] == [(False,) * 2, (True, False), (False,) * 2]
        last: Any = kept.get({"OMP_NUM_THREADS": "3"})
        async with kept.preloaded(last, request, lambda _: None):
            pass  # the templates of the launches before are used no more
        assert [each.has_ended for each in (*made, last)] == [True, True, False, False]


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Template]:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o700)
    with closing(Template(str(program), {}, 1024)) as template:
        yield template


async def test_an_oversized_worker_description_names_its_largest_variables(idle: Template) -> None:
    idle.watch(asyncio.get_running_loop())
    idle._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    with pytest.raises(LaunchError, match=r"and 32768 pass; its largest variables, in bytes: \$BIG \(100003\), \$A"):
        await idle.fork({"env": {"A": "\udcff", "BIG": "x" * 100_000}, "script_env": {b"\xff": b"\xff"}}, [])
    assert not idle.dead
    assert idle._timeout is None


async def test_a_cancelled_order_is_not_sent_and_delays_no_other() -> None:
    near, far = control_pair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    sleeper = subprocess.Popen(["sleep", "600"])
    with closing(far), closing(ForkServer("python", near, sleeper.pid, 1024, None)) as server:
        server.watch(asyncio.get_running_loop())
        asked = [asyncio.ensure_future(server.ask({"order": number, "of": bytes(9000)})) for number in range(5)]
        await asyncio.sleep(0)
        assert len(server._to_send) > 2, "the socket takes no more"
        asked[-2].cancel()
        orders = []
        while orders[-1:] != [4]:
            orders.append(frames.unpack(await asyncio.to_thread(far.recv, PACKET_BYTES))["order"])
    sleeper.returncode = 0  # reaped above
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert orders == [0, 1, 2, 4]
    assert [type(outcome) for outcome in outcomes] == [LaunchError] * 3 + [asyncio.CancelledError, LaunchError]


class Short:
    """A socket for which the kernel lacks memory at first."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._is_short = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendmsg(self, *what: Any) -> int:
        if self._is_short:
            self._is_short = False
            raise OSError(errno.ENOBUFS, "no memory")
        return self._sock.sendmsg(*what)


async def test_an_order_short_of_kernel_memory_is_sent_later() -> None:
    near, far = control_pair()
    sleeper = subprocess.Popen(["sleep", "600"])
    with closing(far), closing(ForkServer("python", near, sleeper.pid, 1024, None)) as server:
        server.watch(asyncio.get_running_loop())
        server._socket = Short(near)  # type: ignore[assignment]
        asked = asyncio.ensure_future(server.ask({"order": 1}))
        far.settimeout(5)
        assert frames.unpack(await asyncio.to_thread(far.recv, PACKET_BYTES)) == {"order": 1}
        far.send(frames.pack({"pid": 7}))
        assert await asked == {"pid": 7}
    sleeper.returncode = 0  # reaped above


async def test_an_unclaimed_worker_that_cannot_be_watched_is_reaped(
    idle: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray = subprocess.Popen(["sleep", "600"])
    idle.watch(asyncio.get_running_loop())
    with monkeypatch.context() as short:
        short.setattr(os, "pidfd_open", Mock(side_effect=OSError(errno.EMFILE, "no descriptor is free")))
        idle._end_stray(stray.pid)
    stray.returncode = 0  # reaped above
    assert not psutil.pid_exists(stray.pid)


async def test_a_worker_forked_after_its_start_was_cancelled_is_ended() -> None:
    near, far = control_pair()
    sleeper, worker = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    with closing(far), closing(ForkServer("python", near, sleeper.pid, 1024, None)) as server:
        server.watch(asyncio.get_running_loop())
        asked = asyncio.ensure_future(server.ask({"order": 1}))
        await asyncio.sleep(0)
        far.send(frames.pack({"pid": worker.pid}))
        server._readable()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert list(server._strays) == [worker.pid]
        assert worker.wait(5) == -signal.SIGKILL
    sleeper.returncode = 0  # reaped above


def test_an_isolated_interpreter_finds_this_package() -> None:
    *flags, _, start = template_command(["-I", "-O"])
    assert flags == ["-I", "-O", "-P"]
    compile(start, "-c", "exec")
    assert template_command(["-O"])[-2:] == ["-m", "rlinf_async._worker.template"]
    assert str(Path(sys.modules["rlinf_async"].__file__ or "").parents[1]) in start


def spawn(**fields: Any) -> operations.Spawn:
    usual = {
        "group": "g", "workers": [{"env": {"RANK": str(rank)}, "profiler": None} for rank in range(2)], "env": {},
        "node_env": {}, "python": None, "config": "", "seed": None, "world_size": 2, "max_concurrency": None,
        "quiet": False, "cwd": "/near/job", "sys_path": ["/near/job", "/lib"], "script": "/near/job/train.py",
        "module": None, "supervised": False, "script_env": {}, "close_grace": 1.0, "preload": [],
        "own_modules": ["job.models", "vllm"],
    }  # fmt: skip
    return operations.Spawn(**{**usual, **fields})


def wanted(op: operations.Spawn, variables: Mapping[str, str] = NODE, python: str = "python") -> PreloadRequest:
    return wanted_by(op, "node7", python, variables, ["/own"], lambda path: path.replace("/near/", "/far/"))


ONE = [{"env": {"RANK": "0"}, "profiler": None}]
PROFILED = [{"env": {"RANK": str(rank)}, "profiler": {"tool": "nsys"}} for rank in range(2)]


@pytest.mark.parametrize(
    ("fields", "timeout", "modules"),
    [
        ({}, "120", ("job.models", "vllm")),
        ({"own_modules": []}, "120", ()),
        ({"preload": ["vllm", "big"]}, "120", ("vllm", "big", "job.models")),
        ({"workers": ONE}, "120", ()),
        ({"workers": ONE, "preload": ["vllm"]}, "120", ("vllm",)),
        ({"workers": ONE, "supervised": True}, "120", ("job.models", "vllm")),
        ({"workers": PROFILED, "preload": ["vllm"]}, "120", ()),
        ({"workers": [*PROFILED, *ONE]}, "120", ("job.models", "vllm")),
        ({"preload": ["vllm"]}, "0", ()),
    ],
)
def test_modules_are_preloaded_for_more_than_one_process(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], timeout: str, modules: tuple[str, ...]
) -> None:
    monkeypatch.setenv(settings.PRELOAD_TIMEOUT_S.variable, timeout)
    found = wanted(spawn(**fields))
    assert (found.modules, found.asked) == (modules, frozenset(fields.get("preload", ())))


@pytest.mark.parametrize(
    ("fields", "variables", "python", "shared"),
    [
        ({"group": "other", "supervised": True, "seed": 3}, NODE, "python", True),
        ({"workers": [*ONE, *ONE, *ONE]}, NODE, "python", True),
        (
            {"workers": [{"env": {"RANK": "0", RESTARTS: "1"}, "profiler": None}], "supervised": True},
            NODE,
            "python",
            True,
        ),
        ({"workers": [{"env": {"RANK": "0", "CUDA_VISIBLE_DEVICES": "0"}, "profiler": None}]}, NODE, "python", False),
        ({"sys_path": ["/near/other", "/lib"]}, NODE, "python", False),
        ({"cwd": "/near/elsewhere"}, NODE, "python", False),
        ({"script": None}, NODE, "python", False),
        ({"module": "job.train"}, NODE, "python", False),
        ({}, {**NODE, "HF_HOME": "/data"}, "python", False),
        ({}, NODE, "/opt/python", False),
    ],
)
def test_launches_share_imports_where_these_see_the_same(
    fields: dict[str, Any], variables: dict[str, str], python: str, shared: bool
) -> None:
    usual = wanted(spawn()).surroundings
    assert (wanted(spawn(**fields), variables, python).surroundings == usual) == shared
    assert usual.sys_path == ("/own", "/far/job", "/lib")
    assert usual.own_variables == {"RANK", RESTARTS, MARKER}


class Importer:
    """Replacement of a template that has imported modules, or has refused to."""

    dead = False
    users = 0

    def __init__(self, refusal: Refusal | None = None) -> None:
        self.outcome = asyncio.get_running_loop().create_future()
        self.outcome.set_result(refusal)
        self.has_ended = self.is_old = False

    async def ask(self, order: Any) -> dict[str, bool]:
        return {"changed_files": self.is_old}

    def end(self) -> None:
        self.has_ended = True


async def test_a_launch_ends_although_more_modules_refuse_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    preloads = Preloads(lambda: None)
    plain: Any = object()
    names = ["a", "b", "c"]
    refused = iter(names)  # a fourth template is an error

    async def fork(*_: Any) -> Any:
        return Importer(Refusal(next(refused), "it starts a thread"))

    monkeypatch.setattr(preloads, "_fork", fork)
    monkeypatch.setattr(preloads_module, "MOST_REFUSED", 2)
    async with preloads.use(plain, wanted(spawn(own_modules=names)), lambda _: None) as template:
        assert template is plain


async def test_files_that_always_look_changed_cost_each_launch_one_template(monkeypatch: pytest.MonkeyPatch) -> None:
    preloads = Preloads(lambda: None)
    made: list[Any] = [Importer(), Importer()]
    for each in made:
        each.is_old = True
    to_make = iter(made)

    async def fork(*_: Any) -> Any:
        return next(to_make)

    monkeypatch.setattr(preloads, "_fork", fork)
    for each in made:
        async with preloads.use(made[0], wanted(spawn()), lambda _: None) as template:
            assert template is each


async def test_a_template_is_reused_until_its_modules_change_or_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    preloads = Preloads(lambda: None)
    plain: Any = object()
    told: list[Refusal] = []
    made = [Importer(), Importer(), Importer(Refusal("vllm", "it starts a thread")), Importer()]
    to_make = iter(made)

    async def fork(*_: Any) -> Any:
        return next(to_make)  # one more is an error

    async def used(**fields: Any) -> Any:
        async with preloads.use(plain, wanted(spawn(own_modules=["vllm"], **fields)), told.append) as template:
            return template

    monkeypatch.setattr(preloads, "_fork", fork)
    assert [await used(), await used()] == [made[0], made[0]]
    made[0].is_old = True
    assert [await used(), await used()] == [made[1], made[1]]
    assert [each.has_ended for each in made] == [True, False, False, False]
    assert [await used(cwd="/near/elsewhere"), await used(cwd="/near/elsewhere")] == [plain, plain]
    assert [refusal.reason for refusal in told] == ["it starts a thread"]
    assert (made[1].has_ended, made[2].has_ended) == (False, True)
    monkeypatch.setattr(preloads_module, "MOST_KEPT", 1)
    assert [await used(cwd="/near/third"), await used(cwd="/near/third")] == [made[3], made[3]]
    assert (made[1].has_ended, made[3].has_ended) == (True, False)  # of many the oldest ends

"""The processes that workers are forked from, one per interpreter and exec-time environment."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fnmatch
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgpack

from rlinf_async.errors import LaunchError

from .verdict import oom_kills, reap

EXEC_TIME: Final = (
    "LD_*", "PYTHON*", "OMP_*", "KMP_*", "GOMP_*", "MKL_*", "OPENBLAS_*", "MALLOC_*", "GLIBC_TUNABLES",
    "TORCH_*", "PYTORCH_*",
)  # fmt: skip
"""Variables that are read when a program starts: setting them after a fork would be too late."""

PACKET: Final = 512 * 1024

MARKER: Final = "RLINF_WORKER"
"""Environment variable that every descendant of a worker carries, forked or executed."""

NOBODY: Final = "0" * 16
"""Its value in a template, where each worker's own token will be written over."""


def exec_time(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that needs a template of its own."""
    return {
        name: value
        for name, value in environment.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in EXEC_TIME)
    }


class Template:
    """One process that has imported torch, and the conversation with it.

    It is started at once and imports while the daemon goes on; ``fork`` waits for it.
    """

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * PACKET)
        self._socket = near
        self._oom_kills = oom_kills()
        try:
            self._process = subprocess.Popen(
                [python, "-m", "rlinf_async.worker.template", str(far.fileno()), str(os.getpid())],
                env={**environment, "OPENBLAS_NUM_THREADS": "1", MARKER: NOBODY},
                pass_fds=(far.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            near.close()
            raise LaunchError(f"the worker template could not be started with {python}: {error}") from error
        finally:
            far.close()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._waiting: deque[asyncio.Future[dict[str, Any]]] = deque()
        self._to_send: deque[tuple[bytes, Sequence[int]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._death: LaunchError | None = None
        self.facts: dict[str, Any] | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts listening to it; separate from the constructor so that torch's import begins before the loop does."""
        self._loop = loop
        self._socket.setblocking(False)
        loop.add_reader(self._socket.fileno(), self._readable)
        loop.add_reader(self._pidfd, self._ended)

    async def fork(self, spec: Mapping[str, Any], fds: Sequence[int]) -> int:
        """The pid of a new worker, whose parent is this daemon; the descriptors stay the caller's.

        Raises:
            LaunchError: the template is dead, or could not fork.
        """
        if self._death is not None:
            raise self._death
        assert self._loop is not None
        packet = msgpack.packb(spec, use_bin_type=True)
        if len(packet) > PACKET:
            raise LaunchError(f"the description of a worker takes {len(packet)} bytes, more than {PACKET}: its env=?")
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._waiting.append(answer)
        self._to_send.append((packet, fds))
        if len(self._to_send) == 1:
            self._writable()
        facts = await answer
        if "error" in facts:
            raise LaunchError(f"a worker could not be forked: {facts['error']}")
        return int(facts["pid"])

    def _writable(self) -> None:
        assert self._loop is not None
        while self._to_send:
            packet, fds = self._to_send[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            try:
                self._socket.sendmsg([packet], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._loop.add_writer(self._socket.fileno(), self._writable)
                return
            except OSError:
                break  # it is dead; its pidfd says so
            self._to_send.popleft()
        self._loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        try:
            packet = self._socket.recv(PACKET)
        except OSError:
            return
        if not packet:
            assert self._loop is not None
            self._loop.remove_reader(self._socket.fileno())
            return
        facts = msgpack.unpackb(packet, raw=False)
        if facts.get("ready"):
            self.facts = facts
            return
        answer = self._waiting.popleft()
        if not answer.done():
            answer.set_result(facts)

    def _ended(self) -> None:
        assert self._loop is not None
        verdict = reap(self._pidfd, self._oom_kills)
        if verdict is None:
            return
        self._process.returncode = 0  # reaped here; Popen must not look for it
        self._loop.remove_reader(self._pidfd)
        self._death = LaunchError(
            f"the worker template {verdict.text}; what it said stands in the log of this node's daemon"
        )
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(self._death)
        self._waiting.clear()
        self._to_send.clear()

    @property
    def dead(self) -> bool:
        return self._death is not None

    def close(self) -> None:
        """Ends the template; workers that were forked from it live on."""
        if self._death is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._death = LaunchError("this node is closing")
        if self._loop is not None:
            self._loop.remove_reader(self._pidfd)
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(self._death)
        self._waiting.clear()
        os.close(self._pidfd)
        self._socket.close()


class Templates:
    """The templates of a node, made when they are first needed."""

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        self._python = python
        self._environment = dict(environment)
        self._templates: dict[tuple[str, frozenset[tuple[str, str]]], Template] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<Templates [{len(self._templates)} processes]>"

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        for template in self._templates.values():
            template.watch(loop)

    def get(self, environment: Mapping[str, str] | None = None, python: str | None = None) -> Template:
        """The template for workers with these variables beside the node's own."""
        special = exec_time(environment or {})
        key = (python or self._python, frozenset(special.items()))
        template = self._templates.get(key)
        if template is None or template.dead:
            template = Template(key[0], {**self._environment, **special})
            self._templates[key] = template
            if self._loop is not None:
                template.watch(self._loop)
        return template

    def close(self) -> None:
        for template in self._templates.values():
            template.close()
        self._templates.clear()

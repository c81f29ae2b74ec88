"""Worker templates, the daemon's side: starts processes that import torch and, on request, fork the workers.

There is one per interpreter and environment; its program is ``rlinf_async._worker.template``.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import fnmatch
import os
import re
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlinf_async import settings
from rlinf_async._core import frames
from rlinf_async._core.descriptors import limit_met
from rlinf_async.errors import LaunchError

from .exit_status import reap
from .oom import MemoryKills
from .process_state import state_of
from .template_log import log_tail, open_log

_EXEC_TIME_VARIABLES: Final = re.compile("|".join(map(fnmatch.translate, (
    "LD_*", "PYTHON*", "OMP_*", "KMP_*", "GOMP_*", "MKL_*", "OPENBLAS_*", "MALLOC_*", "GLIBC_TUNABLES",
    "TORCH_*", "PYTORCH_*",
))))  # fmt: skip
"""Variables that are read when a program starts: setting them after a fork would be too late."""

PACKET_BYTES: Final = 512 * 1024

_Answer = asyncio.Future[dict[str, Any]]

MARKER: Final = "RLINF_WORKER"
"""Environment variable that every child of a daemon has, and every descendant of a worker, forked or executed."""

PARENT_SOCKET: Final = "RLINF_PARENT_SOCKET"
"""Environment variable with the path of this node's socket, in the run's folder: a worker's subprocesses may join."""

_HOME: Final = str(Path(settings.__file__).parents[1])

NO_TOKEN: Final = "0" * 16
"""Its value in a template, where each worker's own token will be written over, and in what is no worker's."""


def exec_time(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that needs a template of its own."""
    return {name: value for name, value in environment.items() if _EXEC_TIME_VARIABLES.match(name)}


def template_command(flags: Sequence[str]) -> list[str]:
    """Return the template's command line behind the interpreter, without the template's own arguments.

    ``-I`` and ``-E`` hide PYTHONPATH, by which a daemon may have found this package: its folder is added by hand then.
    """
    if {"-I", "-E"}.isdisjoint(flags):
        return [*flags, "-P", "-m", "rlinf_async._worker.template"]
    start = f"import sys; sys.path.append({_HOME!r}); from rlinf_async._worker.template import main; main()"
    return [*flags, "-P", "-c", start]


def _too_large(spec: Mapping[str, Any], nbytes: int, limit: int) -> str:
    sizes = {name: len(name) + len(value) for name, value in spec["env"].items()}
    largest = ", ".join(f"${name} ({sizes[name]})" for name in sorted(sizes, key=sizes.__getitem__)[:-4:-1])
    return (
        f"the description of a worker takes {nbytes} bytes, and {limit} pass; "
        f"its largest variables, in bytes: {largest}\n"
        "  fix: hand large values over as arguments, or in files, not in the environment or in env="
    )


class Template:
    """One process that has imported torch, and the conversation with it.

    It is started at once and imports while the daemon goes on; ``fork`` waits for it.
    """

    def __init__(
        self,
        python: str,
        environment: Mapping[str, str],
        open_files: int,
        log: Path | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """``log`` is where it writes; without one, where this process does.  ``flags`` are the interpreter's."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET_BYTES)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * PACKET_BYTES)
        self._python = python
        self._socket = near
        self._memory_kills = MemoryKills.count()
        self._log = log
        output = open_log(log)
        try:
            self._process = subprocess.Popen(
                [python, *template_command(flags), str(far.fileno()), str(os.getpid())],
                env={**environment, "OPENBLAS_NUM_THREADS": "1", MARKER: NO_TOKEN},
                pass_fds=(far.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            near.close()
            raise LaunchError(f"the worker template could not be started with {python}: {error}") from error
        finally:
            far.close()
            if output is not None:
                os.close(output)
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError as error:
            near.close()
            self._process.kill()
            self._process.wait()
            raise LaunchError(f"the worker template could not be watched: {error}{limit_met(error)}") from error
        self._open_files = open_files
        self._to_send: deque[tuple[bytes, Sequence[int], _Answer]] = deque()
        self._waiting: deque[_Answer] = deque()
        self._patience: asyncio.TimerHandle | None = None
        self._strays: dict[int, int] = {}
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
            LaunchError: the template is dead or silent, or could not fork.
        """
        if self._death is not None:
            raise self._death
        assert self._loop is not None
        spec = {**spec, "open_files": self._open_files}
        packet = frames.pack(spec)
        if len(packet) > PACKET_BYTES:
            raise LaunchError(_too_large(spec, len(packet), PACKET_BYTES))
        answer: _Answer = self._loop.create_future()
        self._to_send.append((packet, fds, answer))
        if self._patience is None:
            self._arm_timeout()
        if len(self._to_send) == 1:
            self._writable()
        facts = await answer
        if "error" in facts:
            raise LaunchError(f"a worker could not be forked: {facts['error']}")
        return int(facts["pid"])

    def _writable(self) -> None:
        assert self._loop is not None
        while self._to_send:
            packet, fds, answer = self._to_send[0]
            if answer.done():  # nobody waits for it any more, and its descriptors are closed
                self._to_send.popleft()
                continue
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            try:
                self._socket.sendmsg([packet], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._loop.add_writer(self._socket.fileno(), self._writable)
                return
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    break  # it is dead; its pidfd says so
                limit = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)  # as net.core.wmem_max allows
                self._to_send.popleft()
                answer.set_exception(LaunchError(_too_large(frames.unpack(packet), len(packet), limit)))
                self._arm_timeout()
                continue
            self._to_send.popleft()
            self._waiting.append(answer)
        self._loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        """False when nothing more is there."""
        try:
            packet = self._socket.recv(PACKET_BYTES)
        except OSError:
            return False
        if not packet:
            assert self._loop is not None
            self._loop.remove_reader(self._socket.fileno())
            return False
        facts = frames.unpack(packet)
        if facts.get("ready"):
            self.facts = facts
            if facts.get("protocol") != frames.PROTOCOL:
                self._fail(
                    f"the rlinf_async of {self._python} speaks protocol {facts.get('protocol')}, and this node's "
                    f"{frames.PROTOCOL}: both must be the same version"
                )
                self._kill()
        else:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result(facts)
            elif "pid" in facts:
                self._end_stray(int(facts["pid"]))
        self._arm_timeout()
        return True

    def _ended(self) -> None:
        exit_status = reap(self._pidfd, self._memory_kills)
        if exit_status is None:
            return
        self._process.returncode = 0  # reaped here; Popen must not look for it
        while self._read():
            pass
        text = f"the worker template {exit_status.text}{log_tail(self._log)}"
        if self.facts is None and self._python != sys.executable:
            text += f"\n  fix: {self._python} needs torch and this version of rlinf_async, as this node's own has them"
        self._fail(text)
        self._let_go()

    def _arm_timeout(self) -> None:
        """Gives the template its time anew, if anybody waits for it."""
        assert self._loop is not None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._waiting or self._to_send:
            limit = settings.WORKER_IMPORT_TIMEOUT_S if self.facts is None else settings.WORKER_FORK_TIMEOUT_S
            seconds = limit()
            self._patience = self._loop.call_later(seconds, self._give_up, seconds)

    def _give_up(self, seconds: float) -> None:
        doing = "importing torch" if self.facts is None else "forking a worker"
        silent = f"the worker template (pid {self._process.pid}) has said nothing for {seconds:g} s while {doing}"
        self._fail(silent + log_tail(self._log))
        self._kill()  # its pidfd brings the rest

    def _fail(self, reason: str) -> None:
        """Nothing is forked any more."""
        if self._death is None:
            self._death = LaunchError(reason)
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        for answer in (*self._waiting, *(answer for _, _, answer in self._to_send)):
            if not answer.done():
                answer.set_exception(self._death)
        self._to_send.clear()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _let_go(self) -> None:
        """Closes what this side has of the conversation.  Idempotent."""
        if self._pidfd < 0:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._pidfd)
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
        os.close(self._pidfd)
        self._pidfd = -1
        self._socket.close()

    def _end_stray(self, pid: int) -> None:
        """Ends a worker whose start was given up while it was forked."""
        assert self._loop is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            pidfd = os.pidfd_open(pid)
            self._strays[pid] = pidfd
            self._loop.add_reader(pidfd, self._stray_ended, pid)

    def _stray_ended(self, pid: int) -> None:
        assert self._loop is not None
        pidfd = self._strays.pop(pid)
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

    def describe(self) -> str:
        """What it is at, in words; empty if nobody waits for it."""
        if not self._waiting and not self._to_send:
            return ""
        state = state_of(self._process.pid, None)
        doing = "importing torch" if self.facts is None else "forking"
        return f"the worker template (pid {self._process.pid}) is {state or doing}"

    @property
    def dead(self) -> bool:
        return self._death is not None

    def close(self) -> None:
        """Ends the template; workers that were forked from it live on."""
        if self._pidfd >= 0 and self._process.returncode is None:
            self._kill()
            self._process.wait()
        self._fail("this node is closing")
        self._let_go()
        for pid in list(self._strays):
            self._stray_ended(pid)


class Templates:
    """The templates of a node, made when they are first needed."""

    def __init__(
        self,
        python: str,
        environment: Mapping[str, str],
        *,
        open_files: int,
        log_dir: Path | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self.python = python
        self.flags = flags
        self._log_dir = log_dir
        self._made = 0
        self.open_files = open_files
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
        """The template for workers with these variables; without any, with the node's own."""
        special = exec_time(self._environment if environment is None else environment)
        key = (python or self.python, frozenset(special.items()))
        template = self._templates.get(key)
        if template is None or template.dead:
            # The pid tells the nodes of one machine apart.
            log = None if self._log_dir is None else self._log_dir / f"template_{os.getpid()}_{self._made}.log"
            self._made += 1
            other = {name: value for name, value in self._environment.items() if name not in exec_time({name: value})}
            template = Template(key[0], {**other, **special}, self.open_files, log, self.flags)
            try:
                if self._loop is not None:
                    template.watch(self._loop)
            except BaseException:
                template.close()
                raise
            self._templates[key] = template
        return template

    def describe(self) -> str:
        """What those are at for which a launch waits, in words."""
        return "; ".join(filter(None, (template.describe() for template in self._templates.values())))

    def close(self) -> None:
        for template in self._templates.values():
            template.close()
        self._templates.clear()

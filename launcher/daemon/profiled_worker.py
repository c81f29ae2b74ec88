"""Starts a worker under a profiler's command line, in a fresh interpreter instead of a fork from the template.

A tool that follows a program wants to see it start; a process that was forked from a template would carry the
template's.  So a profiled worker costs an import of torch.  Its parent is the tool, which this daemon takes for the
worker: it ends when the worker has ended, with the same exit code, once its report is written.
"""

from __future__ import annotations

import array
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rlinf_async._core import frames
from rlinf_async.errors import LaunchError

from .fork_server import PACKET_BYTES
from .templates import template_command


class NodeSite(Protocol):
    """The facts about the node that a profiled worker needs."""

    @property
    def name(self) -> str: ...

    @property
    def log_dir(self) -> Path: ...


class ProfiledStarter:
    """Starts one worker in the interpreter that a profiler is wrapped around.

    Args:
        wrapped: ``command``, ``tool``, ``env`` and ``directory`` of a ``WrappedInterpreter``, in which ``{python}``
            and ``{log_dir}`` stand for this node's.
        environment: of the worker; gets what the tool needs.
        python: the interpreter.
        flags: its options.
        open_files: the user's own limit.

    Raises:
        LaunchError: the tool is not on this node.
    """

    def __init__(
        self,
        wrapped: Mapping[str, Any],
        environment: dict[str, str],
        python: str,
        flags: Sequence[str],
        here: NodeSite,
        open_files: int,
    ) -> None:
        def filled(text: str) -> str:
            return text.replace("{python}", python).replace("{log_dir}", str(here.log_dir))

        environment |= {name: filled(value) for name, value in wrapped["env"].items()}
        tool = shutil.which(wrapped["tool"], path=environment.get("PATH"))
        if tool is None:
            raise LaunchError(
                f"node {here.name} has no {wrapped['tool']!r}, which the profiling of this group needs: install it "
                "there (in a folder of the workers' PATH), or take the group out of profiling.worker_groups"
            )
        Path(filled(wrapped["directory"])).mkdir(parents=True, exist_ok=True)
        self._command = [tool, *map(filled, wrapped["command"][1:]), *template_command(flags)]
        self._open_files = open_files

    async def fork(self, spec: Mapping[str, Any], fds: Sequence[int]) -> int:
        """The pid of the tool; the descriptors stay the caller's.

        Raises:
            LaunchError: it could not be started.
        """
        order = {**spec, "open_files": self._open_files, "wrapped": True}
        packet = frames.pack(order)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with near, far:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET_BYTES)
            try:
                near.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
                process = self._start(far.fileno(), spec["env"], fds)
            except OSError as error:
                raise LaunchError(f"a profiled worker could not be started: {error} ({self._command[0]})") from error
        process.returncode = 0  # reaped by its pidfd; Popen must not look for it
        return process.pid

    def _start(self, control: int, environment: Mapping[str, str], fds: Sequence[int]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._command, str(control), "0"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=fds[1],
            stderr=fds[2],
            pass_fds=(control,),
            start_new_session=True,
        )

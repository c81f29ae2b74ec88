"""``ProfiledStarter``: starts a worker under a profiler, in a fresh interpreter instead of a fork of the template.

A profiler must see its program start, but a process forked from a template carries the template's history.  So a
profiled worker imports torch itself.  The worker's parent is the profiler, which this daemon treats as the worker: the
profiler exits after the worker, with the same exit code, once it has written its report.
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
    """Starter that runs one worker in an interpreter under a profiler.  Raises LaunchError if the tool is missing.

    ``wrapped`` holds ``command``, ``tool``, ``env`` and ``directory`` of a ``WrappedInterpreter``; this node's values
    replace ``{python}`` and ``{log_dir}`` in them.  The tool's variables are added to the worker's ``environment``.
    """

    def __init__(
        self,
        wrapped: Mapping[str, Any],
        environment: dict[str, str],
        python: str,
        flags: Sequence[str],
        site: NodeSite,
        open_files: int,
    ) -> None:
        def filled(text: str) -> str:
            return text.replace("{python}", python).replace("{log_dir}", str(site.log_dir))

        environment |= {name: filled(value) for name, value in wrapped["env"].items()}
        tool = shutil.which(wrapped["tool"], path=environment.get("PATH"))
        if tool is None:
            raise LaunchError(
                f"node {site.name} has no {wrapped['tool']!r}, which the profiling of this group needs: install it "
                "there (in a folder of the workers' PATH), or take the group out of profiling.worker_groups"
            )
        Path(filled(wrapped["directory"])).mkdir(parents=True, exist_ok=True)
        self._command = [tool, *map(filled, wrapped["command"][1:]), *template_command(flags)]
        self._open_files = open_files

    async def fork(self, spec: Mapping[str, Any], fds: Sequence[int]) -> int:
        """Start the profiler; return its pid.  The caller keeps ``fds``.  Raises LaunchError."""
        order = {**spec, "open_files": self._open_files, "wrapped": True}
        packet = frames.pack(order)
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with own, other:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET_BYTES)
            try:
                own.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
                process = self._start(other.fileno(), spec["env"], fds)
            except OSError as error:
                raise LaunchError(f"a profiled worker could not be started: {error} ({self._command[0]})") from error
        process.returncode = 0  # the pidfd's owner reaps the process, so Popen must not wait for it
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

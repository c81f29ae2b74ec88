"""``LocalConnector`` for this machine, without ssh, and a check of whether a host is this machine."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_async._wire.remote_exit import RemoteExit, describe_exit

from .bootstrap import TOO_OLD
from .host import Host
from .prologue import bootstrap_argv, explain_prologue


@dataclass(frozen=True)
class LocalConnector:
    """Connector for this machine; ``default`` is the interpreter used if ``python`` is None."""

    python: str | None
    default: str = sys.executable
    prologue: str | None = None

    is_here: bool = True

    @property
    def argv(self) -> Sequence[str]:
        return bootstrap_argv(self.python, self.default, self.prologue)

    def end_command(self, answer: Mapping[str, Any]) -> Sequence[str]:
        return ()

    def explain(self, exited: RemoteExit) -> str:
        if text := explain_prologue(exited, self.prologue):
            return text
        for line in exited.stderr:
            if line.startswith(TOO_OLD):
                return f"{line.removeprefix(TOO_OLD)}, which is too old\nfix: --python PATH"
        return describe_exit(exited)


def is_here(host: Host) -> bool:
    """True if a host's name means this machine and the host has no settings that only ssh uses."""
    if host.is_local:
        return True
    own = socket.gethostname().lower()
    names = {own, own.split(".")[0]}
    return host.user is None and host.port is None and host.name.lower() in names
